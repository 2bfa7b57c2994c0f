"""Solutions without a solver: quick, never cyclic, within the budget. Where the exact stage starts, and its fallback.

Not here: the best solution (exact).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tapestry.placement.search.candidates import SOURCE, Kind
from tapestry.placement.search.problem import Choice, Priced, Problem, cycles

#: What a candidate saves, in nanoseconds.
Saving = Callable[[int], int]


def warm_start(problem: Problem, budget: float, forbidden: Sequence[frozenset[int]] = ()) -> Choice:
    """The best of a few quick solutions whose errors add to at most ``budget``; ties go to fewer regions.

    ``forbidden`` are sets of candidates that may not all be chosen. Everything on the source is always among the
    solutions. Takes time in proportion to the candidates' sizes, times the number of kinds.
    """
    best = on_source(problem)
    for choice in _solutions(problem, budget):
        allowed = problem.error(choice) <= budget and not any(known.issubset(choice) for known in forbidden)
        if allowed and _rank(problem, choice) < _rank(problem, best):
            best = choice
    return best


def on_source(problem: Problem) -> Choice:
    """Every node on the source."""
    return tuple(number for number, entry in enumerate(problem.priced) if entry.candidate.on_source)


def _rank(problem: Problem, choice: Choice) -> tuple[int, int]:
    return problem.cost(choice), problem.regions(choice)


def _solutions(problem: Problem, budget: float) -> Iterator[Choice]:
    source = _source_costs(problem)
    everything = range(len(problem.priced))
    kinds = sorted({entry.candidate.kind for entry in problem.priced} - {SOURCE})
    yield _greedy(problem, source, budget, everything)
    for kind in kinds:
        yield _greedy(problem, source, budget, [n for n in everything if problem.priced[n].candidate.kind == kind])
    yield _chain(problem, budget)


def _source_costs(problem: Problem) -> list[int]:
    found = [0] * len(problem.nodes)
    for entry in problem.priced:
        if entry.candidate.on_source:
            found[entry.places[0]] = entry.cost
    return found


# -------------------------------------------------------------------------------------------------------------- greedy


def _greedy(problem: Problem, source: Sequence[int], budget: float, allowed: Iterable[int]) -> Choice:
    """Take candidates by what they save of the source's time until nothing more fits; then break cycles."""

    def saving(number: int) -> int:
        entry = problem.priced[number]
        return sum(source[place] for place in entry.places) - entry.cost

    home: dict[int, int] = {}
    error = 0.0
    ordered = sorted(allowed, key=lambda number: (-saving(number), number))
    for number in ordered:
        entry = problem.priced[number]
        if entry.candidate.on_source or saving(number) <= 0 or error + entry.error > budget:
            continue
        if not any(place in home for place in entry.places):
            home.update(dict.fromkeys(entry.places, number))
            error += entry.error
    return acyclic(problem, sorted({*home.values()}), saving)


def acyclic(problem: Problem, chosen: Iterable[int], worth: Saving | None = None) -> Choice:
    """The chosen candidates without those of several nodes that are in a cycle, the least worth first; the rest of the
    nodes on the source.
    """
    kept = {number for number in chosen if not problem.priced[number].candidate.on_source}
    while True:
        choice = _completed(problem, kept)
        found = cycles(problem, choice)
        if not found:
            return choice
        for loop in found:
            if kept.issuperset(loop):
                kept.discard(min(loop, key=lambda number: (worth(number) if worth else 0, number)))


def _completed(problem: Problem, kept: set[int]) -> Choice:
    covered = {place for number in kept for place in problem.priced[number].places}
    rest = [number for number in on_source(problem) if problem.priced[number].places[0] not in covered]
    return tuple(sorted((*kept, *rest)))


# --------------------------------------------------------------------------------------------------------------- chain


def _chain(problem: Problem, budget: float) -> Choice:
    """The best cut of the program order into stretches, by dynamic programming over (place, kind of the last stretch).

    A value is taken to come from the stretch before: exact for a chain of nodes, an estimate for other graphs, whose
    true cost is looked at afterwards. Stretches depend on each other in no cycle. Each has its share of the budget.
    """
    reads = _reads(problem)
    ending: list[list[int]] = [[] for _ in range(len(problem.nodes) + 1)]
    for number, entry in enumerate(problem.priced):
        places = entry.places
        stretch = places[-1] - places[0] + 1 == len(places)
        if stretch and entry.error <= budget * len(places) / len(problem.nodes):
            ending[places[-1] + 1].append(number)
    best: list[dict[Kind, tuple[int, int, Kind]]] = [{SOURCE: (0, -1, SOURCE)}]
    for end in range(1, len(problem.nodes) + 1):
        row: dict[Kind, tuple[int, int, Kind]] = {}
        for number in ending[end]:
            entry = problem.priced[number]
            kind = entry.candidate.kind
            cost, before = _cheapest(problem, entry, best[entry.places[0]], reads)
            if kind not in row or cost < row[kind][0]:
                row[kind] = (cost, number, before)
        best.append(row)
    return _back(problem, best)


def _cheapest(
    problem: Problem, entry: Priced, row: dict[Kind, tuple[int, int, Kind]], reads: Sequence[Sequence[tuple[int, int]]]
) -> tuple[int, Kind]:
    kind, first = entry.candidate.kind, entry.places[0]
    sizes = {value: nbytes for place in entry.places for value, nbytes in reads[place] if _made(problem, value) < first}
    found: list[tuple[int, Kind]] = []
    for before, (cost, _, _) in row.items():
        crossing = 0 if before == kind else sum(problem.boundary[before, kind, nbytes] for nbytes in sizes.values())
        found.append((cost + crossing + entry.cost, before))
    return min(found)


def _made(problem: Problem, value: int) -> int:
    producer = problem.values[value].producer
    return -1 if producer is None else producer


def _reads(problem: Problem) -> list[list[tuple[int, int]]]:
    """Node → the values that it reads, by number, with their bytes."""
    found: list[list[tuple[int, int]]] = [[] for _ in problem.nodes]
    for number, value in enumerate(problem.values):
        for reader in value.readers:
            found[reader].append((number, value.nbytes))
    return found


def _back(problem: Problem, best: Sequence[dict[Kind, tuple[int, int, Kind]]]) -> Choice:
    kind = min(best[-1], key=lambda key: (best[-1][key][0], key))
    chosen: list[int] = []
    place = len(problem.nodes)
    while place:
        _, number, before = best[place][kind]
        chosen.append(number)
        place, kind = problem.priced[number].places[0], before
    return tuple(sorted(chosen))
