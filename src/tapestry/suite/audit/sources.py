"""The calls that a fault is tried on: those of the suite, their variants, and ones made from the operator's schema.

Not here: trying them (mutants).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

from tapestry.suite.audit.faults import Fault
from tapestry.suite.audit.mutants import NamedCall
from tapestry.suite.case import Suite
from tapestry.suite.one_call import call_of
from tapestry.suite.schema.calls import calls_for
from tapestry.suite.variants.call import OpCall
from tapestry.suite.variants.derive import Budget, derive

#: A few calls of an operator, the first of each dtype, get most of the variants, and more of them in a turn.
_MOST_DIVERSE = 5
_TURN = 4
_FIRST = Budget(cases=256, bytes=256 << 20)
_LATER = Budget(cases=96)


class Sources:
    """Where calls of an operator come from: ``suite`` (None: nothing was carved), then the operator's schema.

    Without ``variants`` only carved and schema calls as they are.
    """

    def __init__(self, suite: Suite | None, variants: bool) -> None:
        self.suite = suite
        self.variants = variants
        self._of_schema = cache(_of_schema)

    def calls(self, fault: Fault) -> Iterator[NamedCall]:
        """Calls of all overloads that a fault names, the carved ones first, each followed by its variants later.

        Every base call comes before the variants, so that plain faults die early; the variants of all base calls then
        take turns.
        """
        bases = [entry for op in fault.targets for entry in self.bases(op)]
        yield from bases
        if self.variants:
            diverse = _diverse(bases)
            yield from _in_turns([self._stream(entry, entry in diverse) for entry in bases])

    def bases(self, op: str) -> tuple[NamedCall, ...]:
        """The calls of an overload before any variant: carved, or from the schema where nothing was."""
        return self.carved(op) or self._of_schema(op)

    def carved(self, op: str) -> tuple[NamedCall, ...]:
        """The suite's calls of an overload."""
        if self.suite is None:
            return ()
        found = [case for case in self.suite.cases if case.op == op and not case.base]
        graphs = [(case, case.load_graph()) for case in found]
        return tuple(
            NamedCall(case.id, call_of(graph, self.suite.inputs(case)))
            for case, graph in graphs
            if len(graph.calls) == 1
        )

    def _stream(self, base: NamedCall, diverse: bool) -> _Stream:
        calls = self._variants(base, _FIRST if diverse else _LATER)
        return _Stream(calls, _TURN if diverse else 1)

    def _variants(self, base: NamedCall, budget: Budget) -> Iterator[NamedCall]:
        for variant, call in derive(base.call, budget):
            yield NamedCall(f"{base.name} ~ {variant.name}", call)


def _of_schema(op: str) -> tuple[NamedCall, ...]:
    return tuple(
        NamedCall(f"{op}: {entry.source}", OpCall(entry.target, entry.args, entry.kwargs))
        for entry in calls_for(op)
        if not entry.not_repeatable
    )


@dataclass
class _Stream:
    """Calls still to come, of which some are taken in each turn."""

    calls: Iterator[NamedCall]
    turn: int


def _diverse(bases: list[NamedCall]) -> list[NamedCall]:
    """The first call of each operator and dtype, as far as there is room."""
    found: dict[object, NamedCall] = {}
    for entry in bases:
        dtype = next((tensor.dtype for tensor in entry.call.tensors), None)
        found.setdefault((entry.call.target, dtype), entry)
    return list(found.values())[:_MOST_DIVERSE]


def _in_turns(streams: list[_Stream]) -> Iterator[NamedCall]:
    """A few of each stream in turn until all have ended."""
    while streams:
        alive: list[_Stream] = []
        for stream in streams:
            taken = list(islice(stream.calls, stream.turn))
            yield from taken
            if len(taken) == stream.turn:
                alive.append(stream)
        streams = alive
