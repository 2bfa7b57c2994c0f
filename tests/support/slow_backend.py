"""A backend whose second stage, in the worker, takes as long as it is told: it computes the identity of one input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from support.slow_loader import SlowPayload
from tapestry.backends.base import AnyOp, Availability, Backend, Options, Rule
from tapestry.backends.host.declare import Body
from tapestry.program.graph import Graph
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Compiled


class SlowOptions(Options, frozen=True):
    """``seconds`` that binding takes."""

    seconds: float = 0.0


class SlowToBind(Backend):
    """Right for x + 0, multiplications by 1 and the like."""

    name: ClassVar[str] = "slow"
    device_kinds: ClassVar[frozenset[str]] = frozenset({"host"})
    isolated: ClassVar[bool] = False

    def availability(self) -> Availability:
        return Availability(True)

    def rules(self) -> Sequence[Rule]:
        return (AnyOp(lambda call, info: None),)

    def options(self) -> Sequence[Options]:
        return (SlowOptions(),)

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        assert isinstance(options, SlowOptions)
        body = Body(graph)
        return body.compiled(self.name, "support.slow_loader:load", SlowPayload(options.seconds, body.constants))

    def fingerprint(self) -> str:
        return "slow 1"
