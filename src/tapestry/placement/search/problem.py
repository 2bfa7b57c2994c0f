"""The choice of regions as a problem in integers: candidates with their costs, values that may cross between kinds.

A solution covers every node exactly once, and its regions depend on each other in no cycle. Its cost is the sum of its
regions' and of one conversion for each (value, producer kind, consumer kind) that it needs. Not here: solving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tapestry.placement.search.candidates import SOURCE, Candidate, Candidates, Kind
from tapestry.placement.search.costs import CostModel, RefusedError
from tapestry.program.graph import Ref, operands
from tapestry.program.program import Program

#: Nanoseconds in a second: costs are compared as integers, so that every sum is exact.
_NANO = 1_000_000_000
#: Errors are counted in this part of the budget, each rounded up.
ERROR_STEPS = 1_000_000_000


@dataclass(frozen=True)
class Priced:
    """A candidate with its cost in nanoseconds and its error (as of ``max_rel_error``). ``places`` number its nodes."""

    candidate: Candidate
    places: tuple[int, ...]
    cost: int
    error: float


@dataclass(frozen=True)
class Value:
    """A value that may cross: who makes it and who reads it, by the numbers of nodes.

    ``producer`` is None for what the caller gives; ``leaves`` says that the caller gets it.
    """

    ref: Ref
    producer: int | None
    readers: tuple[int, ...]
    leaves: bool
    nbytes: int


@dataclass(frozen=True)
class Refusal:
    """A candidate that a cost model refused, and why."""

    candidate: Candidate
    reason: str


#: Positions of the chosen candidates in ``Problem.priced``, ascending.
Choice = tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """``nodes`` are numbered in program order; ``after`` gives the nodes that must run after each."""

    nodes: tuple[str, ...]
    after: tuple[tuple[int, ...], ...]
    values: tuple[Value, ...]
    priced: tuple[Priced, ...]
    boundary: Mapping[tuple[Kind, Kind, int], int]

    @cached_property
    def covering(self) -> tuple[tuple[int, ...], ...]:
        """Node → the candidates that hold it."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for number, entry in enumerate(self.priced):
            for place in entry.places:
                found[place].append(number)
        return tuple(map(tuple, found))

    def homes(self, choice: Iterable[int]) -> list[int]:
        """Node → the chosen candidate that holds it. ValueError unless each is held exactly once."""
        home = [-1] * len(self.nodes)
        for number in choice:
            for place in self.priced[number].places:
                if home[place] != -1:
                    raise ValueError(f"{self.nodes[place]} is covered twice")
                home[place] = number
        if -1 in home:
            raise ValueError(f"{self.nodes[home.index(-1)]} is not covered")
        return home

    def cost(self, choice: Iterable[int]) -> int:
        """Nanoseconds of a choice that covers every node once."""
        chosen = tuple(choice)
        home = self.homes(chosen)
        total = sum(self.priced[number].cost for number in chosen)
        return total + sum(self.boundary[crossing] for _, crossing in self._crossings(home))

    def crossings(self, choice: Iterable[int]) -> tuple[tuple[Ref, Kind, Kind], ...]:
        """The conversions that a choice needs, each once."""
        return tuple((ref, given, wanted) for ref, (given, wanted, _) in self._crossings(self.homes(choice)))

    def _crossings(self, home: Sequence[int]) -> Iterable[tuple[Ref, tuple[Kind, Kind, int]]]:
        kinds = [self.priced[number].candidate.kind for number in home]
        for value in self.values:
            given = SOURCE if value.producer is None else kinds[value.producer]
            wanted = {kinds[reader] for reader in value.readers}
            if value.leaves:
                wanted.add(SOURCE)
            yield from ((value.ref, (given, kind, value.nbytes)) for kind in sorted(wanted) if kind != given)

    def error(self, choice: Iterable[int]) -> float:
        """The first-order estimate of a choice's error: those of its regions add."""
        return sum(self.priced[number].error for number in choice)

    def regions(self, choice: Iterable[int]) -> int:
        """How many regions a choice places: the fewer the simpler. Nodes on the source count for none."""
        return sum(not self.priced[number].candidate.on_source for number in choice)

    def cycle(self, choice: Sequence[int]) -> tuple[int, ...] | None:
        """Chosen candidates that depend on each other in a cycle, or None."""
        found = cycles(self, choice, most=1)
        return found[0] if found else None


def cycles(problem: Problem, choice: Sequence[int], most: int = 64) -> list[tuple[int, ...]]:
    """Sets of chosen candidates that form a cycle, a shortest one through each candidate; empty when there is none.

    Only candidates of several nodes are named: whatever runs the nodes between them, these together are a cycle.
    """
    home = problem.homes(choice)
    after: dict[int, set[int]] = {number: set() for number in choice}
    for place, followers in enumerate(problem.after):
        after[home[place]].update(home[other] for other in followers if home[other] != home[place])
    tangled = _tangled(after)
    found: dict[tuple[int, ...], None] = {}
    for start in sorted(number for number in tangled if len(problem.priced[number].places) > 1):
        loop = _shortest(after, start, tangled)
        if loop is not None:
            found[tuple(sorted(number for number in loop if len(problem.priced[number].places) > 1))] = None
        if len(found) >= most:
            break
    return list(found)


def _tangled(after: Mapping[int, set[int]]) -> set[int]:
    """What is left when all that has nothing before it, and then all that has nothing after it, is taken away."""
    before: dict[int, set[int]] = {number: set() for number in after}
    for number, followers in after.items():
        for other in followers:
            before[other].add(number)
    return _stripped(_stripped(set(after), after, before), before, after)


def _stripped(left: set[int], after: Mapping[int, set[int]], before: Mapping[int, set[int]]) -> set[int]:
    waiting = {number: sum(other in left for other in before[number]) for number in left}
    ready = [number for number, count in waiting.items() if count == 0]
    while ready:
        number = ready.pop()
        del waiting[number]
        for other in after[number]:
            if other in waiting:
                waiting[other] -= 1
                if waiting[other] == 0:
                    ready.append(other)
    return set(waiting)


def _shortest(after: Mapping[int, set[int]], start: int, inside: set[int]) -> list[int] | None:
    """The shortest loop through ``start``, or None."""
    came: dict[int, int] = {}
    level = [start]
    while level:
        following: list[int] = []
        for number in level:
            for other in sorted(after[number] & inside):
                if other == start:
                    loop = [number]
                    while loop[-1] != start:
                        loop.append(came[loop[-1]])
                    return loop
                if other not in came:
                    came[other] = number
                    following.append(other)
        level = following
    return None


# -------------------------------------------------------------------------------------------------------------- making


@dataclass(frozen=True)
class Pricing:
    """A problem, the candidates that are not in it because they were refused, and how many were not asked for."""

    problem: Problem
    refused: tuple[Refusal, ...]
    left_out: int

    def extended(self, program: Program, more: Iterable[Candidate], costs: CostModel) -> Pricing:
        """The same with more candidates, of kinds that it has already; the numbers of the others stay."""
        number = {node_id: place for place, node_id in enumerate(self.problem.nodes)}
        priced, refused, _ = _priced(more, number, costs, None)
        problem = replace(self.problem, priced=(*self.problem.priced, *priced))
        return Pricing(problem, (*self.refused, *refused), self.left_out)


def problem_of(candidates: Candidates, costs: CostModel, stop: Callable[[], bool] | None = None) -> Pricing:
    """Ask a cost model for everything that the problem needs.

    Sets of nodes are asked for largest first, each in all its ways, nodes on the source before all others; when
    ``stop`` says so, what has not been asked for yet is left out. The source has no error: it is what the others are
    measured against. RefusedError when a node does not run on the source.
    """
    program = candidates.program
    nodes = tuple(node.id for node in program.nodes if node.id not in program.folded)
    number = {node_id: place for place, node_id in enumerate(nodes)}
    priced, refused, left_out = _priced(sorted(candidates.entries, key=_order), number, costs, stop)
    values = _values(program, number)
    kinds = {SOURCE, *(entry.candidate.kind for entry in priced)}
    boundary = _boundaries(values, sorted(kinds), costs)
    problem = Problem(nodes, _after(program, number), values, tuple(priced), boundary)
    return Pricing(problem, tuple(refused), left_out)


def _priced(
    candidates: Iterable[Candidate], number: Mapping[str, int], costs: CostModel, stop: Callable[[], bool] | None
) -> tuple[list[Priced], list[Refusal], int]:
    priced: list[Priced] = []
    refused: list[Refusal] = []
    left_out = 0
    for candidate in candidates:
        if stop is not None and not candidate.on_source and stop():
            left_out += 1
            continue
        try:
            cost = costs.region(candidate)
            error = 0.0 if candidate.on_source else costs.error(candidate)
        except RefusedError as refusal:
            if candidate.on_source:
                raise
            refused.append(Refusal(candidate, str(refusal)))
            continue
        places = tuple(number[node_id] for node_id in candidate.nodes)
        priced.append(Priced(candidate, places, nanoseconds(cost), error))
    return priced, refused, left_out


def nanoseconds(seconds: float) -> int:
    """Seconds as whole nanoseconds. ValueError for what is no time."""
    if not 0 <= seconds < 1e9:
        raise ValueError(f"expected a time in seconds, got {seconds}")
    return round(seconds * _NANO)


def _order(candidate: Candidate) -> tuple[bool, int]:
    return not candidate.on_source, -len(candidate.nodes)


def _after(program: Program, number: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    found: list[dict[int, None]] = [{} for _ in number]
    for node_id, place in number.items():
        for ref in operands(program.by_id[node_id].call):
            if ref.name in number:
                found[number[ref.name]][place] = None
        if node_id in program.random_before:
            found[number[program.random_before[node_id]]][place] = None
    return tuple(map(tuple, found))


def _values(program: Program, number: Mapping[str, int]) -> tuple[Value, ...]:
    """What may cross: everything that is not constant. A state stays with whoever wrote it in the call before."""
    staying = _staying(program, number)
    readers: dict[Ref, dict[int, None]] = {}
    for node_id, place in number.items():
        for ref in operands(program.by_id[node_id].call):
            if not program.is_constant(ref):
                readers.setdefault(ref, {})[place] = None
    given = {output.value for output in program.outputs if isinstance(output.value, Ref)}
    leaving = {ref for ref in program.results if ref in given or ref not in staying.values()}
    found: list[Value] = []
    for ref in dict.fromkeys((*readers, *sorted(leaving))):
        if program.is_constant(ref):
            continue
        producer = number.get(ref.name)
        if ref in staying:
            producer = number[staying[ref].name]
        found.append(Value(ref, producer, tuple(readers.get(ref, ())), ref in leaving, program.spec(ref).nbytes))
    return tuple(found)


def _staying(program: Program, number: Mapping[str, int]) -> dict[Ref, Ref]:
    """Old value → new one of the states that need not come back to the source after each call (placement.state)."""
    seen = {output.alias.base.name for output in program.outputs if output.alias and isinstance(output.alias.base, Ref)}
    found: dict[Ref, Ref] = {}
    for entry in program.state:
        own = entry.name in program.tensors and entry.name not in seen
        if own and entry.result.name in number and entry.result not in found.values():
            found[Ref(entry.name)] = entry.result
    return found


def _boundaries(values: Iterable[Value], kinds: Sequence[Kind], costs: CostModel) -> dict[tuple[Kind, Kind, int], int]:
    sizes = sorted({value.nbytes for value in values})
    pairs = [(given, wanted) for given in kinds for wanted in kinds if given != wanted]
    return {
        (given, wanted, nbytes): nanoseconds(costs.boundary(given, wanted, nbytes))
        for given, wanted in pairs
        for nbytes in sizes
    }
