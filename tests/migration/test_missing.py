"""Partial targets: a migration ends in a valid mixture, whose cost is told, and whose missing operators are ranked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from support.eager_device import EagerMockDevice
from support.migrating import blocks, blocks_suite, inputs
from support.partial_backend import PartialEager, PartialTvm, every_other_operator
from tapestry.backends.base import Backend
from tapestry.backends.cache import CompileCache
from tapestry.backends.compiler import Compiler
from tapestry.errors import DeviceError
from tapestry.migration.engine import Migration, Outcome
from tapestry.migration.migrate import summarise
from tapestry.migration.missing import ESTIMATED, MEASURED, weigh
from tapestry.migration.result import MigrationResult, MissingOperator, Mixed
from tapestry.models.load import load_model
from tapestry.profiling.result import Roofs
from tapestry.profiling.transfers import transfers_of
from tapestry.program.capture import capture
from tapestry.program.inputs import InputSet, as_input_sets
from tapestry.program.program import Program
from tapestry.program.work import work_of
from tapestry.runtime.device import Buffer, Device
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.carve import carve
from tapestry.suite.case import Suite
from tapestry.suite.on_target import Target

#: Roofs that make every estimate of a tiny model far less than its measured time.
HIGH = Roofs(1e15, 1e18, "given", "given", 1)


class Ended:
    """A migration that has ended, and what it was weighed as. ``executable`` is open."""

    def __init__(
        self, outcome: Outcome, result: MigrationResult, mixed: Mixed, missing: Sequence[MissingOperator]
    ) -> None:
        self.outcome = outcome
        self.result = result
        self.mixed = mixed
        self.missing = tuple(missing)

    @property
    def by_op(self) -> dict[str, MissingOperator]:
        return {entry.op: entry for entry in self.missing}


def move(
    device: Device,
    backend: Backend,
    compiler: Compiler,
    program: Program,
    sets: tuple[InputSet, ...],
    suite: Suite,
    roofs: Roofs | None,
) -> Ended:
    target = Target.of(Resident(device), backend, compiler)
    outcome = Migration(program, suite, sets, [target]).run()
    result = summarise(program, suite, outcome, [target])
    reasons = {entry.node: entry.reason for entry in result.blocked}
    mixed, missing = weigh(program, sets[0].calls[0], outcome.executable, target.resident, compiler, reasons, roofs)
    return Ended(outcome, result, mixed, missing)


def move_blocks(*lacks: str, device: EagerMockDevice | None = None, roofs: Roofs | None = HIGH) -> Ended:
    _, program = blocks()
    with Compiler(CompileCache()) as compiler:
        return move(
            device or EagerMockDevice(), PartialEager(lacks), compiler, program, as_input_sets(inputs()),
            blocks_suite(1), roofs,
        )  # fmt: skip


def test_half_of_the_operators_missing_ends_right_and_mixed() -> None:
    model, program = blocks()
    lacks = every_other_operator(program)
    assert len(lacks) >= 2
    ended = move_blocks(*lacks)
    assert ended.result.check.good
    assert 0 < ended.result.coverage.compute_nodes < 1
    ended.outcome.placement.check(program)
    (given,) = inputs()
    # What eager gives is run by eager on both sides here, operator by operator.
    torch.testing.assert_close(ended.outcome.executable(*given), model(*given), rtol=0, atol=0)
    assert set(ended.by_op) == set(lacks)
    assert {node for entry in ended.missing for node in entry.nodes} == {b.node for b in ended.result.blocked}
    for entry in ended.missing:
        (reason,) = entry.reasons
        assert f"partial has no {entry.op} yet" in reason.reason
        assert reason.nodes == len(entry.nodes)


def test_the_cost_is_that_of_the_run() -> None:
    ended = move_blocks("aten.gelu.default", "aten.tanh.default")
    (given,) = inputs()
    ended.outcome.executable(*given)
    log = ended.outcome.executable.log
    # 8 GELUs and a tanh: each needs its operand down and its result up; besides the model's input and output.
    assert ended.mixed.transfers == log.transfers == ended.result.coverage.transfers == 2 * 9 + 2
    assert ended.mixed.transfer_bytes == log.upload_bytes + log.download_bytes
    assert ended.mixed.source_nodes == 9
    assert ended.mixed.transfer_seconds is not None
    assert ended.mixed.transfer_seconds > 0
    assert ended.mixed.source_seconds == pytest.approx(sum(entry.source_seconds for entry in ended.missing))
    assert ended.mixed.target_seconds is not None
    assert ended.mixed.target_seconds > 0
    assert ended.mixed.note == ""


def test_what_each_operator_would_bring() -> None:
    _, program = blocks()
    ended = move_blocks("aten.gelu.default", "aten.tanh.default")
    gelu, tanh = ended.by_op["aten.gelu.default"], ended.by_op["aten.tanh.default"]
    assert (len(gelu.nodes), gelu.transfers, len(tanh.nodes), tanh.transfers) == (8, 16, 1, 2)
    # 3 by 16 and 3 by 4 float32.
    assert (gelu.transfer_bytes, tanh.transfer_bytes) == (16 * 3 * 16 * 4, 2 * 3 * 4 * 4)
    assert gelu.compute_share == 8 / len(program.compute)
    total = sum(work_of(program, node_id).flops for node_id in program.compute)
    assert gelu.flops == 8 * 48
    assert gelu.flops_share == pytest.approx(gelu.flops / total)


def test_the_gain_is_the_stated_formula_and_ranks() -> None:
    ended = move_blocks("aten.gelu.default", "aten.tanh.default", "aten.softmax.int")
    for entry in ended.missing:
        assert entry.transfer_seconds is not None
        assert entry.roof_seconds is not None
        assert entry.gain_seconds == pytest.approx(entry.source_seconds + entry.transfer_seconds - entry.roof_seconds)
        assert ended.mixed.roof_share is not None
        assert entry.target_seconds == pytest.approx(entry.roof_seconds / ended.mixed.roof_share)
        assert entry.likely_gain_seconds == pytest.approx(
            entry.source_seconds + entry.transfer_seconds - entry.target_seconds
        )
    gains = [entry.gain_seconds or 0.0 for entry in ended.missing]
    assert gains == sorted(gains, reverse=True)
    # Eight calls and sixteen transfers against one call and two transfers each.
    assert ended.missing[0].op == "aten.gelu.default"
    assert set(MEASURED) <= set(Mixed.__struct_fields__)
    assert {name.removeprefix("operators.") for name in ESTIMATED} <= set(MissingOperator.__struct_fields__)


def test_moving_one_of_two_neighbours_adds_transfers() -> None:
    """Of GELU → linear → norm on the source, the linear in the middle alone would be an island."""
    ended = move_blocks("aten.gelu.default", "aten.linear.default", "aten.add.Tensor")
    assert ended.by_op["aten.gelu.default"].transfers < 0


def test_where_nothing_is_missing() -> None:
    ended = move_blocks()
    assert ended.missing == ()
    assert (ended.mixed.transfers, ended.mixed.source_nodes, ended.mixed.source_seconds) == (2, 0, 0.0)
    assert ended.mixed.roofs is None
    assert ended.mixed.target_seconds is None


class _WithoutMemory(EagerMockDevice):
    """Has none left for whoever measures."""

    measured = False

    def alloc(self, nbytes: int) -> Buffer:
        if self.measured:
            raise DeviceError("mock: out of memory")
        return super().alloc(nbytes)


def test_a_device_that_cannot_be_measured_is_told() -> None:
    _, program = blocks()
    device = _WithoutMemory()
    sets = as_input_sets(inputs())
    with Compiler(CompileCache()) as compiler:
        target = Target.of(Resident(device), PartialEager(["aten.gelu.default"]), compiler)
        outcome = Migration(program, blocks_suite(1), sets, [target]).run()
        reasons = {entry.node: entry.reason for entry in summarise(program, blocks_suite(1), outcome, [target]).blocked}
        device.measured = True
        mixed, (gelu,) = weigh(program, sets[0].calls[0], outcome.executable, target.resident, compiler, reasons, HIGH)
    assert "transfers could not be timed: mock: out of memory" in mixed.note
    assert mixed.transfer_seconds is None
    assert gelu.gain_seconds is None
    assert gelu.source_seconds > 0
    assert gelu.transfers == 16


class _Counter(torch.nn.Module):
    """A written buffer, a random operator, an index that is looked up: what has its own rules about travelling."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = torch.nn.Embedding(5, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x.sum(0))
        noise = torch.nn.functional.dropout(x, 0.5, training=True)
        return torch.tanh(self.table(index + 1) + noise) + self.seen


@pytest.mark.parametrize("lacks", [[], ["aten.add.Tensor"], ["aten.tanh.default", "aten.embedding.default"]])
def test_the_transfers_of_a_cut_are_those_of_a_run(lacks: list[str]) -> None:
    call = (torch.ones(3, 4), torch.tensor([0, 1, 2]))
    program = capture(_Counter(), call)
    sets = as_input_sets([[call, call]])
    with Compiler(CompileCache()) as compiler:
        target = Target.of(Resident(EagerMockDevice()), PartialEager(lacks), compiler)
        suite = carve(program, sets)
        outcome = Migration(program, suite, sets, [target]).run()
        executable = outcome.executable
        there = {node_id for region in outcome.placement.regions for node_id in region.nodes}
        sizes = {ref: decl.nbytes for (ref, _), decl in executable.layout.decls.items()}
        found = transfers_of(program, there, sizes)
        for _ in range(2):  # the state is where it stays from the second call on
            executable(*call)
        log = executable.log
        assert sum(entry.up for entry in found) == log.uploads
        assert sum(not entry.up for entry in found) == log.downloads
        assert sum(entry.nbytes for entry in found if entry.up) == log.upload_bytes
        assert sum(entry.nbytes for entry in found if not entry.up) == log.download_bytes
        reasons = {entry.node: entry.reason for entry in summarise(program, suite, outcome, [target]).blocked}
        _, missing = weigh(program, sets[0].calls[0], executable, target.resident, compiler, reasons, HIGH)
        executable.close()
    assert missing[-1].op == "aten.dropout.default"
    assert not missing[-1].movable
    assert missing[-1].gain_seconds is None


@pytest.mark.opencl
@pytest.mark.slow
def test_a_partial_target_on_opencl() -> None:
    loaded = load_model("zoo:convnet")
    program = capture(loaded.module, loaded.inputs[0].calls[0].args, loaded.inputs[0].calls[0].kwargs)
    lacks = every_other_operator(program)
    device = open_device("opencl:0")
    try:
        with Compiler(CompileCache()) as compiler:
            ended = move(
                device, PartialTvm(lacks), compiler, program, loaded.inputs, carve(program, loaded.inputs), HIGH
            )
            assert ended.result.check.good, ended.result.check
            assert 0 < ended.result.coverage.compute_nodes < 1
            ended.outcome.placement.check(program)
            assert ended.mixed.transfers == ended.result.coverage.transfers
            assert ended.mixed.transfer_bytes == ended.result.coverage.transfer_bytes
            assert {program.by_id[node].op for entry in ended.missing for node in entry.nodes} == set(lacks)
            gains = [entry.gain_seconds for entry in ended.missing]
            assert None not in gains
            assert gains == sorted(gains, key=lambda gain: -(gain or 0.0))
            ended.outcome.executable.close()
    finally:
        device.close()
