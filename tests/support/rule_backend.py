"""Backends that are nothing but rules: for searches whose cost model compiles nothing."""

from __future__ import annotations

from collections.abc import Sequence

from tapestry.backends.base import Availability, Backend, Options, Rule
from tapestry.errors import CompileError
from tapestry.program.graph import Graph
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Compiled

INFO = DeviceInfo("mock", "mock:0", "a mock device", "mock-1", dtypes=frozenset({"float32"}))


class Precise(Options, frozen=True):
    """One choice."""

    precision: str = "float32"


class RuleBackend(Backend):
    """Takes what its rules say; ``compile`` fails."""

    device_kinds = frozenset({"mock"})

    def __init__(self, name: str, *rules: Rule, fuses: bool = True, options: Sequence[Options] = (Precise(),)) -> None:
        self.name = name  # pyright: ignore[reportAttributeAccessIssue] - every one has a name of its own
        self.fuses = fuses  # pyright: ignore[reportAttributeAccessIssue]
        self._rules, self._options = rules, tuple(options)

    def availability(self) -> Availability:
        return Availability(True)

    def rules(self) -> Sequence[Rule]:
        return self._rules

    def options(self) -> Sequence[Options]:
        return self._options

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        raise CompileError(f"{self.name} compiles nothing")

    def fingerprint(self) -> str:
        return f"{self.name} 1"
