"""Choosing disjoint matches in order of priority, so that the regions can run one after the other.

Not here: which choice is the fastest (the placement search).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tapestry.backends.rules.index import GraphIndex
from tapestry.backends.rules.rule import Match, Matchable
from tapestry.errors import UsageError


@dataclass(frozen=True)
class LeftOut:
    """A match that was not chosen, and why."""

    match: Match
    reason: str


@dataclass(frozen=True)
class Selection:
    """Disjoint matches whose regions depend on each other in no cycle, in order of priority; and the others."""

    chosen: tuple[Match, ...]
    left_out: tuple[LeftOut, ...]


def largest_first(match: Match) -> int:
    """A key for ``sorted``: the match with the most calls comes first, equal ones as they were."""
    return -len(match.nodes)


def select(graph: Matchable, matches: Iterable[Match]) -> Selection:
    """Take the matches in the order given, leaving out each that overlaps or makes a cycle with those taken before.

    Calls in no match stand alone. UsageError for a match of another graph.
    """
    quotient = _Quotient(GraphIndex.of(graph))
    chosen: list[Match] = []
    left_out: list[LeftOut] = []
    for match in matches:
        reason = quotient.refuses(match.nodes)
        if reason is None:
            quotient.take(match.nodes)
            chosen.append(match)
        else:
            left_out.append(LeftOut(match, reason))
    return Selection(tuple(chosen), tuple(left_out))


class _Quotient:
    """The graph with each taken region as one node."""

    def __init__(self, index: GraphIndex) -> None:
        self.index = index
        self.home: dict[str, tuple[str, ...]] = {}

    def take(self, nodes: tuple[str, ...]) -> None:
        self.home.update((name, nodes) for name in nodes)

    def refuses(self, nodes: tuple[str, ...]) -> str | None:
        """Why a region cannot be taken besides those taken already."""
        unknown = [name for name in nodes if name not in self.index.position]
        if unknown:
            raise UsageError(f"expected matches of this graph, got one with the node {unknown[0]!r}")
        for name in nodes:
            if name in self.home:
                return f"{name} is in the region of {self.home[name][0]} already"
        if len(nodes) == 1 or self._is_closed(nodes):
            return None
        return self._cycle(nodes)

    def _is_closed(self, nodes: tuple[str, ...]) -> bool:
        """Whether every call but the last is followed by calls of the region, and by no other.

        Each call of such a region leads to its last, so what goes through the region does so along a path of the
        graph: where there was no cycle before it was taken, there is none after. It needs no search.
        """
        inside = set(nodes)
        return all(self.index.after[name] and inside.issuperset(self.index.after[name]) for name in nodes[:-1])

    def _cycle(self, nodes: tuple[str, ...]) -> str | None:
        inside = set(nodes)
        waiting = [name for name in self._following(nodes) if name not in inside]
        seen = set(waiting)
        while waiting:
            start = waiting.pop()
            for name in self._following(self.home.get(start, (start,))):
                if name in inside:
                    return f"makes a cycle: a path from the region leads through {start} back into {name}"
                if name not in seen:
                    seen.update(self.home.get(name, (name,)))
                    waiting.append(name)
        return None

    def _following(self, nodes: tuple[str, ...]) -> Iterator[str]:
        for name in nodes:
            yield from self.index.after[name]
