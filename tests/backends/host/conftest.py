"""Fixtures: a bench on the host device, and the backends that are installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from support.host_bench import HostBench, ready
from tapestry.backends.base import Backend


@pytest.fixture
def host() -> Iterator[HostBench]:
    with ExitStack() as stack:
        yield HostBench(stack)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    """The backend named by the parameter; missing ones skip, or fail where devices are required."""
    return ready(request.param, request.config)
