"""Timing commands on a device, and what a read or a write of some bytes costs there.

Short work is repeated within one measurement, so that the clock's step and the wait for the device do not count.
Not here: what the commands are (regions), and devices' clocks (the drivers).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from statistics import median

from tapestry.profiling.result import Timing
from tapestry.runtime.device import Command, Device, DeviceInfo

#: Seconds that one measurement lasts at least, where more runs in a row can make it so.
_LEAST = 2e-3
_MOST_COMMANDS, _MOST_BATCH, _MOST_REPEATS = 1024, 256, 9
#: Transfers of one size, timed one after the other.
_WRITES, _TRIALS = 4, 5


def time_commands(device: Device, commands: Sequence[Command], budget: float = 1.0) -> Timing:
    """How long the commands take, in about ``budget`` seconds. Errors are those of Device.time."""
    if not commands:
        return Timing(0.0, 0.0, 0.0, 1, 1)
    once = device.time(commands, 1)[0]
    most = max(1, min(_MOST_BATCH, _MOST_COMMANDS // len(commands)))
    # A host device runs commands while they are handed over: there is nothing to wait for.
    batch = 1 if device.info.kind == "host" else min(most, max(1, ceil(_LEAST / max(once, 1e-9))))
    repeats = max(1, min(_MOST_REPEATS, int(budget / max(once * batch, 1e-9))))
    if repeats == 1 and batch == 1:
        return Timing(once, once, once, 1, 1)
    found = [seconds / batch for seconds in device.time([*commands] * batch, repeats)]
    return Timing(median(found), min(found), max(found), repeats, batch)


def clock_of(info: DeviceInfo) -> str:
    """Whose clock ``Device.time`` reads for launches: ``device``, or ``host`` where the device has none.

    An OpenCL driver without a usable clock is timed by the host's.
    """
    return "device" if info.kind == "opencl" or "timestamps" in info.features else "host"


def time_transfers(device: Device, sizes: Iterable[tuple[bool, int]]) -> dict[tuple[bool, int], float]:
    """Seconds to write (True) or read (False) so many bytes, each size moved alone: the median of a few."""
    found: dict[tuple[bool, int], float] = {}
    for up, nbytes in sorted(set(sizes)):
        buffer = device.alloc(nbytes)
        try:
            data = bytes(nbytes)
            device.write(buffer, data)
            device.sync()

            def write() -> None:
                for _ in range(_WRITES):
                    device.write(buffer, data)  # noqa: B023 (called in this round only)
                device.sync()

            def read() -> None:
                device.read(buffer, nbytes)  # noqa: B023

            found[up, nbytes] = _median(write) / _WRITES if up else _median(read)
        finally:
            device.free(buffer)
    return found


def _median(action: Callable[[], None]) -> float:
    seconds: list[float] = []
    for _ in range(_TRIALS):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return median(seconds)
