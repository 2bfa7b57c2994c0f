"""Backends that lack operators of another one: targets that are not finished yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from tapestry.backends.base import AnyOp, Availability, Backend, Options, Rule
from tapestry.backends.eager import Eager
from tapestry.backends.tvm.backend import Tvm
from tapestry.program.graph import Call, Graph
from tapestry.program.program import Program
from tapestry.program.serial import overload_name
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Compiled


class _Partial(Backend):
    """Takes what the backend of ``whole`` takes, but for the operators in ``lacks`` (``aten.gelu.default``)."""

    whole: ClassVar[type[Backend]]

    def __init__(self, lacks: Collection[str] = ()) -> None:
        self.lacks = frozenset(lacks)
        self._inner = self.whole()

    def availability(self) -> Availability:
        return self._inner.availability()

    def rules(self) -> Sequence[Rule]:
        return (AnyOp(self._when),)

    def _when(self, call: Call, info: DeviceInfo) -> str | None:
        name = overload_name(call.target)
        return f"{self.name} has no {name} yet" if name in self.lacks else self._inner.refuses(call, info)

    def options(self) -> Sequence[Options]:
        return self._inner.options()

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        return self._inner.compile(graph, info, options)

    def fingerprint(self) -> str:
        return f"{self._inner.fingerprint()} without {sorted(self.lacks)}"


class PartialEager(_Partial):
    """For mock devices and ``cpu``."""

    name: ClassVar[str] = "partial"
    isolated: ClassVar[bool] = False
    device_kinds: ClassVar[frozenset[str]] = Eager.device_kinds
    whole: ClassVar[type[Backend]] = Eager


class PartialTvm(_Partial):
    """For OpenCL and WebGPU. The process that compiles for it makes one that lacks nothing, and is asked no more."""

    name: ClassVar[str] = "partial-tvm"
    device_kinds: ClassVar[frozenset[str]] = Tvm.device_kinds
    whole: ClassVar[type[Backend]] = Tvm


def every_other_operator(program: Program) -> tuple[str, ...]:
    """Half of the kinds of operators that a program computes with: every other one, by name."""
    return tuple(sorted({program.by_id[node_id].op for node_id in program.compute})[1::2])
