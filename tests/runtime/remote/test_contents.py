"""What has travelled once stays with the agent: constants and modules are not sent again, within its quota."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from support.mock_device import MockDevice, mock_module
from support.raw_client import ask, frame, greeted
from support.serving import connected, serving
from support.tcp_proxy import Proxy
from tapestry.errors import ConnectionLostError
from tapestry.runtime.device import KeepsContents
from tapestry.runtime.remote.agent import Agent
from tapestry.runtime.remote.device import RemoteDevice
from tapestry.runtime.resident import Resident

MIB = 1 << 20


def constant(seed: int, nbytes: int = 3 * MIB) -> bytes:
    return np.random.default_rng(seed).bytes(nbytes)


class Made:
    """Makes a constant and counts how often it had to."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.times = 0

    def __call__(self) -> bytes:
        self.times += 1
        return self.data


def test_constants_travel_once_whatever_breaks(agent: Agent) -> None:
    constants = [Made(constant(seed)) for seed in range(3)]
    with Proxy(agent.address[1]) as proxy, connected(agent, port=proxy.port) as device:
        resident = Resident(device)
        for place, made in enumerate(constants):
            resident.constant(f"c{place}-float32", made)
        device.sync()
        assert proxy.forwarded[0] > 9 * MIB
        for _ in range(2):
            proxy.cut()
            with pytest.raises(ConnectionLostError):
                device.sync()
            device.restart()
            sent = proxy.forwarded[0]
            for place, made in enumerate(constants):
                buffer = resident.buffer(f"c{place}-float32")
                assert device.read(buffer, len(made.data)) == made.data
            assert proxy.forwarded[0] - sent < 10_000
        assert [made.times for made in constants] == [1, 1, 1]
        fresh = Resident(device)
        fresh.constant("c0-float32", constants[0])
        assert proxy.forwarded[0] - sent < 20_000


def test_modules_travel_once(agent: Agent) -> None:
    module = mock_module("fill", source="x" * MIB)
    with Proxy(agent.address[1]) as proxy, connected(agent, port=proxy.port) as device:
        device.load(module)
        device.restart()
        sent = proxy.forwarded[0]
        device.load(module)
        assert proxy.forwarded[0] - sent < 10_000


def test_over_the_quota_the_oldest_goes_and_is_sent_again(mock_driver: None) -> None:
    with serving(quota_bytes=8 * MIB) as agent, connected(agent) as device:
        assert device.content_bytes == 4 * MIB
        resident = Resident(device)
        constants = [Made(constant(seed)) for seed in range(4)]
        for place, made in enumerate(constants):
            resident.constant(f"c{place}", made)
        device.sync()
        assert agent._contents.nbytes <= 8 * MIB  # noqa: SLF001
        device.restart()
        for place, made in enumerate(constants):
            assert device.read(resident.buffer(f"c{place}"), 3 * MIB) == made.data
        assert [made.times > 1 for made in constants] == [True] * 4  # each pushed out the next
        assert agent._contents.nbytes <= 8 * MIB  # noqa: SLF001


def test_what_is_too_large_to_keep_is_written(mock_driver: None) -> None:
    with serving(quota_bytes=4 * MIB) as agent, connected(agent) as device:
        made = Made(constant(0))
        buffer = Resident(device).constant("c", made)
        assert device.read(buffer, 3 * MIB) == made.data
        assert agent._contents.nbytes == 0  # noqa: SLF001


@pytest.mark.parametrize("nbytes", [0, 1, 4095])
def test_what_is_small_is_written(agent: Agent, device: RemoteDevice, nbytes: int) -> None:
    data = constant(0, nbytes)
    buffer = Resident(device).constant("c", lambda: data)
    assert device.read(buffer, nbytes) == data
    assert agent._contents.nbytes == 0  # noqa: SLF001


def test_a_content_is_dropped_between_the_answer_and_the_use(agent: Agent, device: RemoteDevice) -> None:
    made = Made(constant(0))
    resident = Resident(device)
    resident.constant("c", made)
    device.restart()
    agent._contents._entries.clear()  # noqa: SLF001
    assert device.read(resident.buffer("c"), 3 * MIB) == made.data
    assert made.times == 2


def test_workers_and_drivers_keep_nothing() -> None:
    device = MockDevice()
    assert not isinstance(device, KeepsContents)
    assert Resident(device).constant("c", lambda: b"1234").nbytes == 4


def part(connection: object, data: bytes, **fields: object) -> dict[str, object]:
    return ask(connection, data, op="content", id=2, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda data: {"digest": "0" * 64, "nbytes": len(data)}, "has the content of"),
        (lambda data: {"nbytes": len(data) - 1}, "does not fit"),
        (lambda data: {"nbytes": len(data), "offset": 5}, "does not fit"),
    ],
)
def test_contents_that_are_not_what_they_say(
    agent: Agent, change: Callable[[bytes], dict[str, object]], word: str
) -> None:
    data = constant(0, 5000)
    digest = hashlib.sha256(data).hexdigest()
    with greeted(agent.address[1]) as connection:
        answer = part(connection, data, **{"digest": digest, **change(data)})
        assert word in str(answer["message"])
        assert ask(connection, op="have", id=3, digests=[digest])["result"] == {"missing": [digest]}
        connection.send(frame(op="alloc", buffer=1, nbytes=5000))
        assert ask(connection, op="fill", id=4, buffer=1, digest=digest)["kind"] == "missing"
        assert part(connection, data, digest=digest, nbytes=5000)["op"] == "reply"
        assert ask(connection, op="fill", id=5, buffer=1, digest=digest)["op"] == "reply"
        assert ask(connection, op="read", id=6, buffer=1, nbytes=5000)["payload"] == data
        assert ask(connection, op="have", id=7, digests=[digest])["result"] == {"missing": []}
