"""An agent in this process, on a mock device whose faults are real (it lives in the agent's worker)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.mock_device import register_mock_driver
from support.serving import connected, serving
from tapestry.runtime.remote.agent import Agent
from tapestry.runtime.remote.device import RemoteDevice

pytest.importorskip("websockets")


@pytest.fixture
def mock_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.runtime.drivers.registry._registered", {})
    monkeypatch.setattr("tapestry.runtime.open._tokens", {})
    monkeypatch.setattr("tapestry.runtime.remote.agent.WRONG_TOKEN_SECONDS", 0.0)
    monkeypatch.delenv("TAPESTRY_TOKEN", raising=False)
    register_mock_driver()


@pytest.fixture
def agent(mock_driver: None) -> Iterator[Agent]:
    with serving() as running:
        yield running


@pytest.fixture
def device(agent: Agent) -> Iterator[RemoteDevice]:
    with connected(agent) as opened:
        yield opened
