"""The calling side of the protocol, against a session in the same process."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from support.loopback import LoopbackDevice
from support.mock_device import MockDevice, mock_module
from tapestry.errors import DeviceError, DeviceLostError, UnsupportedError, UsageError
from tapestry.runtime.device import CopyBuffer, Device, DeviceStats, Launch, Limits, LogEntry
from tapestry.runtime.module import Scalar
from tapestry.runtime.protocol.framing import Frame
from tapestry.runtime.protocol.messages import ServerLimits

ONE = (1, 1, 1)


@pytest.fixture
def device() -> LoopbackDevice:
    return LoopbackDevice(MockDevice())


def operations(device: LoopbackDevice) -> list[str]:
    assert device.channel is not None
    return [msgspec.msgpack.decode(frame.header)["op"] for frame in device.channel.sent]


def test_it_is_a_device_and_behaves_like_the_one_behind_it(device: LoopbackDevice) -> None:
    assert isinstance(device, Device)
    assert device.info == device.device.info
    a, b, c = device.alloc(16), device.alloc(16), device.alloc(16)
    values = np.arange(4, dtype=np.float32)
    device.write(a, values.tobytes())
    loaded = device.load(mock_module())
    device.submit(
        [
            Launch(loaded, "scale", (a, b, Scalar("float32", 3.0)), ONE, ONE, "first"),
            Launch(loaded, "add", (a, b, c), ONE, ONE, "second"),
            CopyBuffer(c, a, 8, 8, 0),
        ]
    )
    assert np.frombuffer(device.read(a, 16), np.float32).tolist() == [8.0, 12.0, 2.0, 3.0]
    assert np.frombuffer(device.read(c, 4, 12), np.float32).tolist() == [12.0]
    assert device.launch_log() == [LogEntry("first", "scale", 1), LogEntry("second", "add", 1)]
    assert device.launch_log(clear=True) != []
    assert device.launch_log() == []
    assert device.stats() == DeviceStats(3, 48, 1)
    times = device.time([Launch(loaded, "scale", (a, b, Scalar("float32", 3.0)), ONE, ONE)], 4)
    assert len(times) == 4
    assert min(times) > 0
    assert device.launch_log() == []
    device.unload(loaded)
    for buffer in (a, b, c):
        device.free(buffer)
    assert device.stats() == DeviceStats()


def test_commands_without_a_result_wait_for_nothing(device: LoopbackDevice) -> None:
    assert device.channel is not None
    buffer = device.alloc(4)
    device.write(buffer, b"abcd")
    device.submit([CopyBuffer(buffer, buffer, 0)])
    device.free(buffer)
    sent = [msgspec.msgpack.decode(frame.header) for frame in device.channel.sent]
    assert [message.get("id", 0) for message in sent[1:]] == [0, 0, 0, 0]


def test_a_module_travels_once(device: LoopbackDevice) -> None:
    first = device.load(mock_module(source="one"))
    device.unload(first)
    device.load(mock_module(source="one"))
    device.load(mock_module(source="two"))
    assert operations(device).count("module") == 2
    device.restart()  # a new connection to a server that kept its store
    device.load(mock_module(source="one"))
    assert operations(device).count("module") == 0
    assert device.device.loads == 4


def test_a_module_that_the_server_lost_is_sent_again(device: LoopbackDevice) -> None:
    device.load(mock_module())
    device.store._entries.clear()  # noqa: SLF001
    device.load(mock_module())
    assert operations(device).count("module") == 2


def test_large_transfers_go_in_parts(device: LoopbackDevice) -> None:
    small = LoopbackDevice(MockDevice(), limits=ServerLimits(payload_bytes=1000))
    data = np.random.default_rng(0).bytes(2500)
    buffer = small.alloc(3000)
    small.write(buffer, data, 7)
    assert small.read(buffer, 2500, 7) == data
    assert small.read(buffer, 0) == b""
    assert operations(small).count("write") == 3
    module = mock_module(source="s" * 5000)
    assert small.load(module).digest == module.digest
    assert operations(small).count("module") == 6


def test_large_batches_go_in_order_in_parts() -> None:
    device = LoopbackDevice(MockDevice(), limits=ServerLimits(header_bytes=2000))
    loaded, buffer = device.load(mock_module()), device.alloc(4)
    values = range(3000)
    device.submit([Launch(loaded, "fill", (buffer, Scalar("float32", v)), ONE, ONE, "t") for v in values])
    assert np.frombuffer(device.read(buffer, 4), np.float32)[0] == 2999
    assert device.launch_log() == [LogEntry("t", "fill", 3000)]
    many = [Launch(loaded, "fill", (buffer, Scalar("float32", 1)), ONE, ONE, "t")] * 100
    with pytest.raises(UsageError, match="over 2,000"):
        device.time(many, 1)
    device.sync()


def test_limits_are_refused_before_they_travel() -> None:
    device = LoopbackDevice(MockDevice(limits=Limits(max_buffer_bytes=10, max_invocations=4)))
    buffer, loaded = device.alloc(8), device.load(mock_module())
    before = len(operations(device))
    with pytest.raises(UnsupportedError, match="11 bytes is over the limit of 10"):
        device.alloc(11)
    with pytest.raises(UnsupportedError, match="8 invocations"):
        device.submit([Launch(loaded, "fill", (buffer, Scalar("float32", 1)), ONE, (8, 1, 1))])
    with pytest.raises(UsageError, match="outside"):
        device.write(buffer, b"123", 6)
    assert len(operations(device)) == before


def test_pipelined_errors_come_later_and_once(device: LoopbackDevice) -> None:
    device.device.memory_bytes = 10
    buffer = device.alloc(11)
    device.write(buffer, b"x")
    with pytest.raises(DeviceError, match="out of memory"):
        device.sync()
    device.sync()
    device.free(buffer)
    device.sync()


def test_load_errors_leave_nothing_behind(device: LoopbackDevice) -> None:
    with pytest.raises(DeviceError, match="syntax error"):
        device.load(mock_module(source="syntax error"))
    assert device.stats() == DeviceStats()
    assert device._handles.stats() == DeviceStats()  # noqa: SLF001
    device.load(mock_module())


@pytest.mark.parametrize("answer", [b"", b"\xc1", b"\x80", b"\x81\xa2op\xa5reply", b"\x82\xa2op\xa5reply\xa2id\x7f"])
def test_a_server_that_answers_nonsense_is_lost(device: LoopbackDevice, answer: bytes) -> None:
    assert device.channel is not None
    device.channel.session.handle = lambda frame: Frame(answer or b"\xff", b"")  # type: ignore[method-assign]
    with pytest.raises(DeviceLostError):
        device.sync()
    with pytest.raises(DeviceLostError, match=r"call restart\(\)"):
        device.alloc(4)
    device.restart()
    device.sync()


def test_a_device_lost_over_there_is_lost_here(device: LoopbackDevice) -> None:
    loaded, buffer = device.load(mock_module("abort")), device.alloc(4)
    device.submit([Launch(loaded, "abort", (buffer,), ONE, ONE)])
    with pytest.raises(DeviceLostError, match="the worker died"):
        device.sync()
    with pytest.raises(DeviceLostError, match=r"call restart\(\)"):
        device.alloc(4)
    device.restart()
    device.sync()


def test_a_reply_of_another_size_is_refused(device: LoopbackDevice) -> None:
    assert device.channel is not None
    buffer = device.alloc(4)
    honest = device.channel.session.handle

    def short(frame: Frame) -> Frame | None:
        answer = honest(frame)
        return None if answer is None else Frame(answer.header, bytes(answer.payload)[:-1])

    device.channel.session.handle = short  # type: ignore[method-assign]
    with pytest.raises(DeviceLostError, match="with 4 bytes"):
        device.read(buffer, 4)


def test_an_interrupt_gives_the_connection_up(device: LoopbackDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.channel is not None

    def interrupted(deadline: float | None = None) -> Frame | None:
        raise KeyboardInterrupt

    monkeypatch.setattr(device.channel, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        device.sync()
    with pytest.raises(DeviceLostError, match="interrupted"):
        device.sync()


def test_the_token_travels_and_the_wrong_one_is_told() -> None:
    assert LoopbackDevice(MockDevice(), token="sesame", server_token="sesame").asked_for == ["mock:0"]
    with pytest.raises(UsageError, match="token is missing or wrong"):
        LoopbackDevice(MockDevice(), token="guess", server_token="sesame")
