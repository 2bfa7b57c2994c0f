"""The second stage has a limit of its own, longer than a request's; one that never ends is a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.slow_backend import SlowOptions, SlowToBind
from tapestry.backends.cache import CompileCache
from tapestry.backends.compiler import Compiler
from tapestry.errors import DeviceTimeoutError
from tapestry.numerics.verdict import Verdict
from tapestry.program.capture import capture
from tapestry.program.inputs import as_input_sets
from tapestry.runtime.device import Call
from tapestry.runtime.drivers import host as driver
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.runtime.worker.device import WorkerDevice
from tapestry.suite.carve import carve
from tapestry.suite.case import Suite
from tapestry.suite.on_target import Target, replay_on
from tapestry.suite.verdicts import CaseResult

pytestmark = pytest.mark.slow


class Scaled(torch.nn.Module):
    """Multiplies by a constant, which is one."""

    factor: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerDevice]:
    monkeypatch.setattr(driver, "_loader_prefixes", ["support."])
    with open_device("cpu", timeout=5) as device:
        yield device


@pytest.fixture(scope="module")
def suite() -> Suite:
    x = torch.arange(8.0)
    return carve(capture(Scaled(), (x,)), as_input_sets([(x,)]))


def result(device: WorkerDevice, suite: Suite, seconds: float, folder: Path) -> CaseResult:
    with Compiler(CompileCache(folder)) as compiler:
        (found,) = replay_on(Target(Resident(device), SlowToBind(), SlowOptions(seconds), compiler), suite).results
    return found


def test_binding_may_take_longer_than_a_request(worker: WorkerDevice, suite: Suite, tmp_path: Path) -> None:
    assert result(worker, suite, 6.0, tmp_path).verdict == Verdict.PASS
    assert worker.generation == 0, "the worker was not killed"


def test_binding_that_never_ends_is_a_verdict(worker: WorkerDevice, suite: Suite, tmp_path: Path) -> None:
    worker.timeout, worker.bind_timeout = 1.0, 1.0
    ended = result(worker, suite, 3600.0, tmp_path)
    assert ended.verdict == Verdict.TIMEOUT
    assert "within 2.00003 s (constants were being bound)" in ended.reason  # 32 bytes at a second for every MiB
    worker.timeout = 5.0
    assert result(worker, suite, 0.0, tmp_path).verdict == Verdict.PASS


def test_only_binding_gets_the_time(worker: WorkerDevice, suite: Suite, tmp_path: Path) -> None:
    assert result(worker, suite, 0.0, tmp_path).verdict == Verdict.PASS
    worker.timeout = 1.0
    hung = SlowToBind().compile(suite.cases[0].load_graph(), worker.info, SlowOptions(3600.0))
    loaded = worker.load(hung.module)
    buffers = [worker.alloc(32) for _ in range(3)]
    worker.submit([Call(loaded, (buffers[0], buffers[1]), (buffers[2],))])  # binds unasked, in a run's time
    with pytest.raises(DeviceTimeoutError, match=r"within 1 s; its worker was killed"):
        worker.sync()
