"""A profile on a mock device: which regions there are, what they say, and what becomes of those that do not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch

from support.eager_device import EagerMockDevice
from support.faulty_backend import Fault, FaultyBackend
from support.migrating import LAYERS, blocks, inputs
from support.partial_backend import PartialEager
from tapestry.backends.base import Backend
from tapestry.backends.cache import CompileCache
from tapestry.backends.compiler import Compiler
from tapestry.backends.eager import Eager
from tapestry.errors import UnsupportedError, UsageError
from tapestry.placement.placement import Placement, place_on
from tapestry.profiling.profile import profile
from tapestry.profiling.result import ProfileResult, RegionProfile, Roofs
from tapestry.profiling.work import region_work
from tapestry.program.capture import capture
from tapestry.program.graph import Ref
from tapestry.program.program import Program
from tapestry.program.region import region_of
from tapestry.program.work import Work
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.resident import Resident

ROOFS = Roofs(1e15, 1e18, "given", "given", 1)


def profiled(
    *backends: Backend,
    program: Program | None = None,
    sets: Sequence[object] | None = None,
    placement: Placement | None = None,
    device: EagerMockDevice | None = None,
) -> ProfileResult:
    there = device or EagerMockDevice()
    with Compiler(CompileCache()) as compiler:
        found = profile(
            program or blocks()[1], sets or inputs(), Resident(there), backends or (Eager(),), compiler,
            placement=placement, roofs=ROOFS,
        )  # fmt: skip
    assert there.stats() == type(there)().stats(), "all that was put on the device was taken from it"
    return found


def of_op(result: ProfileResult, op: str) -> list[RegionProfile]:
    return [row for row in result.regions if row.ops == (f"aten.{op}",)]


def test_equal_layers_are_one_row() -> None:
    result = profiled()
    (gelu,) = of_op(result, "gelu.default")
    assert (gelu.calls, gelu.place, gelu.backend, gelu.launches) == (LAYERS, "target", "eager", 1)
    assert [site.module for site in gelu.sites] == [f"blocks.{layer}" for layer in range(LAYERS)]
    assert "migrating.py:" in gelu.sites[0].source
    assert sum(row.calls for row in of_op(result, "linear.default")) == 2 * LAYERS + 1


def test_every_node_that_computes_is_in_one_row() -> None:
    _, program = blocks()
    nodes = [node for row in profiled().regions for site in row.sites for node in site.nodes]
    assert sorted(nodes) == sorted(program.compute)


def test_work_and_rates_by_hand() -> None:
    result = profiled()
    (gelu,) = of_op(result, "gelu.default")
    assert (gelu.flops, gelu.nbytes) == (3 * 16, 2 * 3 * 16 * 4)
    for row in result.regions:
        assert row.timing is not None
        assert 0 < row.timing.low <= row.timing.median <= row.timing.high
        assert row.bytes_per_second == pytest.approx(row.nbytes / row.timing.median)
        assert row.flops_per_second == pytest.approx(row.flops / row.timing.median)
        # The roofs are far above what a mock device does.
        assert row.roof_share is not None
        assert 0 < row.roof_share < 1
    assert result.target_seconds == pytest.approx(sum(entry.seconds for entry in result.operators))
    assert result.headroom_seconds == pytest.approx(sum(row.headroom_seconds or 0 for row in result.regions))
    gains = [entry.headroom_seconds for entry in result.operators]
    assert gains == sorted(gains, reverse=True)


def test_what_no_backend_takes_stays_on_the_source_with_the_reason() -> None:
    result = profiled(PartialEager(["aten.gelu.default"]))
    (gelu,) = of_op(result, "gelu.default")
    assert (gelu.place, gelu.calls, gelu.backend) == ("source", LAYERS, "")
    assert gelu.reason == "partial: partial has no aten.gelu.default yet"
    assert gelu.roof_share is None
    assert gelu.seconds > 0
    assert result.source_seconds == gelu.seconds
    (summed,) = [entry for entry in result.operators if entry.op == "aten.gelu.default"]
    assert (summed.calls, summed.source_calls, summed.headroom_seconds) == (0, LAYERS, 0.0)


def test_backends_are_asked_in_order() -> None:
    result = profiled(PartialEager(["aten.gelu.default"]), Eager())
    assert {row.backend for row in of_op(result, "gelu.default")} == {"eager"}
    assert {row.backend for row in of_op(result, "linear.default")} == {"partial"}
    assert result.backend == "eager,partial"


@pytest.mark.parametrize(
    ("kind", "words"),
    [("compile", "cannot compile"), ("raise", "this kernel always fails"), ("abort", "died"), ("hang", "hung")],
)
def test_what_fails_on_the_target_stays_on_the_source(kind: str, words: str) -> None:
    """A device that is lost on the way is started again, and what comes after is timed."""
    result = profiled(FaultyBackend(Fault(kind, "aten.gelu.default")))
    (gelu,) = of_op(result, "gelu.default")
    assert gelu.place == "source"
    assert words in gelu.reason
    assert {row.place for row in result.regions if row is not gelu} == {"target"}


def test_the_regions_of_a_placement() -> None:
    _, program = blocks()
    layers = [
        [node_id for node_id in program.placeable if program.by_id[node_id].source.module.startswith(f"blocks.{k}")]
        for k in range(LAYERS)
    ]
    placed = place_on(program, layers[1:], Eager(), Eager().options()[0], "mock:0")
    result = profiled(placement=placed)
    there = [row for row in result.regions if row.place == "target"]
    assert [(row.calls, len(row.sites[0].nodes)) for row in there] == [(LAYERS - 1, len(layers[0]))]
    assert there[0].kind == "aten.linear.default + aten.gelu.default + aten.add.Tensor + aten.layer_norm.default"
    left = {node for row in result.regions if row.place == "source" for site in row.sites for node in site.nodes}
    assert set(layers[0]) <= left
    assert {row.reason for row in result.regions if row.place == "source"} == {
        "the placement leaves it on the source"
    }  # fmt: skip


def test_a_placement_of_another_device_is_refused() -> None:
    _, program = blocks()
    placed = place_on(program, [program.placeable[:1]], Eager(), Eager().options()[0], "opencl:0")
    with pytest.raises(UsageError, match=r"names device opencl:0; expected mock:0"):
        profiled(placement=placed)


def test_random_and_views() -> None:
    class Noisy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x.t(), 0.5, training=True).relu()

    call = (torch.ones(3, 4),)
    result = profiled(program=capture(Noisy(), call), sets=[call])
    assert [(row.place, row.ops) for row in result.regions] == [
        ("target", ("aten.relu.default",)), ("source", ("aten.dropout.default",)),
    ]  # fmt: skip
    assert "random" in result.regions[1].reason


class _Other(Eager):
    device_kinds: ClassVar[frozenset[str]] = frozenset({"opencl"})


def test_a_backend_of_another_device_is_refused() -> None:
    with pytest.raises(UsageError, match="backend eager runs on opencl, not on mock:0"):
        profiled(_Other())


class _Strange(EagerMockDevice):
    def __init__(self) -> None:
        super().__init__()
        self._info = DeviceInfo("abacus", "abacus:0", "", "1")


def test_a_device_without_benchmarks_is_refused() -> None:
    with Compiler(CompileCache()) as compiler, pytest.raises(UnsupportedError, match=r"no roof benchmark.*abacus"):
        profile(blocks()[1], inputs(), Resident(_Strange()), (Eager(),), compiler)


class _Table(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(100, 4)
        self.register_buffer("cache", torch.zeros(50, 4))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        rows = self.table(index).tanh()
        self.cache.index_copy_(0, index, rows)
        return rows


def test_the_work_of_a_region_is_what_crosses_its_border() -> None:
    index = torch.tensor([3, 1])
    program = capture(_Table(), (index,))
    by_op = {node.op.split(".")[1]: node.id for node in program.nodes}
    rows = region_of(program, [by_op["embedding"], by_op["tanh"]])
    # Two indices of eight bytes, two rows of the table, two rows out; what lies between them stays inside.
    assert region_work(rows) == Work(8, 16 + 32 + 32)
    write = region_of(program, [by_op["index_copy"]])
    assert region_work(write).nbytes == 800 + 16 + 32 + 800
    (state,) = program.state_names
    assert region_work(write, {Ref(state)}).nbytes == 16 + 32
