"""What it takes to move a value between the source and a device: measured at a few sizes, a line fitted through them.

Not here: regions (measure).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from tapestry.backends.transfer import from_storage, to_storage
from tapestry.program.graph import TensorSpec
from tapestry.runtime.device import Device
from tapestry.runtime.module import TensorDecl

#: Bytes of the transfers that are measured.
SIZES = (4 << 10, 256 << 10, 4 << 20)
_TRIALS = 7


@dataclass(frozen=True)
class Line:
    """``latency`` seconds, and ``per_byte`` for each byte; neither is negative."""

    latency: float
    per_byte: float

    def at(self, nbytes: int) -> float:
        """Seconds for so many bytes."""
        return self.latency + self.per_byte * nbytes

    @staticmethod
    def through(points: Sequence[tuple[int, float]]) -> Line:
        """The line of least squared relative distances from (bytes, seconds), so that small sizes count as large ones.

        Where it would begin below 0 it goes through the origin; where it would fall it is level.
        """
        weights = [1 / max(seconds, 1e-9) ** 2 for _, seconds in points]
        total = sum(weights)
        mean_size = sum(w * size for w, (size, _) in zip(weights, points, strict=True)) / total
        mean_time = sum(w * seconds for w, (_, seconds) in zip(weights, points, strict=True)) / total
        spread = sum(w * (size - mean_size) ** 2 for w, (size, _) in zip(weights, points, strict=True))
        rise = sum(
            w * (size - mean_size) * (seconds - mean_time) for w, (size, seconds) in zip(weights, points, strict=True)
        )
        slope = rise / spread if spread else 0.0
        if slope <= 0:
            return Line(mean_time, 0.0)
        start = mean_time - slope * mean_size
        if start >= 0:
            return Line(start, slope)
        squares = sum(w * size * size for w, (size, _) in zip(weights, points, strict=True))
        return Line(0.0, sum(w * size * t for w, (size, t) in zip(weights, points, strict=True)) / squares)


def time_transfers(device: Device, up: bool) -> tuple[tuple[int, float], ...]:
    """(bytes, seconds) of moving float32 values to the device, or back from it: the median of a few."""
    found: list[tuple[int, float]] = []
    for nbytes in SIZES:
        count = nbytes // 4
        spec = TensorSpec((count,), (1,), torch.float32)
        decl = TensorDecl((count,), "float32", "float32")
        value = torch.ones(count)
        buffer = device.alloc(nbytes)
        try:
            device.write(buffer, to_storage(value, decl, "a value"))
            device.sync()

            def write() -> None:
                device.write(buffer, to_storage(value, decl, "a value"))  # noqa: B023 (called in this round only)
                device.sync()

            def read() -> None:
                from_storage(device.read(buffer, nbytes), decl, spec)  # noqa: B023

            found.append((nbytes, _median(write if up else read)))
        finally:
            device.free(buffer)
    return tuple(found)


def _median(action: Callable[[], None]) -> float:
    seconds: list[float] = []
    for _ in range(_TRIALS):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return median(seconds)
