"""A Chromium that the tests of this folder share: its tab gives every test a device of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fake_tab import free_port
from tapestry.runtime.browser import shared
from tapestry.runtime.browser.chromium import Chromium
from tapestry.runtime.browser.device import AnyTabDevice
from tapestry.runtime.names import DeviceName


@pytest.fixture(scope="module")
def tab_port() -> Iterator[int]:
    """The port of a host whose page is open in a Chromium."""
    port = free_port()
    with shared.kept(port):
        chromium = Chromium(shared.enter(port).url)
        shared.leave(port)
        yield port
        chromium.kill()


@pytest.fixture
def device(tab_port: int) -> Iterator[AnyTabDevice]:
    with AnyTabDevice(DeviceName("browser", port=tab_port), start_timeout=60, announce=lambda _: None) as device:
        yield device
