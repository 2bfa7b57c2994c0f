"""A device behind an agent is a device: it runs, fails, is lost and found as one in a worker."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from support.mock_device import mock_module
from support.serving import TOKEN, address, connected, opened, serving
from tapestry.errors import (
    ConnectionLostError,
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
    EnvironmentProblem,
    TapestryError,
    UnsupportedError,
    UsageError,
)
from tapestry.runtime.device import Device, Launch
from tapestry.runtime.module import KernelModule, Scalar
from tapestry.runtime.names import parse_device_name
from tapestry.runtime.open import open_device, open_in_process
from tapestry.runtime.remote.agent import Agent
from tapestry.runtime.remote.device import RemoteDevice

ONE = (1, 1, 1)


def fill(device: Device, value: float) -> list[float]:
    """Load, launch, read: four floats."""
    loaded = device.load(mock_module())
    buffer = device.alloc(16)
    device.submit([Launch(loaded, "fill", (buffer, Scalar("float32", value)), ONE, ONE)])
    found = np.frombuffer(device.read(buffer, 16), np.float32).tolist()
    device.free(buffer)
    device.unload(loaded)
    return found


def run_fault(device: Device, fault: str) -> None:
    loaded = device.load(mock_module(fault))
    device.submit([Launch(loaded, fault, (device.alloc(4),), ONE, ONE)])
    device.sync()


def test_it_is_a_device(device: RemoteDevice) -> None:
    assert isinstance(device, Device)
    assert fill(device, 2.5) == [2.5] * 4
    assert [entry.count for entry in device.launch_log()] == [1]
    assert device.stats().buffers == 0
    assert device.time([], 3) is not None
    assert 0 < device.ping() < 5


def test_its_name_is_its_address_without_the_token(agent: Agent, device: RemoteDevice) -> None:
    assert device.info.name == f"ws://127.0.0.1:{agent.address[1]}/mock:0"
    assert device.info.kind == "mock"
    assert TOKEN not in repr(device.info)


def test_megabytes_travel_unharmed(device: RemoteDevice) -> None:
    data = np.random.default_rng(0).bytes(20 << 20)
    buffer = device.alloc(len(data))
    device.write(buffer, data)
    assert device.read(buffer, len(data)) == data
    assert device.read(buffer, 10, 5 << 20) == data[5 << 20 :][:10]


def test_many_pipelined_messages_arrive_in_order(device: RemoteDevice) -> None:
    buffer = device.alloc(4 * 5000)
    for place in range(5000):
        device.write(buffer, np.int32(place).tobytes(), 4 * place)
    assert np.frombuffer(device.read(buffer, 4 * 5000), np.int32).tolist() == list(range(5000))


def test_errors_are_those_of_the_device(device: RemoteDevice) -> None:
    with pytest.raises(DeviceError, match="syntax error"):
        device.load(mock_module("fill", source="syntax error"))
    with pytest.raises(DeviceError, match="kernel raise failed"):
        run_fault(device, "raise")
    with pytest.raises(UnsupportedError, match="got 'opencl'"):
        device.load(KernelModule("opencl", "", ()))
    assert fill(device, 1.0) == [1.0] * 4


def test_a_read_in_parts_that_fails_leaves_nothing_behind(device: RemoteDevice) -> None:
    buffer = device.alloc(20 << 20)
    device.write(buffer, bytes(20 << 20))
    loaded = device.load(mock_module("raise"))
    for _ in range(2):
        device.submit([Launch(loaded, "raise", (buffer,), ONE, ONE)])
        with pytest.raises(DeviceError, match="kernel raise failed"):
            device.read(buffer, 20 << 20)
        assert device.read(buffer, 20 << 20) == bytes(20 << 20)


def test_out_of_memory_is_said_with_numbers_and_costs_nothing(device: RemoteDevice) -> None:
    kept = device.alloc(16)
    device.alloc(1 << 40)
    with pytest.raises(DeviceError, match=r"out of memory, 1099511627776 bytes") as caught:
        device.sync()
    assert not isinstance(caught.value, DeviceLostError)
    device.write(kept, b"x" * 16)
    assert device.read(kept, 16) == b"x" * 16


def test_the_agent_bounds_what_its_device_holds(mock_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("cpu") as agent, connected(agent) as device:
        total = device.info.limits.memory_bytes
        for _ in range(3):
            device.alloc(total // 2)
        with pytest.raises(DeviceError, match="out of memory"):
            device.sync()
        device.sync()


@pytest.mark.parametrize(
    ("fault", "how"), [("segfault", "SIGSEGV"), ("abort", "SIGABRT"), ("exit", "exited with code 7")]
)
def test_a_crash_costs_the_worker_not_the_agent(agent: Agent, device: RemoteDevice, fault: str, how: str) -> None:
    with pytest.raises(DeviceLostError, match=how) as caught:
        run_fault(device, fault)
    assert not isinstance(caught.value, ConnectionLostError | DeviceTimeoutError)
    assert str(agent.address[1]) in str(caught.value)
    with pytest.raises(DeviceLostError, match="restart"):
        device.sync()
    generation = device.generation
    device.restart()
    assert device.generation == generation + 1
    assert fill(device, 3.0) == [3.0] * 4


def test_an_endless_kernel_is_given_up_after_the_clients_time(agent: Agent) -> None:
    with connected(agent, timeout=1) as device:
        begin = time.monotonic()
        with pytest.raises(DeviceTimeoutError, match=r"within 1 s"):
            run_fault(device, "hang")
        assert time.monotonic() - begin < 5
        device.restart()
        assert fill(device, 3.0) == [3.0] * 4


def test_a_client_that_leaves_takes_its_endless_kernel_along(agent: Agent) -> None:
    with connected(agent, timeout=60) as device:
        loaded = device.load(mock_module("hang"))
        device.submit([Launch(loaded, "hang", (device.alloc(4),), ONE, ONE)])
        threading.Timer(0.5, device._channel.cut).start()  # type: ignore[union-attr]  # noqa: SLF001
        with pytest.raises(ConnectionLostError):
            device.sync()
    begin = time.monotonic()
    with connected(agent) as other:
        assert fill(other, 1.0) == [1.0] * 4
    assert time.monotonic() - begin < 10


def test_one_client_at_a_time_and_the_other_is_told_who(
    agent: Agent, device: RemoteDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tapestry.runtime.protocol.client.CLIENT", "another process")
    with pytest.raises(EnvironmentProblem, match=r"in use by tapestry on .*, process \d+ .* at 127\.0\.0\.1:\d+, for"):
        opened(address(agent))
    assert fill(device, 1.0) == [1.0] * 4
    device.close()
    other = opened(address(agent))
    assert fill(other, 2.0) == [2.0] * 4
    other.close()


def test_a_process_may_open_the_device_more_than_once(agent: Agent, device: RemoteDevice) -> None:
    with connected(agent) as second:
        assert fill(second, 1.0) == [1.0] * 4
        with pytest.raises(DeviceLostError):
            run_fault(second, "exit")
        assert fill(device, 2.0) == [2.0] * 4


def test_where_nobody_listens() -> None:
    with pytest.raises(EnvironmentProblem, match=r"no agent at 127\.0\.0\.1:1 .*tapestry agent") as caught:
        open_device(f"ws://127.0.0.1:1/cpu?token={TOKEN}")
    assert TOKEN not in str(caught.value)


def test_another_device_than_the_agents(agent: Agent) -> None:
    with pytest.raises(UsageError, match="this agent serves mock:0, not 'cpu'"):
        opened(address(agent, "cpu"))


def test_the_token_may_come_from_the_environment_or_the_process(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = address(agent).partition("?")[0]
    with pytest.raises(UsageError, match=r"expected a token .*TAPESTRY_TOKEN"):
        open_device(bare)
    monkeypatch.setenv("TAPESTRY_TOKEN", TOKEN)
    opened(bare).close()
    monkeypatch.delenv("TAPESTRY_TOKEN")
    opened(bare).close()  # what a placement names, say, after its device was used


def test_no_remote_device_in_this_process() -> None:
    with pytest.raises(EnvironmentProblem, match="not of this machine"):
        open_in_process("ws://127.0.0.1:1/cpu?token=x")


def test_a_missing_library_names_its_install_line(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "websockets.sync.client", None)
    monkeypatch.setitem(__import__("sys").modules, "websockets.exceptions", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'tapestry-ml\[remote\]'"):
        opened(address(agent))


def test_stopping_the_agent_ends_its_clients_and_workers(mock_driver: None) -> None:
    with serving() as agent:
        device = RemoteDevice(parse_device_name(address(agent)), timeout=10, reconnect=0.5)
        fill(device, 1.0)
    with pytest.raises(ConnectionLostError):
        device.sync()
    with pytest.raises(DeviceLostError, match=r"no connection again within 0\.5 s"):
        device.restart()
    with pytest.raises(TapestryError):
        device.sync()
    device.close()
