"""Rules over single calls: by operator name, or by a condition alone. They need no graph.

Not here: rules over several calls.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Set
from dataclasses import dataclass

from tapestry.backends.rules.rule import NO_RULE, Match, Rule, Scope, When
from tapestry.backends.rules.view import judged
from tapestry.program.graph import Call
from tapestry.program.serial import overload_name
from tapestry.runtime.device import DeviceInfo


class CallRule(Rule):
    """A rule that judges each call by itself. Also what ``Grow`` and ``Whole`` name their operators with."""

    @abstractmethod
    def refuses(self, call: Call, info: DeviceInfo) -> str | None: ...

    def find(self, scope: Scope) -> Iterator[Match]:
        for call in scope.index.calls:
            if scope.bars(call) is None and self.refuses(call, scope.info) is None:
                yield Match((call.name,), {}, self)

    def why_not(self, scope: Scope, call: Call) -> str | None:
        return self.refuses(call, scope.info)


@dataclass(frozen=True)
class Ops(CallRule):
    """Single operators, with a condition: ``aten.linear.default``, or ``aten.add`` for all its overloads."""

    names: Set[str]
    when: When | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", frozenset(self.names))

    @property
    def label(self) -> str:
        names = sorted(self.names)
        return f"Ops({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"

    def refuses(self, call: Call, info: DeviceInfo) -> str | None:
        name = overload_name(call.target)
        if name not in self.names and name.rpartition(".")[0] not in self.names:
            return f"{NO_RULE}{name}"
        when = self.when
        return judged(self.label, (call.name,), lambda: when(call, info)) if when else None


@dataclass(frozen=True)
class AnyOp(CallRule):
    """Every operator that a condition lets through: for backends whose own importer is the judge."""

    when: When

    @property
    def label(self) -> str:
        return "AnyOp"

    def refuses(self, call: Call, info: DeviceInfo) -> str | None:
        return judged(self.label, (call.name,), lambda: self.when(call, info))
