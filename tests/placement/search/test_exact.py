"""The exact stage against brute force, on small graphs of every shape; and what it says when it cannot finish."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.written_programs import call, program_of
from tapestry.errors import EnvironmentProblem, UsageError
from tapestry.placement.search.candidates import SOURCE, Candidate, Candidates, Kind
from tapestry.placement.search.exact import Effort, Solution, solve
from tapestry.placement.search.problem import Choice, Problem, problem_of
from tapestry.placement.search.warm import on_source, warm_start
from tapestry.program.graph import Ref, TensorSpec, operands
from tapestry.program.program import Program
from tapestry.program.region import path_outside, quotient_order

KINDS = (Kind("one", "mock:0"), Kind("two", "mock:0"))
#: Errors are multiples of this and budgets lie half-way between two, so that no rounding decides.
STEP = 1 / 64


@dataclass
class Table:
    """Costs in nanoseconds and errors by candidate; conversions by what they convert."""

    costs: dict[Candidate, int]
    errors: dict[Candidate, float]
    hops: dict[tuple[Kind, Kind], int]

    def region(self, candidate: Candidate) -> float:
        return self.costs[candidate] * 1e-9

    def boundary(self, producer: Kind, consumer: Kind, nbytes: int) -> float:
        return (self.hops[producer, consumer] * nbytes) * 1e-9

    def error(self, candidate: Candidate) -> float:
        return self.errors[candidate]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Up to six additions of earlier values, some of them results; values of different sizes."""
    count = draw(st.integers(1, 6))
    values = [Ref("input:x")]
    calls = []
    for place in range(count):
        left, right = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        size = draw(st.sampled_from([1, 5]))
        spec = TensorSpec((size,), (1,), torch.float32)
        calls.append(call(f"n{place}", torch.ops.aten.add.Tensor, left, right, outputs=(spec,)))
        values.append(Ref(f"n{place}"))
    extra = draw(st.sets(st.sampled_from(values[1:])))
    return program_of(calls, sorted({values[-1], *extra}))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Program, Problem]:
    """Convex sets of nodes, each by one or two kinds and options, with random costs, errors and conversions."""
    program = draw(programs())
    ids = [node.id for node in program.nodes]
    entries = [Candidate((node_id,), SOURCE, why="source") for node_id in ids]
    for _ in range(draw(st.integers(0, 9))):
        nodes = draw(st.sets(st.sampled_from(ids), min_size=1))
        if path_outside(program, nodes) is None:
            ordered = tuple(sorted(nodes, key=program.position.__getitem__))
            entries.append(Candidate(ordered, draw(st.sampled_from(KINDS)), draw(st.sampled_from(["a", "b"]))))
    entries = list(dict.fromkeys(entries))
    costs = {entry: draw(st.integers(0, 40)) * len(entry.nodes) for entry in entries}
    errors = {entry: draw(st.integers(0, 8)) * STEP for entry in entries}
    hops = {(a, b): draw(st.sampled_from([0, 1, 2])) for a in (SOURCE, *KINDS) for b in (SOURCE, *KINDS)}
    found = problem_of(Candidates(program, tuple(entries), (), ()), Table(costs, errors, hops))
    return program, found.problem


BUDGETS = st.one_of(st.just(math.inf), st.integers(0, 20).map(lambda steps: (steps + 0.5) * STEP))


def covers(problem: Problem, place: int = 0, taken: frozenset[int] = frozenset()) -> Iterator[Choice]:
    """Every way to cover each node once."""
    while place in taken:
        place += 1
    if place == len(problem.nodes):
        yield ()
        return
    for number in problem.covering[place]:
        places = problem.priced[number].places
        if not taken.intersection(places):
            for rest in covers(problem, place, taken.union(places)):
                yield (number, *rest)


def plain_cost(program: Program, problem: Problem, choice: Choice) -> int:
    """The cost of a choice, worked out from the program alone."""
    kind = {node_id: entry.candidate.kind for n in choice for entry in [problem.priced[n]]
            for node_id in entry.candidate.nodes}  # fmt: skip
    crossing = {
        (ref, kind.get(ref.name, SOURCE), kind[node.id]) for node in program.nodes for ref in operands(node.call)
    } | {(ref, kind[ref.name], SOURCE) for ref in program.results}
    hops = sum(problem.boundary[a, b, program.spec(ref).nbytes] for ref, a, b in crossing if a != b)
    return hops + sum(problem.priced[number].cost for number in choice)


def runs_in_some_order(program: Program, problem: Problem, choice: Choice) -> bool:
    try:
        quotient_order(program, [problem.priced[number].candidate.nodes for number in choice])
    except UsageError:
        return False
    return True


def brute_force(program: Program, problem: Problem, budget: float) -> tuple[int, int]:
    return min(
        (plain_cost(program, problem, choice), problem.regions(choice))
        for choice in covers(problem)
        if problem.error(choice) <= budget and runs_in_some_order(program, problem, choice)
    )


def check(program: Program, problem: Problem, solution: Solution, budget: float) -> None:
    """The solution is one, and what it says of itself is so."""
    assert runs_in_some_order(program, problem, solution.choice)
    assert solution.cost == plain_cost(program, problem, solution.choice)
    assert solution.error == problem.error(solution.choice) <= budget
    assert 0 <= solution.bound <= solution.cost


@settings(max_examples=60, deadline=None)
@given(problems(), BUDGETS)
def test_the_optimum_is_that_of_brute_force(made: tuple[Program, Problem], budget: float) -> None:
    program, problem = made
    solution = solve(problem, budget)
    check(program, problem, solution, budget)
    assert (solution.cost, problem.regions(solution.choice)) == brute_force(program, problem, budget)
    assert solution.gap == 0


@settings(max_examples=60, deadline=None)
@given(problems(), BUDGETS)
def test_the_warm_start_is_a_solution(made: tuple[Program, Problem], budget: float) -> None:
    program, problem = made
    choice = warm_start(problem, budget)
    check(program, problem, Solution(choice, problem.cost(choice), 0, problem.error(choice), budget), budget)
    assert problem.cost(choice) <= problem.cost(on_source(problem))


@settings(max_examples=15, deadline=None)
@given(problems(), BUDGETS)
def test_the_same_problem_gives_the_same_choice(made: tuple[Program, Problem], budget: float) -> None:
    assert solve(made[1], budget) == solve(made[1], budget)


@settings(max_examples=20, deadline=None)
@given(problems(), BUDGETS)
def test_without_work_there_is_an_answer_and_a_gap(made: tuple[Program, Problem], budget: float) -> None:
    program, problem = made
    solution = solve(problem, budget, effort=Effort(work=0.0))
    check(program, problem, solution, budget)
    assert solution.solves == 0
    assert solution.gap == (1.0 if solution.cost else 0.0)


# ------------------------------------------------------------------------------------------------- measured errors


@settings(max_examples=25, deadline=None)
@given(problems(), st.integers(0, 12), st.sampled_from([0.5, 1.0, 3.0]))
def test_a_measured_error_over_the_budget_is_solved_again(
    made: tuple[Program, Problem], steps: int, factor: float
) -> None:
    """Errors that are ``factor`` times their first-order sum; whatever comes out is within the budget as measured."""
    program, problem = made
    budget = (steps + 0.5) * STEP
    asked: list[Choice] = []

    def verify(choice: Choice) -> float:
        asked.append(choice)
        return factor * problem.error(choice)

    solution = solve(problem, budget, verify)
    assert runs_in_some_order(program, problem, solution.choice)
    assert solution.measured == factor * problem.error(solution.choice) <= budget
    assert solution.choice == asked[-1]
    if factor <= 1:
        assert len(asked) == 1
    else:
        assert plain_cost(program, problem, solution.choice) >= brute_force(program, problem, budget)[0]


def chain(count: int) -> Program:
    last, calls = Ref("input:x"), []
    for place in range(count):
        calls.append(call(f"n{place}", torch.ops.aten.relu.default, last))
        last = Ref(f"n{place}")
    return program_of(calls, [last])


def two_ways() -> Problem:
    """Four nodes; ``one`` is fast on each and adds no error that can be estimated, ``two`` is a bit slower."""
    program = chain(4)
    ids = [node.id for node in program.nodes]
    entries = [Candidate((node_id,), kind) for kind in (SOURCE, *KINDS) for node_id in ids]
    costs = {entry: {"source": 100, "one": 10, "two": 20}[entry.kind.backend] for entry in entries}
    hops = dict.fromkeys([(a, b) for a in (SOURCE, *KINDS) for b in (SOURCE, *KINDS)], 0)
    return problem_of(
        Candidates(program, tuple(entries), (), ()), Table(costs, dict.fromkeys(entries, 0.0), hops)
    ).problem


def names(problem: Problem, solution: Solution) -> list[str]:
    return [problem.priced[number].candidate.kind.backend for number in problem.homes(solution.choice)]


def test_an_error_that_no_estimate_foresaw_forbids_the_combination() -> None:
    problem = two_ways()

    def verify(choice: Choice) -> float:
        kinds = [problem.priced[number].candidate.kind.backend for number in choice]
        return 1.0 if kinds.count("one") > 3 else 0.0

    solution = solve(problem, 0.5, verify)
    assert sorted(names(problem, solution)) == ["one", "one", "one", "two"]
    assert solution.measured == 0.0


def test_when_nothing_is_within_the_budget_everything_stays_on_the_source() -> None:
    problem = two_ways()

    def verify(choice: Choice) -> float:
        return math.nan if problem.regions(choice) else 0.0

    solution = solve(problem, 0.5, verify, Effort(tightenings=3))
    assert names(problem, solution) == ["source"] * 4
    assert (solution.error, solution.measured) == (0.0, 0.0)


# ------------------------------------------------------------------------------------------------------ interruption


def test_a_search_that_is_stopped_gives_its_best_so_far() -> None:
    problem = two_ways()
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return True

    solution = solve(problem, stop=stop)
    # The solver may be done before the first look; then nothing was interrupted.
    assert solution.interrupted == (asked > 0)
    assert names(problem, solution) == ["one"] * 4


def test_a_missing_solver_is_reported_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("ortools"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(EnvironmentProblem, match=r"placement search needs ortools.*pip install 'tapestry-ml\[place\]'"):
        solve(two_ways())


def test_coefficients_that_would_overflow_are_still_compared_by_cost() -> None:
    """Nodes of a hundred thousand seconds each: the number of regions no longer fits into the objective."""
    problem = two_ways()
    large = replace(problem, priced=tuple(replace(entry, cost=entry.cost * 10**15) for entry in problem.priced))
    assert names(large, solve(large)) == ["one"] * 4
