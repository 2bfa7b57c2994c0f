"""Whole placements built and run on a device in this process; and one search over two backends, devices and all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.bent_backend import Bend, Bent
from support.eager_device import Bench
from support.faulty_backend import Fault, FaultyBackend
from tapestry.backends.eager import Eager
from tapestry.placement.build import Builder
from tapestry.placement.placement import Placement, on_source, place_on
from tapestry.placement.search.candidates import candidates_of, ways_of
from tapestry.placement.search.end_to_end import Latency, MeasuredEndToEnd, RejectedError
from tapestry.placement.search.measure import MeasuredCosts, MeasuredOn
from tapestry.placement.search.place import place
from tapestry.placement.search.search import Limits, search
from tapestry.placement.search.store import CostStore
from tapestry.program.capture import capture
from tapestry.program.inputs import as_input_sets


class Decoder(torch.nn.Module):
    """A state that grows with each call, and a little work."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4))
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.cache.add_(x)
        return torch.tanh(self.linear(self.cache)), x


CALLS = [[(torch.tensor([0.1, 0.2, 0.3, 0.4]),), (torch.tensor([0.5, -0.2, 0.3, 0.0]),)]]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    torch.manual_seed(1)
    made = Bench(capture(Decoder().eval(), (torch.zeros(4),)))
    yield made
    made.close()


def whole(bench: Bench, *backends: object) -> MeasuredEndToEnd:
    by_name = {"eager": bench.backend, **{entry.name: entry for entry in backends}}  # pyright: ignore[reportAttributeAccessIssue]
    builder = Builder(bench.program, {"mock:0": bench.resident}, bench.compiler, by_name)  # pyright: ignore[reportArgumentType]
    inputs = as_input_sets(CALLS)
    return MeasuredEndToEnd(bench.program, inputs, inputs, builder, builder, rounds=3)


def everything(bench: Bench, backend: Eager | FaultyBackend | Bent, option: int = 0) -> Placement:
    return place_on(bench.program, [bench.program.placeable], backend, backend.options()[option], "mock:0")


def test_a_right_placement_is_as_exact_as_the_source_over_all_calls(bench: Bench) -> None:
    measured = whole(bench)
    assert measured.error(everything(bench, bench.backend), held_out=False) == measured.source_error
    assert measured.error(on_source(bench.program), held_out=True) == measured.source_error < 1e-6


def test_a_wrong_placement_shows_its_error(bench: Bench) -> None:
    bent = Bent("aten.tanh.default", Bend(), Bend("scaled", 0.125))
    measured = whole(bench, bent)
    # The state is scaled by the bent region, too, and so is what the second call makes of it.
    assert measured.error(everything(bench, bent, 1), held_out=False) >= 0.125 - 1e-6


def test_a_placement_that_crashes_is_rejected_and_the_next_one_runs(bench: Bench) -> None:
    faulty = FaultyBackend(Fault("abort", "aten.tanh.default"))
    measured = whole(bench, faulty)
    with pytest.raises(RejectedError, match="died"):
        measured.error(everything(bench, faulty), held_out=False)
    assert measured.error(everything(bench, bench.backend), held_out=False) < 1e-6


def test_latencies_are_measured_in_turns_and_a_failing_placement_has_none(bench: Bench) -> None:
    faulty = FaultyBackend(Fault("raise", "aten.tanh.default"))
    measured = whole(bench, faulty)
    placements = [on_source(bench.program), everything(bench, faulty), everything(bench, bench.backend)]
    source, failing, eager = measured.latencies(placements)
    assert failing is None
    assert source is not None
    assert eager is not None
    assert min(source.seconds, eager.seconds) > 0


def test_the_interval_of_a_median_comes_from_the_quartiles() -> None:
    latency = Latency.of([1.0, 2.0, 3.0, 4.0, 5.0])
    # Quartiles of five by the exclusive method: 1.5 and 4.5.
    assert (latency.seconds, latency.spread) == (3.0, pytest.approx(1.57 * 3.0 / 5**0.5))
    assert Latency.of([2.0, 3.0]) == Latency(2.5, 1.0)


def test_a_stateful_program_is_searched_and_the_wrong_backend_is_out(bench: Bench, tmp_path: Path) -> None:
    """One backend is wrong at tanh: it may have the rest, never that."""
    wrong = FaultyBackend(Fault("wrong", "aten.tanh.default"))
    candidates = candidates_of(bench.program, ways_of([bench.backend, wrong], [bench.device.info]))
    with CostStore(tmp_path / "costs.sqlite") as store:
        on = {"mock:0": MeasuredOn(bench.resident, bench.device)}
        costs = MeasuredCosts(candidates, as_input_sets(CALLS), on, bench.compiler, store)
        found = search(candidates, costs, whole(bench, wrong), Limits(budget=1e-3))
    assert found.refused > 0
    assert found.error.search <= 1e-5
    by_tanh = [entry.backend for entry in found.regions if any("tanh" in node_id for node_id in entry.nodes)]
    assert "faulty" not in by_tanh
    assert bench.device.stats().buffers == 0


@pytest.mark.slow
def test_a_search_on_this_machine_in_workers(tmp_path: Path) -> None:
    """The host in a worker and in this process; a second search finds the same and measures nothing."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    x = torch.randn(8, 16)
    program = capture(model, (x,))
    first, second = (
        place(program, as_input_sets([(x,)]), [Eager()], costs=tmp_path / "costs.sqlite", rounds=3) for _ in range(2)
    )
    assert first.measured > 0
    assert second.measured == 0
    assert first.placement == second.placement
    assert [entry.backend for entry in first.singles] == ["eager"]
    assert first.error.held_out is not None
    assert first.error.held_out <= 1e-5
