"""A tab as a device: what is special about it. Kernels here are the tests' own."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pytest

from tapestry.errors import DeviceError, UnsupportedError, UsageError
from tapestry.runtime.browser.device import AnyTabDevice
from tapestry.runtime.device import CopyBuffer, Device, Launch
from tapestry.runtime.module import KernelDecl, KernelModule
from tapestry.runtime.names import DeviceName
from tapestry.runtime.protocol import messages as m
from tapestry.runtime.protocol.framing import PREFIX, Frame, join_frame
from tapestry.runtime.remote.channel import WebSocketChannel

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TWICE = """
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(64)
fn twice(@builtin(global_invocation_id) id: vec3u) { if (id.x < arrayLength(&y)) { y[id.x] = 2 * x[id.x]; } }
"""
MODULE = KernelModule("wgsl", TWICE, (KernelDecl("twice", "rw"),))
ONE = (1, 1, 1)


def test_it_says_what_it_is(device: AnyTabDevice) -> None:
    info = device.info
    assert isinstance(device, Device)
    assert info.kind == "webgpu"
    assert info.name == f"browser@{device.url.split(':')[2].partition('/')[0]}"
    assert "Chrome" in info.description
    assert len(info.fingerprint) == 64
    assert info.dtypes == {"float32", "int32", "uint32"}
    # The specification's smallest limits.
    assert info.limits.max_invocations >= 256
    assert info.limits.max_binding_bytes >= 128 << 20
    assert info.limits.max_bindings >= 8
    assert min(info.limits.max_grid) >= 65_535


def test_limits_are_named(device: AnyTabDevice) -> None:
    limits = device.info.limits
    with pytest.raises(UnsupportedError, match=f"{limits.max_buffer_bytes:,}"):
        device.alloc(limits.max_buffer_bytes + 1)
    x, y = device.alloc(4), device.alloc(4)
    loaded = device.load(MODULE)
    with pytest.raises(UnsupportedError, match=f"{limits.max_grid[0] + 1:,} workgroups"):
        device.submit([Launch(loaded, "twice", (x, y), (limits.max_grid[0] + 1, 1, 1), (64, 1, 1))])
    hungry = TWICE.replace("{ if", "{ m[x[1]].x = 1; workgroupBarrier(); y[0] = m[x[2]].y; if")
    hungry += f"var<workgroup> m: array<vec2<u32>, {limits.workgroup_memory_bytes // 8 + 1}>;"
    with pytest.raises(
        UnsupportedError, match=rf"workgroup memory, over the limit of {limits.workgroup_memory_bytes:,}"
    ):
        device.load(KernelModule("wgsl", hungry, (KernelDecl("twice", "rw"),)))


def test_transfers_larger_than_a_frame(device: AnyTabDevice) -> None:
    values = np.random.default_rng(3).integers(0, 1 << 31, 5 << 20, dtype=np.uint32)  # 20 MiB: three frames
    x, y = device.alloc(values.nbytes), device.alloc(values.nbytes)
    device.write(x, values.tobytes())
    groups = -(-values.size // 64)
    across = -(-groups // 2)
    assert across <= device.info.limits.max_grid[0]
    device.submit([Launch(device.load(MODULE), "twice", (x, y), (across, 1, 1), (64, 1, 1)), CopyBuffer(x, y, 4)])
    got = np.frombuffer(device.read(y, values.nbytes), np.uint32)
    done = across * 64
    assert np.array_equal(got[1:done], 2 * values[1:done])
    assert got[0] == values[0]
    assert not got[done:].any()


def test_more_than_the_window_is_written_without_harm(device: AnyTabDevice) -> None:
    """Three windows of 64 MiB: the client waits for the tab in between."""
    buffer = device.alloc(96 << 20)
    first, second = bytes([1]) * buffer.nbytes, bytes([2]) * buffer.nbytes
    device.write(buffer, first)
    device.write(buffer, second)
    assert device.read(buffer, 8, buffer.nbytes - 8) == bytes([2]) * 8


def test_many_buffers_come_and_go(device: AnyTabDevice) -> None:
    loaded = device.load(MODULE)
    y = device.alloc(4)
    for number in range(200):
        x = device.alloc(4)
        device.write(x, np.uint32(number).tobytes())
        device.submit([Launch(loaded, "twice", (x, y), ONE, (64, 1, 1))])
        device.free(x)
    assert np.frombuffer(device.read(y, 4), np.uint32)[0] == 2 * 199
    assert (device.stats().buffers, device.stats().bytes) == (1, 4)


def test_running_out_of_memory_is_an_error_and_no_end(device: AnyTabDevice) -> None:
    most = device.info.limits.max_buffer_bytes
    buffers = [device.alloc(most) for _ in range(400)]  # more than any machine that runs this has
    with pytest.raises(DeviceError, match="memory") as caught:
        device.sync()
    assert type(caught.value) is DeviceError
    for buffer in buffers:
        device.free(buffer)
    small = device.alloc(4)
    device.write(small, b"abcd")
    assert device.read(small, 4) == b"abcd"


def test_an_error_that_webgpu_finds_late_is_told_at_the_next_wait(device: AnyTabDevice) -> None:
    """Storing outside of what a binding may hold is found by the browser's validation, not by the page's own checks."""
    vec4 = "@group(0) @binding(0) var<storage, read_write> x: array<mat4x4f>;"
    source = vec4 + "@compute @workgroup_size(1) fn k() { x[0][0][0] = 1; }"
    loaded = device.load(KernelModule("wgsl", source, (KernelDecl("k", "w"),)))
    small = device.alloc(16)  # a matrix has 64 bytes
    device.submit([Launch(loaded, "k", (small,), ONE, ONE)])
    with pytest.raises(DeviceError, match="submit failed"):
        device.sync()
    device.sync()
    assert device.read(small, 16) is not None


def test_a_loaded_module_need_not_travel_again(device: AnyTabDevice) -> None:
    module = KernelModule("wgsl", TWICE + "// another text", MODULE.kernels)
    device.unload(device.load(module))
    device.restart()
    digest = hashlib.sha256(msgspec.msgpack.encode(module)).hexdigest()
    assert digest in device._known  # noqa: SLF001 - what the tab's welcome has said
    device.load(module)


def test_two_devices_in_one_tab_are_apart(device: AnyTabDevice, tab_port: int) -> None:
    mine = device.alloc(4)
    with AnyTabDevice(DeviceName("browser", port=tab_port), start_timeout=30) as other:
        theirs = other.alloc(4)
        device.write(mine, b"mine")
        other.write(theirs, b"else")
        assert device.read(mine, 4) == b"mine"
        assert other.read(theirs, 4) == b"else"
    assert device.read(mine, 4) == b"mine"


def channel_of(device: AnyTabDevice) -> WebSocketChannel:
    channel = device._tab  # noqa: SLF001
    assert channel is not None
    return channel


def answer(device: AnyTabDevice, raw: bytes | str) -> m.Failure:
    """What the tab says to a message as it stands."""
    channel = channel_of(device)
    channel._connection.send(raw)  # noqa: SLF001
    frame = channel.receive(None)
    assert frame is not None
    return msgspec.msgpack.decode(frame.header, type=m.Failure)


@pytest.mark.parametrize(
    "raw",
    [
        b"short",
        PREFIX.pack(2**31, 0) + b"x",
        PREFIX.pack(1, 2**30) + b"x",
        PREFIX.pack(4, 4) + b"12345",
        join_frame(Frame(b"\xc1")),
        join_frame(Frame(msgspec.msgpack.encode(["ping"]))),
        join_frame(Frame(b"\x91" * 1000)),
        "text",
    ],
    ids=lambda raw: repr(raw[:12]),
)
def test_the_tab_ends_a_connection_that_breaks_the_framing(device: AnyTabDevice, raw: bytes | str) -> None:
    failure = answer(device, raw)
    assert (failure.kind, failure.fatal, failure.id) == ("usage", True, 0)
    assert channel_of(device).receive(None) is None
    device.restart()
    assert device.ping() > 0


def test_a_wrong_message_is_an_error_of_that_message_alone(device: AnyTabDevice) -> None:
    failure = answer(device, join_frame(Frame(msgspec.msgpack.encode({"op": "dance", "id": 10**6}))))
    assert (failure.kind, failure.fatal, failure.id) == ("usage", False, 10**6)
    with pytest.raises(UsageError):
        device.read(device.alloc(4), 8)
    assert device.ping() > 0


def test_the_largest_frame_and_one_byte_more(device: AnyTabDevice) -> None:
    most = device._server.payload_bytes  # noqa: SLF001
    buffer = device.alloc(most + 4)
    header = msgspec.msgpack.encode({"op": "write", "id": 10**6, "buffer": buffer.id})
    channel_of(device).send(Frame(header, bytes([5]) * most))
    frame = channel_of(device).receive(None)
    assert frame is not None
    assert msgspec.msgpack.decode(frame.header)["op"] == "reply"
    assert device.read(buffer, 4, most - 4) == bytes([5]) * 4
    failure = answer(device, join_frame(Frame(header, bytes(most + 1))))
    assert failure.fatal
    assert f"{most + 1} bytes" in failure.message
