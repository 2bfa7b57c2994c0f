"""Measured costs, on a device in this process; what is wrong, crashes or remembers is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.bent_backend import Bend, Bent
from support.eager_device import EagerMockDevice
from support.faulty_backend import Fault, FaultyBackend
from support.text_graph import parse_program
from tapestry.backends.base import Backend
from tapestry.backends.cache import CompileCache
from tapestry.backends.compiler import Compiler
from tapestry.backends.eager import Eager
from tapestry.placement.search.boundary import Line, time_transfers
from tapestry.placement.search.candidates import SOURCE, Candidate, Kind, Way, candidates_of
from tapestry.placement.search.costs import RefusedError
from tapestry.placement.search.exact import solve
from tapestry.placement.search.measure import MeasuredCosts, MeasuredOn
from tapestry.placement.search.problem import problem_of
from tapestry.placement.search.source_run import SourceRun
from tapestry.placement.search.store import CostStore
from tapestry.program.inputs import CallArgs, InputSet, as_input_sets
from tapestry.program.region import region_of
from tapestry.runtime.device import Command
from tapestry.runtime.resident import Resident

TEXT = """
    x: f32[8]
    w: param f32[8] = 3.0
    a = aten.add.Tensor(x, w)
    b = aten.relu.default(a)
    c = aten.exp.default(b)
    d = aten.mul.Tensor(c, b)
    return d, a
"""
INPUTS = as_input_sets([(torch.linspace(-4, 1, 8),), (torch.linspace(-5, 0.5, 8),)])


class Setting:
    """A device, a compiler and a store to measure with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.device = EagerMockDevice()
        self.resident = Resident(self.device)
        self.compiler = Compiler(CompileCache(folder / "compiled"))
        self.stores: list[CostStore] = []

    def costs(self, backend: Backend, text: str = TEXT, inputs: Sequence[InputSet] = INPUTS) -> MeasuredCosts:
        program = parse_program(text)
        ways = [Way(backend, options, self.device.info) for options in backend.options()]
        self.stores.append(CostStore(self.folder / "costs.sqlite"))
        devices = {self.device.info.name: MeasuredOn(self.resident, self.device)}
        return MeasuredCosts(candidates_of(program, ways), inputs, devices, self.compiler, self.stores[-1])

    def close(self) -> None:
        self.compiler.close()
        self.device.close()
        for store in self.stores:
            store.close()


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path)
    yield made
    made.close()


def the(costs: MeasuredCosts, *nodes: str) -> Candidate:
    found = [entry for entry in costs.candidates.entries if entry.nodes == nodes and not entry.on_source]
    return found[0]


def refusal(ask: Callable[[], float]) -> str:
    with pytest.raises(RefusedError) as caught:
        ask()
    return str(caught.value)


def test_a_right_candidate_has_a_time_and_no_error(setting: Setting) -> None:
    costs = setting.costs(Eager())
    whole = the(costs, "a", "b", "c", "d")
    assert costs.region(whole) > 0
    assert costs.error(whole) == 0.0
    assert costs.region(Candidate(("a",), SOURCE)) > 0
    assert setting.device.stats().buffers == 0


def test_a_second_search_measures_nothing_and_gets_the_same(setting: Setting) -> None:
    found = []
    for _ in range(2):
        costs = setting.costs(Eager())
        problem = problem_of(costs.candidates, costs).problem
        found.append((problem, solve(problem).choice, costs.measured))
    (first, choice, measured), (second, again, measured_again) = found
    assert (measured > 0, measured_again) == (True, 0)
    assert first == second
    assert choice == again


def test_equal_layers_are_timed_once(setting: Setting) -> None:
    text = """
        x: f32[8]
        a = aten.exp.default(x)
        b = aten.exp.default(a)
        c = aten.exp.default(b)
        return c
    """
    costs = setting.costs(Eager(), text)
    assert costs.region(the(costs, "a")) == costs.region(the(costs, "b")) == costs.region(the(costs, "c"))
    assert costs.measured == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("abort", "aten.exp.default"), "the worker died"),
        (Fault("hang", "aten.exp.default"), "hung"),
        (Fault("raise", "aten.exp.default"), "failed"),
        (Fault("compile", "aten.exp.default"), "exp"),
    ],
)
def test_what_does_not_run_is_refused_and_the_device_goes_on(setting: Setting, fault: Fault, words: str) -> None:
    costs = setting.costs(FaultyBackend(fault))
    assert words in refusal(lambda: costs.region(the(costs, "c")))
    assert costs.region(the(costs, "b")) > 0
    # The refusal is kept: a second search does not run into it again.
    again = setting.costs(FaultyBackend(fault))
    assert words in refusal(lambda: again.region(the(again, "c")))
    assert again.measured == 0


def test_what_is_wrong_is_refused_at_reference_precision(setting: Setting) -> None:
    costs = setting.costs(FaultyBackend(Fault("wrong", "aten.exp.default")))
    assert "is wrong on the model's values" in refusal(lambda: costs.error(the(costs, "c")))
    assert "is wrong on the model's values" in refusal(lambda: costs.error(the(costs, "a", "b", "c", "d")))
    assert costs.error(the(costs, "b")) == 0.0


def test_a_result_that_depends_on_earlier_runs_is_refused(setting: Setting) -> None:
    """Right the first time; a half more the second."""
    costs = setting.costs(Bent("aten.exp.default", Bend(), Bend("remembers")))
    bent = next(entry for entry in costs.candidates.entries if "remembers" in entry.options and entry.nodes == ("c",))
    assert "gives another result when it is run again" in refusal(lambda: costs.error(bent))


def test_a_nan_where_the_source_has_none_is_refused_at_any_precision(setting: Setting) -> None:
    costs = setting.costs(Bent("aten.exp.default", Bend(), Bend("nan")))
    bent = next(entry for entry in costs.candidates.entries if "nan" in entry.options and entry.nodes == ("c",))
    assert "the places of NaN and infinities differ" in refusal(lambda: costs.error(bent))


def test_what_leaves_memory_behind_is_refused(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = setting.costs(Eager())
    timed = setting.device.time

    def leaking(commands: Sequence[Command], repeats: int) -> list[float]:
        setting.device.alloc(64)
        return timed(commands, repeats)

    monkeypatch.setattr(setting.device, "time", leaking)
    assert "expected nothing to be left on mock:0, got" in refusal(lambda: costs.region(the(costs, "a")))


def test_an_error_of_another_option_is_measured_in_place(setting: Setting) -> None:
    """A factor on d is one on the output; the same at reference precision would be refused."""
    costs = setting.costs(Bent("aten.mul.Tensor", Bend(), Bend("scaled", 0.25)))
    exact, scaled = [entry for entry in costs.candidates.entries if entry.nodes == ("d",) and not entry.on_source]
    assert costs.error(exact) == 0.0
    # One rounding of float32 more than eager.
    assert costs.error(scaled) == pytest.approx(0.25, rel=1e-6)
    alone = setting.costs(Bent("aten.mul.Tensor", Bend("scaled", 0.25)))
    assert "is wrong on the model's values" in refusal(lambda: alone.error(the(alone, "d")))


def test_the_effect_flows_on_through_what_reads_it() -> None:
    program = parse_program(TEXT)
    run = SourceRun(program, CallArgs((torch.linspace(-4, 1, 8),)))
    region = region_of(program, ["b"])
    got = [run.tensor(ref) + 0.5 for ref in region.outputs]
    b = run.tensor(region.outputs[0])
    want = ((b + 0.5).exp() * (b + 0.5) - b.exp() * b).abs().max() / (b.exp() * b).abs().max()
    # The two are the same float32 operations in the same order.
    assert run.effect(region, got) == pytest.approx(float(want), rel=1e-6)
    assert run.effect(region, [run.tensor(ref) for ref in region.outputs]) == 0.0


# ---------------------------------------------------------------------------------------------------------- boundaries


def test_transfers_are_timed_and_cost_more_for_more_bytes(setting: Setting) -> None:
    costs = setting.costs(Eager())
    there, other = Kind("eager", "mock:0"), Kind("another", "mock:0")
    assert costs.boundary(SOURCE, there, 1 << 24) > 0
    assert costs.boundary(there, SOURCE, 1 << 24) >= costs.boundary(there, SOURCE, 1 << 10) >= 0
    assert costs.boundary(there, other, 1 << 24) == 0
    assert [size for size, _ in time_transfers(setting.device, up=True)] == [4 << 10, 256 << 10, 4 << 20]


SIZES = st.lists(st.integers(1, 1 << 24), min_size=2, max_size=6, unique=True)


@given(st.floats(1e-7, 1e-2), st.floats(1e-12, 1e-7), SIZES)
def test_a_line_is_found_again(latency: float, per_byte: float, sizes: list[int]) -> None:
    line = Line.through([(size, latency + per_byte * size) for size in sizes])
    for size in sizes:
        # Sums of squares in float64 lose about half its digits.
        assert line.at(size) == pytest.approx(latency + per_byte * size, rel=1e-5)


@given(st.lists(st.tuples(st.integers(1, 1 << 24), st.floats(1e-7, 1.0)), min_size=1, max_size=6))
def test_no_line_is_negative(points: list[tuple[int, float]]) -> None:
    line = Line.through(points)
    assert line.latency >= 0
    assert line.per_byte >= 0
