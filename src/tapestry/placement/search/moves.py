"""Neighbours of a choice: what one more candidate, or one less, makes of it; and what a single backend makes of all.

Not here: measuring them (search).
"""

from __future__ import annotations

from collections.abc import Iterator

from tapestry.placement.search.blocks import convex_parts
from tapestry.placement.search.candidates import Candidate, Candidates, Kind
from tapestry.placement.search.problem import Choice, Problem
from tapestry.placement.search.warm import acyclic

#: Moves whose cost is worked out in full, of those that look best at first sight.
_LOOKED_AT = 96


def neighbours(problem: Problem, choice: Choice, budget: float, worse: float = 1.25) -> list[Choice]:
    """Choices one move away that the model takes to be at most ``worse`` times as slow, the fastest first.

    A move puts a candidate in the place of all that it overlaps, whose other nodes stay with their way as far as it
    has candidates for them, or takes a region back to the source. So regions are merged, cut, moved and dropped. Their
    errors add to at most ``budget``.
    """
    home = problem.homes(choice)
    sketched = sorted(_sketched(problem, choice, home))[:_LOOKED_AT]
    found: dict[Choice, int] = {}
    most = worse * problem.cost(choice)
    for _, number in sketched:
        moved = _moved(problem, choice, home, number)
        if moved != choice and moved not in found and problem.error(moved) <= budget and not problem.cycle(moved):
            cost = problem.cost(moved)
            if cost <= most:
                found[moved] = cost
    return sorted(found, key=lambda moved: (found[moved], problem.regions(moved), moved))


def _sketched(problem: Problem, choice: Choice, home: list[int]) -> Iterator[tuple[int, int]]:
    """(nanoseconds that a move adds, without conversions; the candidate put in, or taken out if it is chosen)."""
    source = _source(problem)
    inside = set(choice)
    for number, entry in enumerate(problem.priced):
        if entry.candidate.on_source:
            continue
        if number in inside:
            yield sum(problem.priced[source[place]].cost for place in entry.places) - entry.cost, number
            continue
        displaced = {home[place] for place in entry.places}
        taken = set(entry.places)
        freed = sum(problem.priced[other].cost for other in displaced)
        left = (place for other in displaced for place in problem.priced[other].places if place not in taken)
        yield entry.cost + sum(problem.priced[source[place]].cost for place in left) - freed, number


def _moved(problem: Problem, choice: Choice, home: list[int], number: int) -> Choice:
    source = _source(problem)
    entry = problem.priced[number]
    if number in choice:
        kept = [other for other in choice if other != number]
        return tuple(sorted((*kept, *(source[place] for place in entry.places))))
    displaced = sorted({home[place] for place in entry.places})
    taken = set(entry.places)
    filled: list[int] = []
    for other in displaced:
        left = set(problem.priced[other].places) - taken
        filled += _filled(problem, problem.priced[other].candidate, left)
        taken |= left
    return tuple(sorted((number, *filled, *(other for other in choice if other not in displaced))))


def _filled(problem: Problem, former: Candidate, left: set[int]) -> Iterator[int]:
    """Candidates that hold these nodes: of the way that held them, the largest first, and of the source."""
    inside = {number for place in left for number in problem.covering[place]}
    same = [number for number in inside if _is(problem.priced[number].candidate, former.kind, former.options)]
    rest = set(left)
    for number in sorted(same, key=lambda number: (-len(problem.priced[number].places), number)):
        if rest.issuperset(problem.priced[number].places):
            rest -= set(problem.priced[number].places)
            yield number
    for place in sorted(rest):
        yield next(n for n in problem.covering[place] if problem.priced[n].candidate.on_source)


def _source(problem: Problem) -> dict[int, int]:
    """Node → its candidate on the source."""
    return {entry.places[0]: number for number, entry in enumerate(problem.priced) if entry.candidate.on_source}


def merged(candidates: Candidates, problem: Problem, choice: Choice) -> list[Candidate]:
    """New candidates: what the regions of one way in a choice are together, in as few regions as they can be.

    Only of backends that fuse; what is a candidate already is left out.
    """
    nodes: dict[tuple[Kind, str], list[str]] = {}
    for number in choice:
        candidate = problem.priced[number].candidate
        if not candidate.on_source and candidates.way(candidate).backend.fuses:
            nodes.setdefault((candidate.kind, candidate.options), []).extend(candidate.nodes)
    found = [
        Candidate(part, kind, options, "merged")
        for (kind, options), names in nodes.items()
        for part in convex_parts(candidates.index, names)
    ]
    known = {*candidates.entries, *(entry.candidate for entry in problem.priced)}
    return [candidate for candidate in found if candidate not in known]


def single(problem: Problem, kind: Kind, options: str) -> Choice:
    """As much as one backend with one option can take, in as few and as large regions as there are candidates for."""
    mine = [number for number, entry in enumerate(problem.priced) if _is(entry.candidate, kind, options)]
    taken: set[int] = set()
    chosen: list[int] = []
    for number in sorted(mine, key=lambda number: (-len(problem.priced[number].places), number)):
        places = problem.priced[number].places
        if taken.isdisjoint(places):
            taken.update(places)
            chosen.append(number)
    return acyclic(problem, chosen, lambda number: len(problem.priced[number].places))


def _is(candidate: Candidate, kind: Kind, options: str) -> bool:
    return candidate.kind == kind and candidate.options == options
