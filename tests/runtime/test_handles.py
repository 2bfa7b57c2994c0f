from __future__ import annotations

import pytest

from support.mock_device import MockDevice, mock_module
from tapestry.errors import DeviceLostError, UnsupportedError, UsageError
from tapestry.runtime.device import Buffer, Call, CopyBuffer, Device, DeviceStats, Launch, Limits, Loaded, LogEntry
from tapestry.runtime.module import Scalar

ONE = (1, 1, 1)
LIMITS = Limits(
    max_buffer_bytes=1000,
    max_binding_bytes=100,
    max_bindings=2,
    max_grid=(10, 10, 2),
    max_block=(8, 8, 4),
    max_invocations=32,
)


def test_the_mock_is_a_device() -> None:
    assert isinstance(MockDevice(), Device)


@pytest.mark.parametrize(
    ("grid", "block", "says"),
    [
        ((11, 1, 1), ONE, r"11 workgroups along x, over the limit of 10"),
        ((1, 1, 3), ONE, r"3 workgroups along z, over the limit of 2"),
        (ONE, (1, 9, 1), r"9 invocations along y of a workgroup, over the limit of 8"),
        (ONE, (8, 8, 1), r"64 invocations in a workgroup, over the limit of 32"),
    ],
)
def test_launches_over_a_limit_name_number_and_limit(
    grid: tuple[int, int, int], block: tuple[int, int, int], says: str
) -> None:
    device = MockDevice(limits=LIMITS)
    loaded, buffer = device.load(mock_module("fill")), device.alloc(4)
    with pytest.raises(UnsupportedError, match=says):
        device.submit([Launch(loaded, "fill", (buffer, Scalar("float32", 1)), grid, block)])
    assert device.started == []


def test_buffers_and_bindings_over_a_limit_name_number_and_limit() -> None:
    device = MockDevice(limits=LIMITS)
    with pytest.raises(UnsupportedError, match="1,001 bytes is over the limit of 1,000"):
        device.alloc(1001)
    loaded, big, small = device.load(mock_module("add", "fill")), device.alloc(101), device.alloc(4)
    with pytest.raises(UnsupportedError, match="binding of 101 bytes, over the limit of 100"):
        device.submit([Launch(loaded, "fill", (big, Scalar("float32", 1)), ONE, ONE)])
    with pytest.raises(UnsupportedError, match="3 buffers bound, over the limit of 2"):
        device.submit([Launch(loaded, "add", (small, small, small), ONE, ONE)])


def test_wrong_commands_are_refused_before_anything_starts() -> None:
    device = MockDevice()
    loaded, buffer = device.load(mock_module("fill")), device.alloc(8)
    fill = Launch(loaded, "fill", (buffer, Scalar("float32", 1)), ONE, ONE)
    wrong = [
        Launch(loaded, "nothing", (buffer,), ONE, ONE),
        Launch(loaded, "fill", (), ONE, ONE),
        Launch(loaded, "fill", (buffer, buffer), ONE, ONE),
        Launch(loaded, "fill", (Buffer(99, 8), Scalar("float32", 1)), ONE, ONE),
        Launch(loaded, "fill", (Buffer(buffer.id, 800), Scalar("float32", 1)), ONE, ONE),
        Launch(Loaded(77, ""), "fill", (buffer,), ONE, ONE),
        Launch(loaded, "fill", (buffer, Scalar("float32", 1)), (-1, 1, 1), ONE),
        Launch(loaded, "fill", (buffer, Scalar("float32", 1)), ONE, (0, 1, 1)),
        Call(loaded, (buffer,), ()),
        CopyBuffer(buffer, buffer, 5, 0, 4),
        CopyBuffer(buffer, buffer, 4, 2, 4),
        CopyBuffer(buffer, buffer, -4),
        CopyBuffer(buffer, buffer, 4, -4, 0),
    ]
    for command in wrong:
        with pytest.raises(UsageError):
            device.submit([fill, command])
    assert device.started == []
    assert device.launch_log() == []


@pytest.mark.parametrize(("nbytes", "offset"), [(9, 0), (1, 8), (-1, 0), (4, -4), (1, 2**60)])
def test_reads_stay_inside_the_buffer(nbytes: int, offset: int) -> None:
    device = MockDevice()
    buffer = device.alloc(8)
    with pytest.raises(UsageError, match="lie outside buffer"):
        device.read(buffer, nbytes, offset)


def test_negative_sizes_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="-1"):
        MockDevice().alloc(-1)


def test_stats_count_what_lives() -> None:
    device = MockDevice()
    first, second, loaded = device.alloc(10), device.alloc(5), device.load(mock_module())
    assert device.stats() == DeviceStats(2, 15, 1)
    device.free(first)
    device.unload(loaded)
    assert device.stats() == DeviceStats(1, 5, 0)
    with pytest.raises(UsageError, match="freed twice"):
        device.free(first)
    assert device.held_bytes == 5
    device.free(second)
    assert device.stats() == DeviceStats()
    assert device.held_bytes == 0


def test_a_grid_with_a_zero_runs_nothing_and_counts() -> None:
    device = MockDevice()
    loaded, buffer = device.load(mock_module("fill")), device.alloc(4)
    device.submit([Launch(loaded, "fill", (buffer, Scalar("float32", 1)), (1, 0, 1), ONE, "t")])
    assert device.started == []
    assert device.launch_log() == [LogEntry("t", "fill", 1)]


def test_handles_from_before_a_restart_are_void() -> None:
    device = MockDevice()
    buffer, loaded = device.alloc(8), device.load(mock_module())
    device.restart()
    assert device.generation == 1
    device.free(buffer)
    device.unload(loaded)
    with pytest.raises(UsageError, match="before a restart"):
        device.read(buffer, 8)
    assert device.alloc(8).id != buffer.id


def test_simulated_faults_need_a_restart() -> None:
    device = MockDevice()
    loaded, buffer = device.load(mock_module("abort")), device.alloc(4)
    with pytest.raises(DeviceLostError, match="abort"):
        device.submit([Launch(loaded, "abort", (buffer,), ONE, ONE)])
    with pytest.raises(DeviceLostError):
        device.alloc(4)
    device.restart()
    device.alloc(4)


def test_closed_devices_say_so() -> None:
    device = MockDevice()
    buffer = device.alloc(4)
    device.close()
    with pytest.raises(DeviceLostError, match="closed"):
        device.read(buffer, 4)
    device.free(buffer)


@pytest.mark.parametrize("dropped", ["buffer", "module", "restart"])
def test_a_command_that_was_right_is_checked_again_after_a_drop(dropped: str) -> None:
    device = MockDevice()
    loaded, buffer = device.load(mock_module("fill")), device.alloc(8)
    fill = Launch(loaded, "fill", (buffer, Scalar("float32", 1)), ONE, ONE)
    device.submit([fill])
    device.submit([fill])
    if dropped == "buffer":
        device.free(buffer)
    elif dropped == "module":
        device.unload(loaded)
    else:
        device.restart()
    with pytest.raises(UsageError, match=r"freed|unloaded|restart"):
        device.submit([fill])
