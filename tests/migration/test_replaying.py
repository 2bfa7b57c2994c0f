"""Replaying a suite: a verdict for every case whatever the device does, in order, and resumable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.eager_device import EagerMockDevice
from support.faulty_backend import Fault, FaultyBackend, allow_loader
from support.migrating import blocks_suite
from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import register, unregister
from tapestry.errors import UsageError
from tapestry.migration.migrate import migrate
from tapestry.numerics.verdict import Verdict
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.journal import Journal
from tapestry.suite.on_target import Target
from tapestry.suite.replay import replay_on
from tapestry.suite.verdicts import ReplayResult

pytestmark = pytest.mark.slow

GELU, LINEAR, NORM = "aten.gelu.default", "aten.linear.default", "aten.layer_norm.default"
ADD, TANH, SOFTMAX = "aten.add.Tensor", "aten.tanh.default", "aten.softmax.int"
ALL = (
    Fault("wrong", GELU), Fault("abort", NORM), Fault("hang", TANH), Fault("raise", SOFTMAX), Fault("compile", ADD),
)  # fmt: skip
VERDICTS = {
    GELU: Verdict.FAIL, NORM: Verdict.CRASHED, TANH: Verdict.TIMEOUT, SOFTMAX: Verdict.ERROR, ADD: Verdict.ERROR,
    LINEAR: Verdict.PASS,
}  # fmt: skip


def on_mock(backend: FaultyBackend, journal: Path | None = None, device: EagerMockDevice | None = None) -> ReplayResult:
    with Compiler() as compiler:
        target = Target.of(Resident(device or EagerMockDevice()), backend, compiler)
        if journal is None:
            return replay_on(target, blocks_suite())
        with Journal(journal, "replay") as log:
            return replay_on(target, blocks_suite(), log)


def check(result: ReplayResult) -> None:
    assert [entry.case for entry in result.results] == [case.id for case in blocks_suite().cases]
    assert {entry.op: entry.verdict for entry in result.results} == VERDICTS
    assert sum(result.verdicts.values()) == len(result.results)
    assert all(entry.reason for entry in result.failures)


def test_a_verdict_for_every_case(tmp_path: Path) -> None:
    device = EagerMockDevice()
    check(on_mock(FaultyBackend(*ALL), device=device))
    assert device.stats().buffers == device.stats().modules == 0


def test_the_same_in_a_worker_that_really_dies() -> None:
    allow_loader()
    device = open_device("cpu", timeout=4.0)
    try:
        with Compiler() as compiler:
            result = replay_on(Target.of(Resident(device), FaultyBackend(*ALL[:3]), compiler), blocks_suite())
    finally:
        device.close()
    want = {**VERDICTS, SOFTMAX: Verdict.PASS, ADD: Verdict.PASS}
    assert {entry.op: entry.verdict for entry in result.results} == want
    reasons = {entry.op: entry.reason for entry in result.failures}
    assert "SIGABRT" in reasons[NORM]
    assert "within 4 s" in reasons[TANH]


def test_resumed_case_by_case(tmp_path: Path) -> None:
    class Stopping(EagerMockDevice):
        left = 10**9

        def _call(self, *args: object) -> None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            super()._call(*args)  # type: ignore[arg-type]

    runs = 0
    result = None
    for count in (3, 4, 0, 5, 10**9):
        device = Stopping()
        device.left = count
        try:
            result = on_mock(FaultyBackend(*ALL), tmp_path, device)
        except KeyboardInterrupt:
            runs += count
            continue
        runs += count - device.left
    assert result is not None
    check(result)
    called = [case for case in blocks_suite().cases if case.op != ADD]  # what does not compile is never called
    assert runs == len(called)


def test_a_case_stays_known_in_another_suite(tmp_path: Path) -> None:
    """The verdict depends on values and target, not on which case of which suite asks."""
    first = on_mock(FaultyBackend(*ALL), tmp_path)
    device = EagerMockDevice()
    second = on_mock(FaultyBackend(*ALL), tmp_path, device)
    assert second == first
    assert device.started == []


def test_a_backend_for_another_kind_of_device() -> None:
    class Other(FaultyBackend):
        device_kinds = frozenset({"opencl"})

    with pytest.raises(UsageError, match="runs on opencl, not on mock:0"):
        on_mock(Other())


class Dying(FaultyBackend):
    """Crashes and hangs in the worker."""

    name = "dying"

    def __init__(self) -> None:
        super().__init__(Fault("abort", GELU), Fault("abort", SOFTMAX, after=TANH))


@pytest.fixture
def dying() -> Iterator[str]:
    register(Dying)
    allow_loader()
    yield "dying"
    unregister("dying")


@pytest.mark.thorough
def test_a_migration_over_a_worker_that_dies(dying: str) -> None:
    torch.manual_seed(0)

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(torch.tanh(torch.nn.functional.gelu(self.inner(x))), -1)

    model, x = Small().eval(), torch.randn(2, 4)
    with migrate(model, "cpu", [(x,)], backend=dying) as moved:
        assert {(entry.cause, entry.verdict) for entry in moved.result.findings} == {
            ("replay", "crashed"), ("merge", "crashed"),
        }  # fmt: skip
        assert moved.result.check.good
        assert [entry.op for entry in moved.result.blocked] == [GELU]
        with torch.no_grad():
            assert torch.allclose(moved.executable(x), model(x))  # type: ignore[arg-type]
