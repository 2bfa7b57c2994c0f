"""What the runtime's tests share: mock devices in workers, and the same examples in every run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from support.mock_device import register_mock_driver
from tapestry.runtime.open import open_device
from tapestry.runtime.worker.device import WorkerDevice

settings.register_profile("runtime", derandomize=True, deadline=None)
settings.load_profile("runtime")


@pytest.fixture
def mock_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerDevice]:
    """A mock device in a worker, whose faults are real."""
    monkeypatch.setattr("tapestry.runtime.drivers.registry._registered", {})
    register_mock_driver()
    with open_device("mock", timeout=10) as device:
        yield device
