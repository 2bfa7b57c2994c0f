"""Axes for the report's drawings: a linear one for counts, a logarithmic one for errors. Lengths in SVG units."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeGuard

#: Subnormal errors would stretch an axis over hundreds of decades; below this all is drawn as nothing.
_TINY = 1e-18
_HUGE = 1e18
_MOST_TICKS = 5


@dataclass(frozen=True)
class Tick:
    """A line across the drawing at ``at`` with its label."""

    at: float
    label: str


@dataclass(frozen=True)
class LogScale:
    """Decades ``low`` to ``high`` (exponents of ten) onto the range from ``start`` to ``end``."""

    low: int
    high: int
    start: float
    end: float

    @staticmethod
    def over(values: Iterable[float | None], start: float, end: float) -> LogScale:
        """A scale that holds the finite values above zero, in whole decades with room on both sides."""
        logs = [math.log10(min(max(value, _TINY), _HUGE)) for value in values if drawable(value)]
        if not logs:
            return LogScale(-7, -4, start, end)
        low, high = math.floor(min(logs) - 0.3), math.ceil(max(logs) + 0.3)
        return LogScale(low, max(high, low + 2), start, end)

    def at(self, value: float) -> float:
        """Where a value is drawn; zero at the low end, what is not finite at the high one."""
        if value == 0.0:
            return self.start
        if not math.isfinite(value):
            return self.end
        exponent = min(max(math.log10(abs(value)), self.low), self.high)
        return self.start + (exponent - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Whole decades, at most five of them."""
        stride = max(1, math.ceil((self.high - self.low) / (_MOST_TICKS - 1)))
        return tuple(Tick(self.at(10.0**power), _power(power)) for power in range(self.low, self.high + 1, stride))


def drawable(value: float | None) -> TypeGuard[float]:
    """Whether a value has a place of its own on a logarithmic axis."""
    return value is not None and math.isfinite(value) and value > 0.0


def _power(power: int) -> str:
    return "1" if power == 0 else f"1e{power}"


@dataclass(frozen=True)
class CountScale:
    """0 to ``top`` onto the range from ``start`` to ``end``."""

    top: int
    start: float
    end: float

    @staticmethod
    def over(values: Iterable[int], start: float, end: float) -> CountScale:
        """A scale up to the next round number."""
        largest = max(values, default=0)
        stride = _round_stride(largest)
        return CountScale(stride * max(1, math.ceil(largest / stride)), start, end)

    def at(self, value: float) -> float:
        """Where a count is drawn."""
        return self.start + value / self.top * (self.end - self.start)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Round numbers, at most five of them."""
        stride = _round_stride(self.top)
        return tuple(Tick(self.at(value), f"{value:,}") for value in range(0, self.top + 1, stride))


def _round_stride(largest: int) -> int:
    """1, 2 or 5 times a power of ten, so that at most four strides reach ``largest``."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power * (_MOST_TICKS - 1) >= largest:
                return factor * power
        power *= 10
