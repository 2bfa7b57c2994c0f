"""What networks do: a connection is cut, slow, or open on one side only."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from support.mock_device import mock_module
from support.serving import TOKEN, connected, serving
from support.tcp_proxy import Proxy
from tapestry.errors import ConnectionLostError, DeviceLostError, UsageError
from tapestry.runtime.again import until_connected
from tapestry.runtime.device import Buffer, Device, Launch
from tapestry.runtime.module import Scalar
from tapestry.runtime.remote.agent import Agent

ONE = (1, 1, 1)


@pytest.fixture
def proxy(agent: Agent) -> Iterator[Proxy]:
    with Proxy(agent.address[1]) as running:
        yield running


def fill(device: Device, value: float) -> list[float]:
    loaded = device.load(mock_module())
    buffer = device.alloc(16)
    device.submit([Launch(loaded, "fill", (buffer, Scalar("float32", value)), ONE, ONE)])
    found = np.frombuffer(device.read(buffer, 16), np.float32).tolist()
    device.free(buffer)
    device.unload(loaded)
    return found


def write_again_and_again(device: Device, buffer: Buffer) -> None:
    while True:
        device.write(buffer, bytes(buffer.nbytes))


def test_a_cut_connection_is_told_and_made_again(agent: Agent, proxy: Proxy) -> None:
    with connected(agent, port=proxy.port) as device:
        buffer = device.alloc(16)
        device.sync()
        proxy.cut()
        with pytest.raises(ConnectionLostError) as caught:
            device.sync()
        assert f"127.0.0.1:{proxy.port}" in str(caught.value)
        assert TOKEN not in str(caught.value)
        with pytest.raises(DeviceLostError, match="restart"):
            device.alloc(16)
        device.free(buffer)  # does nothing, and does not fail
        device.restart()
        with pytest.raises(UsageError, match="before a restart"):
            device.read(buffer, 16)
        assert fill(device, 2.0) == [2.0] * 4


def test_cut_while_it_sends_and_while_it_waits(agent: Agent, proxy: Proxy) -> None:
    with connected(agent, port=proxy.port) as device:
        for _ in range(3):
            threading.Timer(0.3, proxy.cut).start()
            buffer = device.alloc(1 << 20)
            with pytest.raises(ConnectionLostError):
                write_again_and_again(device, buffer)
            device.restart()
        device.submit([Launch(device.load(mock_module("hang")), "hang", (device.alloc(4),), ONE, ONE)])
        threading.Timer(0.3, proxy.cut).start()
        with pytest.raises(ConnectionLostError):
            device.sync()
        device.restart()  # its old worker hangs in a kernel: the agent ends it
        assert fill(device, 1.0) == [1.0] * 4


def test_a_slow_connection_is_slow(agent: Agent, proxy: Proxy) -> None:
    proxy.bytes_per_second, proxy.delay = 400e3, 0.02
    with connected(agent, port=proxy.port) as device:
        data = np.random.default_rng(0).bytes(300_000)
        buffer = device.alloc(len(data))
        begin = time.monotonic()
        device.write(buffer, data)
        assert device.read(buffer, len(data)) == data
        assert time.monotonic() - begin > 1
        assert fill(device, 2.0) == [2.0] * 4


def test_a_half_open_connection_is_noticed_on_both_sides(mock_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.runtime.remote.channel.PING_SECONDS", 0.3)
    monkeypatch.setattr("tapestry.runtime.remote.channel.PONG_SECONDS", 0.7)
    lines: list[str] = []
    with serving(lines=lines) as agent, Proxy(agent.address[1]) as proxy, connected(agent, port=proxy.port) as device:
        device.sync()
        proxy.frozen = True
        begin = time.monotonic()
        with pytest.raises(ConnectionLostError):
            device.sync()
        assert time.monotonic() - begin < 8
        deadline = time.monotonic() + 8
        while not any("gone" in line for line in lines):
            assert time.monotonic() < deadline, "the agent still holds the device"
            time.sleep(0.05)
        proxy.frozen = False
        device.restart()
        assert fill(device, 2.0) == [2.0] * 4


def test_a_half_open_connection_is_taken_over_when_its_client_comes_back(agent: Agent, proxy: Proxy) -> None:
    """Before the agent has noticed anything, and although a kernel runs."""
    with connected(agent, port=proxy.port, timeout=1) as device:
        device.submit([Launch(device.load(mock_module("hang")), "hang", (device.alloc(4),), ONE, ONE)])
        proxy.frozen = True
        threading.Timer(0.3, device._channel.cut).start()  # type: ignore[union-attr]  # noqa: SLF001
        with pytest.raises(ConnectionLostError):
            device.sync()
        proxy.frozen = False
        begin = time.monotonic()
        device.restart()
        assert time.monotonic() - begin < 5
        assert fill(device, 2.0) == [2.0] * 4


def test_a_busy_device_is_not_taken_for_a_dead_connection(mock_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pings of the connection are answered while a command runs, and with much sent after it."""
    monkeypatch.setattr("tapestry.runtime.remote.channel.PING_SECONDS", 0.2)
    monkeypatch.setattr("tapestry.runtime.remote.channel.PONG_SECONDS", 0.5)
    with serving() as agent, connected(agent, timeout=3) as device:
        buffer = device.alloc(1 << 20)
        device.submit([Launch(device.load(mock_module("hang")), "hang", (buffer,), ONE, ONE)])
        with pytest.raises(DeviceLostError, match="within 3 s") as caught:
            write_again_and_again(device, buffer)
        assert not isinstance(caught.value, ConnectionLostError)


def test_waiting_for_the_agent_ends(agent: Agent, proxy: Proxy) -> None:
    with connected(agent, port=proxy.port, reconnect=1.0) as device:
        proxy.target = 1
        proxy.cut()
        with pytest.raises(ConnectionLostError):
            device.sync()
        begin = time.monotonic()
        with pytest.raises(DeviceLostError, match=r"no connection again within 1 s"):
            device.restart()
        assert 0.5 < time.monotonic() - begin < 15
        proxy.target = agent.address[1]
        device.restart()
        assert fill(device, 2.0) == [2.0] * 4


def test_work_is_tried_again_after_a_broken_connection_only(agent: Agent, proxy: Proxy) -> None:
    with connected(agent, port=proxy.port) as device:
        tries = 0

        def work() -> list[float]:
            nonlocal tries
            tries += 1
            if tries <= 2:
                proxy.cut()
            return fill(device, 4.0)

        assert until_connected([device], work) == [4.0] * 4
        assert tries == 3
        tries = -10
        with pytest.raises(ConnectionLostError):
            until_connected([device], work)
        assert tries == -7

        def crash() -> None:
            nonlocal tries
            tries += 1
            device.submit([Launch(device.load(mock_module("exit")), "exit", (device.alloc(4),), ONE, ONE)])
            device.sync()

        device.restart()
        tries = 0
        with pytest.raises(DeviceLostError):
            until_connected([device], crash)
        assert tries == 1
