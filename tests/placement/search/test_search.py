"""The search from candidates to the winner, on made-up costs and made-up measurements."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.mock_costs import MockCosts
from support.rule_backend import INFO, Precise, RuleBackend
from support.text_graph import parse_program
from tapestry.backends.rules import Ops
from tapestry.errors import UsageError
from tapestry.placement.placement import Placement
from tapestry.placement.search.candidates import Candidate, Kind, candidates_of, ways_of
from tapestry.placement.search.end_to_end import Latency, RejectedError, StoredEndToEnd
from tapestry.placement.search.pressing import noticing
from tapestry.placement.search.search import Found, Limits, reference_only, search
from tapestry.placement.search.store import CostStore
from tapestry.program.program import Program
from tapestry.program.region import quotient_order

TEXT = """
    x: f32[4]
    a = aten.relu.default(x)
    b = aten.neg.default(a)
    t = aten.tan.default(b)
    u = aten.tan.default(t)
    c = aten.exp.default(u)
    d = aten.relu.default(c)
    return d
"""
PROGRAM = parse_program(TEXT)
COARSE = Precise("float16")
#: Good at the one kind of operators, and at the other.
LEFT = RuleBackend("left", Ops({"aten.relu", "aten.neg", "aten.exp", "aten.tan"}), options=(Precise(), COARSE))
RIGHT = RuleBackend("right", Ops({"aten.tan"}))
CANDIDATES = candidates_of(PROGRAM, ways_of([LEFT, RIGHT], [INFO]))


def costs(candidate_error: float = 0.0) -> MockCosts:
    made = MockCosts({"left": 0.5, "right": 0.05}, per_call=1.0, per_node=50.0, hop=1.0)
    made.errors = lambda entry: candidate_error * len(entry.nodes) if "float16" in entry.options else 0.0
    plain = made.region

    def region(candidate: Candidate) -> float:
        return plain(candidate) * (0.5 if "float16" in candidate.options else 1.0)

    made.region = region
    return made


class World:
    """Whole placements as the costs say, unless told otherwise. ``interrupt`` raises Ctrl-C at that question."""

    def __init__(self, model: MockCosts, interrupt: int = -1) -> None:
        self.model = model
        self.slower: Callable[[Placement], float] = lambda placement: 1.0
        self.spread = 0.0
        self.unseen = 1.0  # how much larger errors are on inputs held out
        self.rejects: Callable[[Placement], bool] = lambda placement: False
        self.asked: Counter[str] = Counter()
        self.interrupt = interrupt
        self.own_error = 1e-7

    def question(self, name: str) -> None:
        self.asked[name] += 1
        if self.asked.total() == self.interrupt:
            raise KeyboardInterrupt

    @property
    def source_error(self) -> float:
        self.question("source")
        return self.own_error

    def error(self, placement: Placement, held_out: bool) -> float:
        self.question("error")
        if self.rejects(placement):
            raise RejectedError("it crashes")
        added = sum(self.model.error(entry) for entry in regions_of(placement))
        return self.own_error + added * (self.unseen if held_out else 1.0)

    def latencies(self, placements: Sequence[Placement]) -> list[Latency | None]:
        self.question("latencies")
        return [None if self.rejects(entry) else Latency(self.seconds(entry), self.spread) for entry in placements]

    def seconds(self, placement: Placement) -> float:
        entries = regions_of(placement)
        placed = {node_id for entry in entries for node_id in entry.nodes}
        source = 50e-6 * (len(PROGRAM.nodes) - len(placed))
        return (source + sum(self.model.region(entry) for entry in entries)) * self.slower(placement)


def regions_of(placement: Placement) -> list[Candidate]:
    return [
        Candidate(
            entry.nodes, Kind(entry.backend, entry.device), ",".join(f"{k}={v}" for k, v in entry.options.items())
        )
        for entry in placement.regions
    ]


def backends(found: Found) -> list[str]:
    return [entry.backend for entry in found.placement.regions]


def test_the_winner_gives_each_backend_what_it_is_fastest_at() -> None:
    found = search(CANDIDATES, costs(), World(costs()))
    assert sorted(zip([entry.nodes for entry in found.placement.regions], backends(found), strict=True)) == [
        (("a", "b"), "left"), (("c", "d"), "left"), (("t", "u"), "right"),
    ]  # fmt: skip
    assert found.best_single is not None
    assert found.best_single.backend == "left"
    assert found.latency_ms is not None
    assert found.speedup == pytest.approx(found.best_single.latency_ms / found.latency_ms)
    assert (found.ended, found.gap, found.error.held_out) == ("done", 0.0, 1e-7)
    assert [entry.backend for entry in found.regions] == ["left", "right", "left"]
    assert found.candidates == len(CANDIDATES.entries)


def test_every_single_backend_is_reported() -> None:
    found = search(CANDIDATES, costs(0.1), World(costs(0.1)), Limits(budget=0.01))
    shown = [(entry.backend, entry.options, entry.within_budget, entry.regions) for entry in found.singles]
    assert shown == [
        ("left", "precision=float32", True, 1), ("left", "precision=float16", False, 1),
        ("right", "precision=float32", True, 1),
    ]  # fmt: skip
    assert all(entry.latency_ms is not None for entry in found.singles)


def test_a_backend_whose_whole_does_not_run_is_reported_with_the_reason() -> None:
    world = World(costs())
    world.rejects = lambda placement: {entry.backend for entry in placement.regions} == {"right"}
    found = search(CANDIDATES, costs(), world)
    assert [entry.reason for entry in found.singles if entry.backend == "right"] == ["it crashes"]


def test_a_winner_that_is_slower_in_truth_loses_to_the_single_backend() -> None:
    """Costs do not simply add: every mixture is twice as slow as its parts."""
    world = World(costs())
    world.slower = lambda placement: 2.0 if len({entry.backend for entry in placement.regions}) > 1 else 1.0
    found = search(CANDIDATES, costs(), world)
    assert set(backends(found)) == {"left"}
    assert found.speedup is not None
    assert found.speedup >= 1.0


def test_a_tie_goes_to_the_simpler() -> None:
    world = World(costs())
    world.spread = 1.0  # nothing can be told apart
    found = search(CANDIDATES, costs(), world)
    assert found.placement.regions == ()
    assert found.best_single is not None


def test_a_move_that_only_measurement_shows_is_found() -> None:
    """The whole by one backend is three times as fast as its parts' costs say."""
    world = World(costs())
    world.slower = lambda placement: 0.1 if [len(entry.nodes) for entry in placement.regions] == [4, 2] else 1.0
    backend = RuleBackend("left", Ops({"aten.relu", "aten.neg", "aten.tan", "aten.exp"}))
    ways = ways_of([backend], [INFO])
    extra = Candidate(("a", "b", "t", "u"), Kind("left", "mock:0"), "precision=float32")
    tail = Candidate(("c", "d"), Kind("left", "mock:0"), "precision=float32")
    base = candidates_of(PROGRAM, ways)
    candidates = dataclasses.replace(base, entries=tuple(dict.fromkeys((*base.entries, extra, tail))))
    found = search(candidates, costs(), world)
    assert [len(entry.nodes) for entry in found.placement.regions] == [4, 2]


# ------------------------------------------------------------------------------------------------------------- budget


def precisions(found: Found) -> set[str]:
    return {entry.options for entry in found.regions}


@pytest.mark.parametrize(("budget", "coarse"), [(0.01, 0), (0.04, 2), (1.0, 4)])
def test_precision_is_chosen_for_each_region_within_the_budget(budget: float, coarse: int) -> None:
    """Each coarse node adds 0.01, so that 0.7 of the budget is enough for none, two or all four."""
    found = search(CANDIDATES, costs(0.01), World(costs(0.01)), Limits(budget=budget))
    nodes = sum(len(entry.nodes) for entry in found.regions if "float16" in entry.options)
    assert nodes == coarse
    assert found.error.search <= 0.7 * budget


def test_errors_that_grow_together_are_measured_and_solved_again() -> None:
    class Growing(World):
        def error(self, placement: Placement, held_out: bool) -> float:
            added = super().error(placement, held_out) - self.own_error
            return self.own_error + (added if added < 0.03 else 10 * added)

    found = search(CANDIDATES, costs(0.01), Growing(costs(0.01)), Limits(budget=0.1))
    assert 0 < found.error.search <= 0.07
    assert sum(len(entry.nodes) for entry in found.regions if "float16" in entry.options) == 2


def test_a_winner_over_the_budget_on_held_out_inputs_is_out() -> None:
    world = World(costs(0.01))
    world.unseen = 100.0
    found = search(CANDIDATES, costs(0.01), world, Limits(budget=0.1))
    assert found.error.held_out is not None
    assert found.error.held_out <= 0.1
    assert precisions(found) <= {"precision=float32"}


def test_budget_nought_is_held_to_what_a_migration_is_held_to() -> None:
    candidates = candidates_of(PROGRAM, reference_only(ways_of([LEFT, RIGHT], [INFO])))
    assert {entry.options for entry in candidates.entries} == {"", "precision=float32"}
    found = search(candidates, costs(), World(costs()))
    assert found.budget == 0
    assert found.placement.regions


def test_a_source_that_is_over_the_budget_itself_stays() -> None:
    world = World(costs())
    world.own_error = 0.5
    found = search(CANDIDATES, costs(), world, Limits(budget=1e-3))
    assert found.placement.regions == ()


@pytest.mark.parametrize("budget", [-1.0, math.nan, math.inf])
def test_a_budget_that_is_none_is_refused(budget: float) -> None:
    with pytest.raises(UsageError, match="budget"):
        Limits(budget=budget)


# ------------------------------------------------------------------------------------------------------------ anytime


def check(found: Found, program: Program = PROGRAM) -> None:
    """It is a placement of the program, within the budget."""
    found.placement.check(program)
    quotient_order(program, [entry.nodes for entry in found.placement.regions])
    assert found.error.search <= 0.05


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40))
def test_ctrl_c_at_any_question_gives_a_placement(when: int) -> None:
    world = World(costs(0.01), interrupt=when)
    found = search(CANDIDATES, costs(0.01), world, Limits(budget=0.05))
    check(found)
    assert found.ended == ("interrupted" if world.asked.total() == when else "done")


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 60))
def test_the_end_of_the_time_gives_a_placement(seconds: int) -> None:
    """Each question takes a second; whatever time there is, no more than a stage's last question is over it."""
    model, now = costs(0.01), 0.0
    plain = model.region

    def region(candidate: Candidate) -> float:
        nonlocal now
        now += 1.0
        return plain(candidate)

    model.region = region
    found = search(CANDIDATES, model, World(costs(0.01)), Limits(budget=0.05, seconds=seconds), clock=lambda: now)
    check(found)
    asked_for_all = len(CANDIDATES.entries)
    assert (found.ended == "time") == (found.not_measured > 0 or asked_for_all > 0.85 * seconds)


def test_the_same_store_gives_the_same_placement_and_measures_nothing_again(tmp_path: Path) -> None:
    results = []
    for _ in range(2):
        with CostStore(tmp_path / "costs.sqlite") as store:
            world = World(costs(0.01))
            whole = StoredEndToEnd(world, store, "this program")
            found = search(CANDIDATES, costs(0.01), whole, Limits(budget=0.05))
            results.append((found, whole.measured))
    (first, measured), (second, measured_again) = results
    assert (measured > 0, measured_again) == (True, 0)
    assert first == second


def test_no_candidates_leave_everything_on_the_source() -> None:
    empty = candidates_of(PROGRAM, ())
    found = search(empty, costs(), World(costs()))
    assert found.placement.regions == ()
    assert found.best_single is not None
    assert found.best_single.backend == "source"
    assert found.speedup == 1.0


def test_ctrl_c_that_a_measurement_has_swallowed_still_ends_the_search() -> None:
    """A driver may take a KeyboardInterrupt for a lost device; then the search asks whether it was pressed."""
    world = World(costs())
    found = search(CANDIDATES, costs(), world, pressed=lambda: world.asked["latencies"] > 0)
    assert found.ended == "interrupted"
    assert world.asked["latencies"] == 1
    assert found.error.held_out is None


def test_ctrl_c_is_noticed_and_raised() -> None:
    with noticing() as pressed:
        assert not pressed()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert pressed()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_outside_of_the_main_thread_nothing_is_noticed() -> None:
    def work() -> bool:
        with noticing() as pressed:
            return pressed()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() is False
