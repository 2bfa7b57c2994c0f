"""A migration that is interrupted goes on from its journal and ends the same; what changed is run again, no more."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from support.eager_device import EagerMockDevice
from support.faulty_backend import Fault, FaultyBackend
from support.migrating import Moved, blocks, blocks_suite, inputs, move
from tapestry.errors import UsageError
from tapestry.runtime.device import Call
from tapestry.suite.journal import Journal

FAULTS = (
    Fault("wrong", "aten.gelu.default"),
    Fault("wrong", "aten.layer_norm.default", after="aten.add.Tensor"),
    Fault("abort", "aten.softmax.int", after="aten.tanh.default"),
)


class Interrupted(EagerMockDevice):
    """Interrupts the job, as Ctrl-C does, at a call; counts the calls."""

    def __init__(self, after: int | None = None) -> None:
        super().__init__()
        self.after = after
        self.calls = 0

    def _call(self, program: object, call: Call) -> None:
        self.calls += 1
        if self.after is not None and self.calls > self.after:
            raise KeyboardInterrupt
        super()._call(program, call)  # type: ignore[arg-type]


def comparable(moved: Moved) -> object:
    """The result without what a resumed run may have otherwise."""
    plain = msgspec.to_builtins(moved.result)
    plain.pop("program_runs")
    for step in plain["steps"]:
        del step["seconds"], step["resumed"]
    return plain


def test_a_finished_migration_is_only_checked_again(tmp_path: Path) -> None:
    first = move(FaultyBackend(*FAULTS), journal=tmp_path)
    device = Interrupted()
    second = move(FaultyBackend(*FAULTS), journal=tmp_path, device=device)
    assert comparable(second) == comparable(first)
    assert all(step.resumed or step.max_rel_error is None for step in second.result.steps)
    assert second.result.program_runs == 1  # the final check, which counts the launches, too
    assert device.calls == len(second.outcome.placement.regions)


def test_interrupted_again_and_again(tmp_path: Path) -> None:
    want = move(FaultyBackend(*FAULTS), device=(counter := Interrupted()))
    generator = random.Random(0)
    total = interruptions = 0
    while True:
        device = Interrupted(generator.randrange(5, 150))
        try:
            got = move(FaultyBackend(*FAULTS), journal=tmp_path, device=device)
        except KeyboardInterrupt:
            interruptions += 1
            total += device.calls
            continue
        break
    total += device.calls
    assert interruptions >= 4
    assert comparable(got) == comparable(want)
    # Each interruption loses at most the run it fell into, and the final check may have been begun before.
    assert total <= counter.calls + interruptions * (2 * len(blocks()[1].placeable) + 2)


def test_a_changed_backend_runs_everything_again(tmp_path: Path) -> None:
    first = move(FaultyBackend(*FAULTS), journal=tmp_path)
    second = move(FaultyBackend(version="2"), journal=tmp_path)
    assert second.result.findings == ()
    assert not any(step.resumed for step in second.result.steps)
    third = move(FaultyBackend(*FAULTS), journal=tmp_path)
    assert comparable(third) == comparable(first)


def test_other_inputs_run_the_steps_again_and_the_same_cases_not(tmp_path: Path) -> None:
    move(FaultyBackend(), journal=tmp_path)
    with Journal(tmp_path, "test") as log:
        before = log.found
    suite = blocks_suite(1)
    second = move(FaultyBackend(), sets=[(inputs(2)[1][0],)], suite=suite, journal=tmp_path)
    assert before == 0
    assert not any(step.resumed for step in second.result.steps)
    assert second.result.check.good
    backend = FaultyBackend()
    move(backend, sets=[(inputs(2)[1][0],)], suite=suite, journal=tmp_path)


def test_two_at_once(tmp_path: Path) -> None:
    with Journal(tmp_path, "test"), pytest.raises(UsageError, match="in use by another process"):
        move(FaultyBackend(), journal=tmp_path)


def test_the_journal_of_another_job(tmp_path: Path) -> None:
    with Journal(tmp_path, "another"):
        pass
    with pytest.raises(UsageError, match="belongs to another job"):
        move(FaultyBackend(), journal=tmp_path)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.7, 0.99])
def test_a_journal_cut_anywhere_is_gone_on_from(tmp_path: Path, keep: float) -> None:
    first = move(FaultyBackend(*FAULTS), journal=tmp_path)
    (path,) = tmp_path.glob("*.bin")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    second = move(FaultyBackend(*FAULTS), journal=tmp_path)
    assert comparable(second) == comparable(first)
