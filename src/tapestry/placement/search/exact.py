"""The best choice of candidates, by constraint programming (CP-SAT of OR-Tools, the extra ``place``).

One Boolean for each candidate; every node is covered exactly once; one Boolean for each conversion of a value from one
kind to another, however many read the result. Cycles between regions are cut off when a solution has one. Errors add,
to first order; a solution whose measured error is over the budget is solved again under a tighter one. One worker, a
fixed seed and a limit in the solver's own deterministic time: the same problem gives the same choice.

Not here: what candidates cost (costs), and moves that are measured end to end (refine).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

from tapestry.extras import missing
from tapestry.placement.search.candidates import SOURCE, Kind
from tapestry.placement.search.problem import ERROR_STEPS, Choice, Problem, cycles
from tapestry.placement.search.warm import acyclic, on_source, warm_start
from tapestry.program.graph import Ref

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

#: The sum of all coefficients of an objective stays below this: CP-SAT computes in 64 bits.
_LARGEST = 1 << 61
#: Seconds between looks at the clock while the solver works.
_LOOK = 0.1

#: The measured ``max_rel_error`` of a choice.
Verify = Callable[[Choice], float]
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Effort:
    """How much the solver may work. ``work`` is CP-SAT's deterministic time, about a second each, over all solves.

    ``rounds`` bounds how often cycles are cut, ``tightenings`` how often a solution over the budget is solved again.
    """

    work: float = 60.0
    rounds: int = 200
    tightenings: int = 12
    seed: int = 0


@dataclass(frozen=True)
class Solution:
    """A choice with its cost and the proven lower bound of any choice within ``limit``, in nanoseconds.

    ``error`` is the first-order estimate, ``measured`` what ``verify`` said of it (None when it was not asked).
    ``limit`` is the budget that it was solved for at last: tighter than the one asked for where measured errors made it
    so. ``cuts`` counts the cycles that were cut off, ``solves`` the calls of the solver.
    """

    choice: Choice
    cost: int
    bound: int
    error: float
    limit: float
    measured: float | None = None
    cuts: int = 0
    solves: int = 0
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """How far the cost may be above the best one, as a part of it: 0 when it is proven best."""
        return (self.cost - self.bound) / self.cost if self.cost > self.bound else 0.0


def solve(
    problem: Problem,
    budget: float = math.inf,
    verify: Verify | None = None,
    effort: Effort | None = None,
    stop: Stop | None = None,
) -> Solution:
    """The cheapest choice whose errors add to at most ``budget``; among equal ones, that with the fewest regions.

    There is always an answer: at worst everything on the source. ``stop`` or Ctrl-C ends the work with the best choice
    so far (``interrupted``). EnvironmentProblem, with the install line, when OR-Tools is missing.
    """
    allowed = effort or Effort()
    forbidden: list[frozenset[int]] = []
    limit = budget
    spent = _Spent(allowed.work)
    solution = _solved(problem, limit, forbidden, allowed, spent, stop)
    for _ in range(allowed.tightenings):
        if verify is None or solution.interrupted:
            return solution
        measured = verify(solution.choice)
        solution = replace(solution, measured=measured)
        placed = _placed(problem, solution.choice)
        if measured <= budget or not placed:
            return solution
        forbidden.append(placed)
        limit = _tighter(limit, budget, solution.error, measured)
        solution = _solved(problem, limit, forbidden, allowed, spent, stop)
    if solution.interrupted or verify is None or verify(solution.choice) <= budget:
        return solution
    choice = on_source(problem)
    return replace(solution, choice=choice, cost=problem.cost(choice), error=0.0, measured=verify(choice))


def _tighter(limit: float, budget: float, estimate: float, measured: float) -> float:
    """The limit on the estimate under which the measured error would have been within the budget, were they in
    proportion. An error that is no number says nothing of how much.
    """
    if estimate <= 0:
        return limit
    ratio = budget / measured if math.isfinite(measured) else 0.0
    return min(limit, estimate * ratio)


def _placed(problem: Problem, choice: Choice) -> frozenset[int]:
    return frozenset(number for number in choice if not problem.priced[number].candidate.on_source)


@dataclass
class _Spent:
    """The deterministic time that is left."""

    left: float


def _solved(
    problem: Problem,
    limit: float,
    forbidden: Sequence[frozenset[int]],
    effort: Effort,
    spent: _Spent,
    stop: Stop | None,
) -> Solution:
    best = warm_start(problem, limit, forbidden)
    model = _Model(problem, limit, forbidden, problem.cost(best))
    bound, cuts, solves = 0, 0, 0
    interrupted = False
    while solves < effort.rounds and spent.left > 0 and not interrupted:
        model.hint(best)
        answer = model.solve(effort.seed, spent, stop)
        solves += 1
        bound, interrupted = max(bound, answer.bound), answer.interrupted
        if answer.choice is None:
            break
        loops = cycles(problem, answer.choice)
        found = acyclic(problem, answer.choice) if loops else answer.choice
        if not _is_forbidden(found, forbidden) and _rank(problem, found) < _rank(problem, best):
            best = found
        if not loops:
            break
        model.cut(loops)
        cuts += len(loops)
    cost = problem.cost(best)
    return Solution(best, cost, min(bound, cost), problem.error(best), limit, None, cuts, solves, interrupted)


def _is_forbidden(choice: Choice, forbidden: Sequence[frozenset[int]]) -> bool:
    return any(known.issubset(choice) for known in forbidden)


def _rank(problem: Problem, choice: Choice) -> tuple[int, int, Choice]:
    return problem.cost(choice), problem.regions(choice), choice


# --------------------------------------------------------------------------------------------------------------- model


@dataclass(frozen=True)
class _Answer:
    choice: Choice | None
    bound: int
    interrupted: bool


class _Model:
    """The problem as CP-SAT sees it. Candidates that no best solution has are left out."""

    def __init__(self, problem: Problem, limit: float, forbidden: Sequence[frozenset[int]], known: int) -> None:
        self.cp = _cp_model()
        self.problem = problem
        self.model = self.cp.CpModel()
        self.chosen = {number: self.model.new_bool_var(f"x{number}") for number in _useful(problem, limit, known)}
        self.by_kind: list[dict[Kind, list[int]]] = [{} for _ in problem.nodes]
        for number in self.chosen:
            entry = problem.priced[number]
            for place in entry.places:
                self.by_kind[place].setdefault(entry.candidate.kind, []).append(number)
        self._held: dict[tuple[int, Kind], cp_model.LinearExprT] = {}
        self._sums: dict[tuple[int, Kind], cp_model.IntVar] = {}
        self._crossing: dict[tuple[Ref, Kind, Kind], tuple[cp_model.IntVar, int]] = {}
        for kinds in self.by_kind:
            self.model.add_exactly_one(self.chosen[number] for numbers in kinds.values() for number in numbers)
        for value in problem.values:
            self._value(value.ref, value.producer, value.readers, value.leaves, value.nbytes)
        self._budget(limit)
        for combination in forbidden:
            self._not_all(combination)
        self.scale = self._objective()

    def _value(self, ref: Ref, producer: int | None, readers: tuple[int, ...], leaves: bool, nbytes: int) -> None:
        """A kind in which a value is read must be its producer's, or the value is converted to it, once."""
        givers = {SOURCE: []} if producer is None else self.by_kind[producer]
        wanting: dict[Kind, list[int | None]] = {}
        for reader in readers:
            for kind in self.by_kind[reader]:
                wanting.setdefault(kind, []).append(reader)
        if leaves:
            wanting.setdefault(SOURCE, []).append(None)
        for kind, places in wanting.items():
            others = [giver for giver in givers if giver != kind and self.problem.boundary[giver, kind, nbytes]]
            if not others:
                continue
            arriving = [self._converted(ref, producer, giver, kind, nbytes) for giver in others]
            free = [giver for giver in givers if giver not in others]
            for place in places:
                here = [self._holds(producer, giver) for giver in free]
                wanted = 1 if place is None else self._holds(place, kind)
                self.model.add(self.cp.LinearExpr.sum([*arriving, *here]) >= wanted)

    def _converted(self, ref: Ref, producer: int | None, giver: Kind, kind: Kind, nbytes: int) -> cp_model.IntVar:
        variable = self.model.new_bool_var(f"y{len(self._crossing)}")
        self._crossing[ref, giver, kind] = (variable, self.problem.boundary[giver, kind, nbytes])
        self.model.add(variable <= self._holds(producer, giver))
        return variable

    def _holds(self, place: int | None, kind: Kind) -> cp_model.LinearExprT:
        """Whether a node is run by a kind; the caller (None) is the source."""
        if place is None:
            return int(kind == SOURCE)
        if (place, kind) not in self._held:
            numbers = self.by_kind[place].get(kind, [])
            if not numbers:
                self._held[place, kind] = 0
            elif len(numbers) == 1:
                self._held[place, kind] = self.chosen[numbers[0]]
            else:
                total = self.model.new_bool_var(f"z{place}.{len(self._sums)}")
                self.model.add(sum(self.chosen[number] for number in numbers) == total)
                self._held[place, kind] = self._sums[place, kind] = total
        return self._held[place, kind]

    def _budget(self, limit: float) -> None:
        if not math.isfinite(limit) or limit <= 0:
            return
        steps = {
            number: math.ceil(self.problem.priced[number].error / limit * ERROR_STEPS)
            for number in self.chosen
            if self.problem.priced[number].error > 0
        }
        if sum(steps.values()) > ERROR_STEPS:
            self.model.add(sum(count * self.chosen[number] for number, count in steps.items()) <= ERROR_STEPS)

    def _not_all(self, combination: frozenset[int]) -> None:
        if all(number in self.chosen for number in combination):
            self.model.add_bool_or(~self.chosen[number] for number in sorted(combination))

    def _objective(self) -> int:
        """Nanoseconds first, then the number of regions; returns what a nanosecond counts for."""
        costs = {number: self.problem.priced[number].cost for number in self.chosen}
        total = sum(costs.values()) + sum(cost for _, cost in self._crossing.values()) + 1
        scale = max(1, min(len(self.problem.nodes) + 1, _LARGEST // total))
        self.model.minimize(
            sum((costs[number] * scale + self._counts(number, scale)) * self.chosen[number] for number in self.chosen)
            + sum(cost * scale * variable for variable, cost in self._crossing.values())
        )
        return scale

    def _counts(self, number: int, scale: int) -> int:
        return int(scale > len(self.problem.nodes) and not self.problem.priced[number].candidate.on_source)

    def hint(self, choice: Choice) -> None:
        """Start from this choice."""
        self.model.clear_hints()
        inside = set(choice)
        for number, variable in self.chosen.items():
            self.model.add_hint(variable, int(number in inside))
        home = self.problem.homes(choice)
        for (place, kind), variable in self._sums.items():
            self.model.add_hint(variable, int(self.problem.priced[home[place]].candidate.kind == kind))
        crossing = set(self.problem.crossings(choice))
        for key, (variable, _) in self._crossing.items():
            self.model.add_hint(variable, int(key in crossing))

    def cut(self, loops: Sequence[Sequence[int]]) -> None:
        """Forbid that the candidates of a cycle are all chosen."""
        for loop in loops:
            self.model.add_bool_or(~self.chosen[number] for number in loop)

    def solve(self, seed: int, spent: _Spent, stop: Stop | None) -> _Answer:
        solver = self.cp.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = seed
        solver.parameters.max_deterministic_time = spent.left
        # Ctrl-C is ours to handle: the solver would swallow it.
        solver.parameters.catch_sigint_signal = False
        with ThreadPoolExecutor(1, thread_name_prefix="tapestry-exact") as pool:
            running = pool.submit(solver.solve, self.model)
            interrupted = _wait(running, solver.stop_search, stop)
            status = running.result()
        spent.left -= solver.response_proto.deterministic_time
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return _Answer(None, 0, interrupted)
        choice = tuple(number for number, variable in self.chosen.items() if solver.boolean_value(variable))
        return _Answer(choice, math.floor(solver.best_objective_bound / self.scale + 1e-9), interrupted)


def _wait(running: Future[cp_model.CpSolverStatus], end: Callable[[], None], stop: Stop | None) -> bool:
    """Wait for the solver, which Ctrl-C or ``stop`` ends with what it has; returns whether one did."""
    interrupted = False
    while True:
        try:
            running.result(timeout=_LOOK)
            return interrupted
        except TimeoutError:
            interrupted = interrupted or _asked(stop)
        except KeyboardInterrupt:
            interrupted = True
        if interrupted:
            end()


def _asked(stop: Stop | None) -> bool:
    try:
        return stop is not None and stop()
    except KeyboardInterrupt:
        return True


def _useful(problem: Problem, limit: float, known: int) -> Iterator[int]:
    """Candidates within the limits that no other one of the same nodes and kind is better than in cost and error."""
    best: dict[tuple[tuple[int, ...], Kind], list[tuple[int, float]]] = {}
    order = sorted(range(len(problem.priced)), key=lambda n: (problem.priced[n].cost, problem.priced[n].error, n))
    kept: list[int] = []
    for number in order:
        entry = problem.priced[number]
        if not entry.candidate.on_source:
            if entry.error > limit or entry.cost > known:
                continue
            same = best.setdefault((entry.places, entry.candidate.kind), [])
            if any(error <= entry.error for _, error in same):
                continue
            same.append((entry.cost, entry.error))
        kept.append(number)
    yield from sorted(kept)


def _cp_model() -> ModuleType:
    try:
        from ortools.sat.python import cp_model
    except ModuleNotFoundError as error:
        raise missing(error, "the placement search") or error from error
    return cp_model
