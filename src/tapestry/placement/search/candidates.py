"""Candidates: the regions that a search chooses from, each with the backend, options and device that would run it.

They come from the rules of the backends (matches, growth, whole graphs), from the module tree (repeated blocks), and
from halving the whole. Every node has one on the source. Not here: what they cost (costs), and choosing (exact).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from tapestry.backends.base import Backend, Options
from tapestry.backends.rules.index import GraphIndex
from tapestry.backends.rules.rule import Match
from tapestry.placement.search.blocks import NodeSet, convex_parts, halves, module_blocks
from tapestry.program.program import Program
from tapestry.runtime.device import DeviceInfo


class Kind(NamedTuple):
    """Who holds a value: a backend on a device. Values that go from one kind to another are converted."""

    backend: str
    device: str


#: The source, node by node: PyTorch on the CPU.
SOURCE = Kind("source", "")


@dataclass(frozen=True)
class Way:
    """A backend with one of its options on a device: a way to run regions."""

    backend: Backend
    options: Options
    info: DeviceInfo

    @property
    def kind(self) -> Kind:
        return Kind(self.backend.name, self.info.name)


@dataclass(frozen=True)
class Candidate:
    """Nodes, in program order, that ``kind`` would run as one region with ``options`` (``key=value,…``).

    ``why`` says where it comes from: a rule's label, ``node``, ``module``, ``whole``, ``half``, ``around`` what another
    backend takes, ``merged`` from a solution's regions, or ``source``.
    """

    nodes: NodeSet
    kind: Kind
    options: str = ""
    why: str = field(default="", compare=False)

    @property
    def on_source(self) -> bool:
        return self.kind == SOURCE

    def __str__(self) -> str:
        first, *others = self.nodes
        last = f" … {others[-1]}" if others else ""
        options = f" ({self.options})" if self.options else ""
        place = self.kind.backend if self.on_source else f"{self.kind.backend}{options} on {self.kind.device}"
        return f"{first}{last} [{len(self.nodes)}] by {place}"


@dataclass(frozen=True)
class LeftOut:
    """How many sets of nodes of a backend on a device are no candidates although a rule gave them, and why."""

    kind: Kind
    count: int
    reason: str


@dataclass(frozen=True)
class Bounds:
    """What keeps the number of candidates in proportion to the number of nodes.

    Of the sets of one kind that begin at one node, ``per_node`` are kept, the largest first. Of the growth of one rule
    from one node, every stage of up to ``small`` calls is kept, and above that each that has at most half of the
    calls of the next larger one kept.
    """

    per_node: int = 24
    small: int = 8


@dataclass(frozen=True)
class Candidates:
    """All candidates of a program: those on the source first, one for each node that is not folded."""

    program: Program
    entries: tuple[Candidate, ...]
    ways: tuple[Way, ...]
    left_out: tuple[LeftOut, ...]

    @cached_property
    def index(self) -> GraphIndex:
        """The program as rules see it."""
        return GraphIndex.of(self.program)

    def way(self, candidate: Candidate) -> Way:
        """How a candidate that is not on the source would run. KeyError for one of another search."""
        for way in self.ways:
            if way.kind == candidate.kind and str(way.options) == candidate.options:
                return way
        raise KeyError(candidate)


def ways_of(backends: Sequence[Backend], infos: Sequence[DeviceInfo]) -> tuple[Way, ...]:
    """Every option of every backend on every device of its kinds."""
    return tuple(
        Way(backend, options, info)
        for info in infos
        for backend in backends
        if info.kind in backend.device_kinds
        for options in backend.options()
    )


def candidates_of(program: Program, ways: Sequence[Way], bounds: Bounds | None = None) -> Candidates:
    """The candidates of a program in these ways. RuleError for a faulty rule of a backend.

    Takes time in proportion to the nodes, their modules' depth and the ways, apart from what the rules themselves take.
    """
    limits = bounds or Bounds()
    index = GraphIndex.of(program)
    entries = [Candidate((node.id,), SOURCE, why="source") for node in program.nodes if node.id not in program.folded]
    left_out: list[LeftOut] = []
    first = {way.kind: way for way in reversed(ways)}
    taken = {kind: _taken(program, index, way) for kind, way in first.items()}
    sets: dict[Kind, dict[NodeSet, str]] = {}
    for way in ways:
        if way.kind not in sets:
            others = [nodes for kind, nodes in taken.items() if kind != way.kind]
            found, dropped = _bounded(_sets(program, index, way, taken[way.kind], others, limits), limits)
            sets[way.kind] = found
            if dropped:
                reason = f"more than {limits.per_node} sets that begin at one node; the largest were kept"
                left_out.append(LeftOut(way.kind, dropped, reason))
        entries += [Candidate(nodes, way.kind, str(way.options), why) for nodes, why in sets[way.kind].items()]
    return Candidates(program, tuple(entries), tuple(ways), tuple(left_out))


def _taken(program: Program, index: GraphIndex, way: Way) -> list[str]:
    """The nodes that a backend takes one by one, in order."""
    return [node_id for node_id in program.placeable if way.backend.refuses_in(index, node_id, way.info) is None]


def _sets(
    program: Program, index: GraphIndex, way: Way, taken: Sequence[str], others: Sequence[Sequence[str]], limits: Bounds
) -> Iterator[tuple[NodeSet, str]]:
    """Sets of nodes that the backend may be given, with where they come from; some of them twice."""
    backend, info = way.backend, way.info
    yield from (((node_id,), "node") for node_id in taken)
    yield from _matched(backend.matches(index, info), limits)
    if not backend.fuses:
        return
    for whole in convex_parts(index, taken):
        yield whole, "whole"
        yield from ((half, "half") for half in halves(whole))
    yield from ((block, "module") for block in module_blocks(program, index, taken))
    for other in others:
        left = set(taken).difference(other)
        if 0 < len(left) < len(taken):
            yield from ((part, "around") for part in convex_parts(index, left))


def _matched(matches: Iterator[Match], limits: Bounds) -> Iterator[tuple[NodeSet, str]]:
    """Matches by their nodes. A growth, whose stages come largest first, is thinned as ``Bounds`` says."""
    last: tuple[object, str, int] | None = None
    for match in matches:
        size, start = len(match.nodes), match.nodes[0]
        if last is not None and last[:2] == (match.rule, start) and limits.small < size and 2 * size > last[2]:
            continue
        last = (match.rule, start, size)
        yield match.nodes, match.rule.label


def _bounded(sets: Iterator[tuple[NodeSet, str]], limits: Bounds) -> tuple[dict[NodeSet, str], int]:
    """Each set once, at most ``per_node`` with one first node; and how many were dropped for that."""
    found: dict[NodeSet, str] = {}
    for nodes, why in sets:
        found.setdefault(nodes, why)
    count: Counter[str] = Counter()
    kept: set[NodeSet] = set()
    for nodes in sorted(found, key=_largest_first):
        # A node by itself is what the others fall back on.
        if len(nodes) == 1 or count[nodes[0]] < limits.per_node:
            kept.add(nodes)
            count[nodes[0]] += len(nodes) > 1
    return {nodes: why for nodes, why in found.items() if nodes in kept}, len(found) - len(kept)


def _largest_first(nodes: Collection[str]) -> int:
    return -len(nodes)
