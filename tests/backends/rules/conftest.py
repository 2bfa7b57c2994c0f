"""A device for rules to ask about."""

from __future__ import annotations

import pytest

from tapestry.runtime.device import DeviceInfo


@pytest.fixture(scope="session")
def info() -> DeviceInfo:
    return DeviceInfo("mock", "mock:0", "a mock device", "mock-1", dtypes=frozenset({"float32"}))
