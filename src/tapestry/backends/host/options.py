"""The choices that the backends on the processor have in common, and which of them this processor can do.

Not here: what a runtime makes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec

from tapestry.backends.base import Options
from tapestry.backends.host.threads import thread_budget
from tapestry.errors import UnsupportedError, UsageError
from tapestry.runtime.device import DeviceInfo

Precision = Literal["float32", "bfloat16", "float16", "int8"]

#: Processor flags (runtime.drivers.host) of which one makes a precision worth having. float32 needs none.
_NEEDS: dict[str, frozenset[str]] = {
    "float32": frozenset(),
    "bfloat16": frozenset({"avx512_bf16", "amx_bf16", "bf16"}),
    "float16": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
    "int8": frozenset({"avx2", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}),
}


class HostOptions(Options, frozen=True):
    """``precision``: what the heavy operators compute in; inputs and outputs keep the program's types.

    ``threads``: the runtime's threads. ``calibration`` names stored activations (host.calibration) for int8 with
    fixed ranges; without it the ranges of activations are taken anew in each call.
    """

    precision: Precision = "float32"
    threads: int = msgspec.field(default_factory=thread_budget)
    calibration: str = ""


OptionsT = TypeVar("OptionsT", bound=HostOptions)


def precision_reason(precision: str, info: DeviceInfo) -> str | None:
    """Why a precision is not for this processor, or None. The processor is asked; nothing is assumed."""
    needs = _NEEDS[precision]
    if not needs or needs & info.features:
        return None
    return f"{precision} needs a processor with one of {', '.join(sorted(needs))}; {info.description} has none of them"


def check_options(options: Options, kind: type[OptionsT], info: DeviceInfo) -> OptionsT:
    """The options as this backend's own. UsageError for others, UnsupportedError for what the processor lacks."""
    if not isinstance(options, kind):
        raise UsageError(f"expected {kind.__name__}, got {type(options).__name__}")
    if options.threads < 1:
        raise UsageError(f"expected 1 thread or more, got {options.threads}")
    if options.calibration and options.precision != "int8":
        raise UsageError(f"calibration is for precision int8, got {options.precision}")
    reason = precision_reason(options.precision, info)
    if reason is not None:
        raise UnsupportedError(reason)
    return options


def offered(features: frozenset[str], precisions: Sequence[Precision]) -> tuple[Precision, ...]:
    """The precisions of a list that a processor with these features can do, in order."""
    return tuple(entry for entry in precisions if not _NEEDS[entry] or _NEEDS[entry] & features)
