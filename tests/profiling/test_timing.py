"""How many runs are timed at once, and what is made of the times: on a device whose clock the test sets."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from support.mock_device import MockDevice
from tapestry.profiling.timing import clock_of, time_commands, time_transfers
from tapestry.runtime.device import Command, CopyBuffer, DeviceInfo


class Clocked(MockDevice):
    """Each command takes ``seconds``; of a kind that is asked for."""

    def __init__(self, seconds: float, kind: str = "mock") -> None:
        super().__init__()
        self.seconds = seconds
        self.asked: list[tuple[int, int]] = []
        self._info = DeviceInfo(kind, f"{kind}:0", "", "1")

    def time(self, commands: Sequence[Command], repeats: int) -> list[float]:
        self.asked.append((len(commands), repeats))
        # Every other measurement is twice as long.
        return [self.seconds * len(commands) * (1 + place % 2) for place in range(repeats)]


def a_copy(device: MockDevice) -> list[Command]:
    return [CopyBuffer(device.alloc(4), device.alloc(4), 4)]


def test_short_work_is_timed_in_batches() -> None:
    device = Clocked(1e-5)
    found = time_commands(device, a_copy(device))
    assert device.asked == [(1, 1), (200, 9)]
    assert (found.batch, found.repeats) == (200, 9)
    assert (found.low, found.median, found.high) == pytest.approx((1e-5, 1e-5, 2e-5))


def test_a_batch_stays_short_enough_to_be_sent() -> None:
    device = Clocked(1e-9)
    found = time_commands(device, a_copy(device) * 100)
    assert found.batch == 10
    assert max(count for count, _ in device.asked) <= 1024


def test_long_work_is_timed_once() -> None:
    device = Clocked(5.0)
    found = time_commands(device, a_copy(device), budget=1.0)
    assert device.asked == [(1, 1)]
    assert (found.median, found.repeats, found.batch) == (5.0, 1, 1)


def test_a_host_device_needs_no_batches() -> None:
    device = Clocked(1e-5, "host")
    assert time_commands(device, a_copy(device)).batch == 1


def test_nothing_takes_no_time() -> None:
    assert time_commands(Clocked(1.0), []).median == 0.0


@pytest.mark.parametrize(
    ("kind", "features", "clock"),
    [("opencl", (), "device"), ("webgpu", ("timestamps",), "device"), ("webgpu", (), "host"), ("host", (), "host")],
)
def test_whose_clock(kind: str, features: tuple[str, ...], clock: str) -> None:
    assert clock_of(DeviceInfo(kind, kind, "", "1", features=frozenset(features))) == clock


def test_transfers_are_timed_by_size_and_way() -> None:
    device = MockDevice()
    found = time_transfers(device, [(True, 8), (False, 8), (True, 8), (True, 1024)])
    assert set(found) == {(True, 8), (False, 8), (True, 1024)}
    assert all(seconds > 0 for seconds in found.values())
    assert device.stats().buffers == 0
