"""Rows of values for operators that let elements act together: sums, norms, softmax, sorting, products, windows.

Each row asks one question: does a maximum start from 0, does a sum cancel or swallow, do squares leave 16 bits, does
a NaN get lost. The most telling stand first. Not here: which axis is a row (rows), values of single elements
(elements).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pattern:
    """``make(length, dtype)`` gives the row in float64 (or int64 for integer dtypes)."""

    name: str
    make: Callable[[int, torch.dtype], Tensor]


def noise(length: int, seed: int) -> Tensor:
    """Ordinary N(0, 1) values in float64, the same every time."""
    return torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _constant(value: float) -> Callable[[int, torch.dtype], Tensor]:
    return lambda length, dtype: torch.full((length,), value, dtype=torch.float64)


def _one_at(background: float, value: float, place: Callable[[int], int]) -> Callable[[int, torch.dtype], Tensor]:
    def make(length: int, dtype: torch.dtype) -> Tensor:
        row = torch.full((length,), background, dtype=torch.float64)
        row[place(length) : place(length) + 1] = value
        return row

    return make


def _first(length: int) -> int:
    return 0


def _last(length: int) -> int:
    return max(length - 1, 0)


def _middle(length: int) -> int:
    return length // 2


def _places(length: int) -> Tensor:
    return torch.arange(length, dtype=torch.float64)


def _around(center: float, spread: float, seed: int) -> Callable[[int, torch.dtype], Tensor]:
    return lambda length, dtype: center + spread * noise(length, seed)


def _negative(length: int, dtype: torch.dtype) -> Tensor:
    return -(noise(length, 1).abs() + 0.5)


def _alternating(length: int, dtype: torch.dtype) -> Tensor:
    """Pairs that cancel but for what little is added to them."""
    signs = 1 - 2 * (_places(length) % 2)
    return signs * 1000.0 + 0.25 * noise(length, 2)


def _ramp(length: int, dtype: torch.dtype) -> Tensor:
    return _places(length) / max(length, 1) * 4 - 2


def _falling(length: int, dtype: torch.dtype) -> Tensor:
    return -_ramp(length, dtype)


def _repeated(length: int, dtype: torch.dtype) -> Tensor:
    """Few different values, each many times, in no order."""
    return (noise(length, 3) * 1.5).round()


def _outlier(length: int, dtype: torch.dtype) -> Tensor:
    row = noise(length, 4)
    row[length // 2 : length // 2 + 1] = 1e4
    return row


def _swamp(length: int, dtype: torch.dtype) -> Tensor:
    """The first number from which on adding 1 to an accumulator of this dtype changes nothing, then ones."""
    row = torch.ones(length, dtype=torch.float64)
    row[:1] = 2 / torch.finfo(dtype).eps
    return row


def _half_masked(length: int, dtype: torch.dtype) -> Tensor:
    """The dtype's least number at every second place, as additive masks have it."""
    row = noise(length, 5)
    row[1::2] = torch.finfo(dtype).min
    return row


def _spread(length: int, dtype: torch.dtype) -> Tensor:
    """Magnitudes from 1e-6 to 1e3, both signs."""
    return torch.sign(noise(length, 6)) * 10.0 ** (noise(length, 7).abs().fmod(2.0) * 4.5 - 6)


def _mantissas(length: int, dtype: torch.dtype) -> Tensor:
    """Positive, every bit of the mantissa in use: what a narrower type on the way takes away, adds up."""
    return 1.0 + (_places(length) * 0.6180339887498949 % 1.0)


def _tiny(length: int, dtype: torch.dtype) -> Tensor:
    """Near the smallest normal number: squares are 0."""
    return torch.finfo(dtype).tiny * 64 * (1.0 + noise(length, 8).abs())


def _subnormal(length: int, dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
    return info.tiny * info.eps * (1 + _places(length) % 7)


def _large(power: float) -> Callable[[int, torch.dtype], Tensor]:
    """Magnitudes near max to the ``power``: the half is where squares leave the range."""

    def make(length: int, dtype: torch.dtype) -> Tensor:
        size = math.exp2(math.log2(torch.finfo(dtype).max) * power)
        return size * (1 + 0.1 * noise(length, 9).clamp(-2, 2)) / 2 * (1 - 2 * (_places(length) % 2))

    return make


def _large_positive(length: int, dtype: torch.dtype) -> Tensor:
    return _large(0.5)(length, dtype).abs() * 4


def _max_row(length: int, dtype: torch.dtype) -> Tensor:
    return torch.full((length,), torch.finfo(dtype).max / 2, dtype=torch.float64)


def _least(length: int, dtype: torch.dtype) -> Tensor:
    return torch.full((length,), torch.finfo(dtype).min, dtype=torch.float64)


FINITE = (
    Pattern("deep", _constant(-104.5)),
    Pattern("negative", _negative),
    Pattern("ones", _constant(1.0)),
    Pattern("offset", _around(300.0, 0.01, 10)),
    Pattern("swamp", _swamp),
    Pattern("outlier", _outlier),
    Pattern("deepest", _constant(-1e4)),
    Pattern("hot", _constant(300.0)),
    Pattern("wide", lambda length, dtype: 30.0 * noise(length, 11)),
    Pattern("zeros", _constant(0.0)),
    Pattern("tiny", _tiny),
    Pattern("repeated", _repeated),
    Pattern("alternating", _alternating),
    Pattern("falling", _falling),
    Pattern("thousands", lambda length, dtype: 1000.0 + noise(length, 12)),
    Pattern("mantissas", _mantissas),
    Pattern("deep-apart", lambda length, dtype: -200.0 - 3 * noise(length, 13).abs()),
    Pattern("peak-first", _one_at(-3.0, 2.0, _first)),
    Pattern("peak-last", _one_at(-3.0, 2.0, _last)),
    Pattern("ramp", _ramp),
    Pattern("far-offset", _around(1e4, 1.0, 14)),
    Pattern("spread", _spread),
    Pattern("masked-but-last", _one_at(-1e4, 0.5, _last)),
    Pattern("hundreds", lambda length, dtype: 256.0 * (1 + _mantissas(length, dtype) / 8)),
    Pattern("subnormal", _subnormal),
    Pattern("negative-zeros", _constant(-0.0)),
    Pattern("one-lower", _one_at(0.0, -1.0, _first)),
)
#: Rows whose sums or squares may leave the range of the format itself.
LARGE = (
    Pattern("root", _large_positive),
    Pattern("half-masked", _half_masked),
    Pattern("large", _large(0.8)),
    Pattern("max", _max_row),
    Pattern("least", _least),
)


def _among(values: tuple[float, ...], places: Callable[[int], tuple[int, ...]]) -> Callable[[int, torch.dtype], Tensor]:
    def make(length: int, dtype: torch.dtype) -> Tensor:
        row = noise(length, 15)
        for value, place in zip(values, places(length), strict=True):
            row[place : place + 1] = value
        return row

    return make


def _masked(length: int, dtype: torch.dtype) -> Tensor:
    row = noise(length, 16)
    row[length // 3 :: 2] = -math.inf
    return row


def _masked_deep(length: int, dtype: torch.dtype) -> Tensor:
    """Masked but for values that are all far below 0."""
    row = torch.full((length,), -150.0, dtype=torch.float64)
    row[1::2] = -math.inf
    return row


NONFINITE = (
    Pattern("nan-first", _among((math.nan,), lambda length: (0,))),
    Pattern("masked", _masked),
    Pattern("nan-last", _among((math.nan,), lambda length: (_last(length),))),
    Pattern("infinity", _among((math.inf,), lambda length: (_middle(length),))),
    Pattern("lowest", _among((-math.inf,), lambda length: (0,))),
    Pattern("masked-but-last", _one_at(-math.inf, 1.0, _last)),
    Pattern("masked-but-first", _one_at(-math.inf, 1.0, _first)),
    Pattern("all-masked", _constant(-math.inf)),
    Pattern("both-infinities", _among((math.inf, -math.inf), lambda length: (0, _last(length)))),
    Pattern("nan-and-infinity", _among((math.inf, math.nan), lambda length: (0, _last(length)))),
    Pattern("nan-and-lowest", _among((-math.inf, math.nan), lambda length: (_last(length), _middle(length)))),
    Pattern("all-nan", _constant(math.nan)),
    Pattern("masked-deep", _masked_deep),
    Pattern("infinities", _constant(math.inf)),
)


def _whole(value: Callable[[torch.iinfo], int]) -> Callable[[int, torch.dtype], Tensor]:
    return lambda length, dtype: torch.full((length,), value(torch.iinfo(dtype)), dtype=torch.int64)


def _draw(low: Callable[[torch.iinfo], int], high: int, seed: int) -> Callable[[int, torch.dtype], Tensor]:
    def make(length: int, dtype: torch.dtype) -> Tensor:
        info = torch.iinfo(dtype)
        least = max(low(info), info.min)
        most = max(min(high, info.max), least + 1)
        return torch.randint(least, most, (length,), generator=torch.Generator().manual_seed(seed))

    return make


def _count(length: int, dtype: torch.dtype) -> Tensor:
    return torch.arange(length) % min(torch.iinfo(dtype).max, 2**40)


def _beside(power: int) -> Callable[[int, torch.dtype], Tensor]:
    """Neighbours around a power of two, the largest in the middle: a float takes them for one."""

    def make(length: int, dtype: torch.dtype) -> Tensor:
        top = min(2**power, torch.iinfo(dtype).max - 1)
        row = top - (torch.arange(length) % 3)
        row[length // 2 : length // 2 + 1] = top + 1
        return row

    return make


INTEGERS = (
    Pattern("negative", _draw(lambda info: -100, -1, 21)),
    Pattern("large", _whole(lambda info: min(info.max // 2, 2**30 + 1))),
    Pattern("falling", lambda length, dtype: _count(length, dtype).flip(0)),
    Pattern("beside-2^24", _beside(24)),
    Pattern("most", _whole(lambda info: min(info.max, 2**63 - 1))),
    Pattern("beside-2^53", _beside(53)),
    Pattern("upper-half", _draw(lambda info: info.max // 2 + 1, 256, 22)),
    Pattern("zeros", _whole(lambda info: 0)),
    Pattern("ones", _whole(lambda info: 1)),
    Pattern("repeated", _draw(lambda info: 0, 3, 23)),
    Pattern("ramp", _count),
    Pattern("least", _whole(lambda info: info.min + 1)),
    Pattern("mixed", _draw(lambda info: -(2**40), 2**40, 24)),
)


def _where(pick: Callable[[Tensor, int], Tensor]) -> Callable[[int, torch.dtype], Tensor]:
    return lambda length, dtype: pick(torch.arange(length), length)


BOOLEANS = (
    Pattern("all", _where(lambda places, length: places >= 0)),
    Pattern("none", _where(lambda places, length: places < 0)),
    Pattern("alternating", _where(lambda places, length: places % 2 == 0)),
    Pattern("only-last", _where(lambda places, length: places == length - 1)),
    Pattern("only-first", _where(lambda places, length: places == 0)),
    Pattern("but-last", _where(lambda places, length: places != length - 1)),
    Pattern("thirds", _where(lambda places, length: places % 3 == 1)),
)


@cache
def patterns(dtype: torch.dtype) -> tuple[tuple[str, int, tuple[Pattern, ...]], ...]:
    """The sets of rows for a dtype: name, rank, rows. Complex dtypes have those of their parts."""
    if dtype == torch.bool:
        return (("rows", 0, BOOLEANS),)
    if dtype.is_floating_point or dtype.is_complex:
        return (("rows", 0, FINITE), ("large-rows", 9, LARGE), ("nonfinite-rows", 0, NONFINITE))
    return (("rows", 0, INTEGERS),)


@cache
def added_masks() -> tuple[tuple[str, int, tuple[Pattern, ...]], ...]:
    """The sets of rows for a mask that is added to scores."""
    finite = ("half-masked", "masked-but-last", "deepest", "least", "zeros", "wide", "deep", "hot")
    other = ("masked", "masked-but-first", "masked-deep", "all-masked", "nan-first", "infinity")
    named = {pattern.name: pattern for pattern in (*FINITE, *LARGE, *NONFINITE)}
    return (
        ("rows", 0, tuple(named[name] for name in finite)),
        ("nonfinite-rows", 0, tuple(named[name] for name in other)),
    )
