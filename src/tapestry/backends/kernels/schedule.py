"""Which schedule of a hand-written kernel is used: the options, and what an adapter says about itself.

An adapter that runs on a processor's cores pays for barriers and workgroup memory, so there an invocation does its
work alone; a graphics processor needs many invocations that read neighbouring values together. Not here: measuring
which is faster (tuning).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tapestry.backends.base import Options
from tapestry.backends.rules import MatchView
from tapestry.runtime.device import DeviceInfo

#: An ``invocation`` makes results alone, or a ``workgroup`` shares the work on them. ``large``: an invocation makes a
#: large tile of a matrix product alone; loads less, but some adapters take many seconds to build it.
Kind = Literal["invocation", "large", "workgroup"]
#: The schedules that every family has.
KINDS: tuple[Kind, ...] = ("invocation", "workgroup")
Choice = Literal["auto", "invocation", "large", "workgroup"]
#: Kernels that are slow or fast for the same reasons: matrix products, those of few rows, softmax and norms, attention.
Family = Literal["matmul", "matvec", "rows", "attention"]
FAMILIES: tuple[Family, ...] = ("matmul", "matvec", "rows", "attention")


@dataclass(frozen=True)
class Schedule:
    """How a kernel shares out its work. ``family`` may depend on the match."""

    kind: Kind
    family: Family | Callable[[MatchView], Family]

    def family_of(self, match: MatchView) -> Family:
        """The family of the kernel at a match."""
        return self.family(match) if callable(self.family) else self.family


class KernelOptions(Options, frozen=True):
    """The schedule of each family: ``auto`` is the one that was faster when the device was measured (tuning).

    Where there is no device to be measured, it is what the adapter says about itself: ``invocation`` when it runs on
    a processor's cores.
    """

    matmul: Choice = "auto"
    matvec: Literal["auto", "invocation", "workgroup"] = "auto"
    rows: Literal["auto", "invocation", "workgroup"] = "auto"
    attention: Literal["auto", "invocation", "workgroup"] = "auto"

    def kind(self, family: Family, info: DeviceInfo) -> Kind:
        """The schedule of a family on a device."""
        chosen: Choice = getattr(self, family)
        return stated(info) if chosen == "auto" else chosen


def stated(info: DeviceInfo) -> Kind:
    """The schedule for what an adapter says about itself."""
    return "invocation" if "software" in info.features else "workgroup"
