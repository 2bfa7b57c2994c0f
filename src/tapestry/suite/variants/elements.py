"""Lists of single values that formats and formulas get wrong, for elements that are computed each for itself.

The most telling value of a list stands first: a small tensor gets the head of the list. Everything follows from the
format (its range, its spacing, its exact integers) and from where common formulas overflow, cancel or lose their
argument. Not here: placing values in a call (values), rows of values that act together (patterns).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """Values of one kind, in float64 or int64. ``rank`` as of a variant; ``limit``: into how many tensors the list may
    be split where it is longer than a tensor.
    """

    name: str
    rank: int
    values: Tensor
    limit: int = 3


#: exp overflows float32 at 88.7, exp(2x) at 44.4, is 0 below -104; float64's at 709.8. float16: 65504. The squares of
#: 256 and 1.9e19 leave float16 and float32.
_SATURATED = (
    45.0, -104.5, -45.0, 104.0, 90.0, -90.0, 300.0, -1e4, 20.0, -20.0, 1e4, -300.0, 256.0, -7.5, 1e3, -1e3, 7.5, 12.5,
    -12.5, 30.0, -30.0, 65504.0, -65504.0, 60.0, -60.0, 88.5, 88.8, -87.5, -103.9, 17.0, -17.0, 5e4, 1e5, -1e5, 710.0,
    -746.0, 1e19, -1e19, 1.9e19, 1e30, -1e30, 3.0, -3.0, 9.0, -9.0, 5.5, -5.5, 181.5, 400.0, 1e38, -1e38,
)  # fmt: skip
_NEAR_ZERO = (1e-4, -1e-4, 1e-3, 1e-5, -1e-3, 1e-7, -1e-5, 1e-6, 1e-8, 1e-2, -1e-2, -1e-6, -1e-7, -1e-8, 0.03, -0.03,
              0.1, -0.1, 3e-4, 3e-3, 0.2, -0.2, 0.3, 1e-10, -1e-10, 1e-15, 1e-20, -1e-20)  # fmt: skip
_BESIDE_ONE = (1e-3, -1e-3, 1e-2, -1e-2, 1e-4, -1e-4, 1e-5, -1e-5, 1e-6, -1e-6, 0.1, -0.1, 0.0)
_TIES = (0.5, 2.5, -0.5, 1.5, -2.5, -1.5, 4.5, -3.5, 1e3 + 0.5, 1e3 + 1.5, 0.25, -0.25, 0.75, 6.5, -6.5, 12.5, -11.5,
         0.125, 2.0**20 + 0.5, 2.0**21 + 1.5, 0.05, 0.15, -0.15, 0.375, 2.675, 125.0, 135.0, -125.0, 0.7, -0.7, 2.3,
         -2.3, 1.7, -1.7, -0.3, 0.3)  # fmt: skip
_WHOLE = (257.0, 2049.0, 2.0**24 - 1, 65537.0, -257.0, 2.0**24, 255.0, 128.0, -128.0, -129.0, 4097.0, -2049.0,
          2.0**23 + 1, 2.0**31, -(2.0**31), 2.0**31 - 128, 2.0**32, 2.0**53, -(2.0**24 - 1), 32768.0, -32769.0,
          2.0**63, -(2.0**63), 2.0**16 - 1, 127.0, 3.0, 7.0, -7.0, 1.0, -1.0, 0.0, 2.0**62)  # fmt: skip
_NEGATIVE = (-1.7, -0.3, -4.1, -0.02, -12.9, -35.3, -0.8, -2.2)
_ANGLES = (1e3, -1e3, 1e4, 1e5, 1e6, 1e7, -1e5, 33.0, 100.0, 12345.678, 2.0**22 + 0.25, -1e7, 201.06193, 3e5, 314.15927,
           31.415926, 6.2831853, 3.1415927, 1.5707964, 4.712389, -3.1415927, 25.132742, 710.0, 22.0, 355.0)  # fmt: skip


@cache
def float_groups(dtype: torch.dtype) -> tuple[Group, ...]:
    """The lists for a floating dtype, all values exact in it, those beyond its range left out."""
    info = torch.finfo(dtype)
    ulp = info.eps
    ones = [sign * (1 + step) for step in (*_BESIDE_ONE, ulp, -ulp / 2, 4 * ulp, -2 * ulp) for sign in (1.0, -1.0)]
    saturated = (*_SATURATED, info.max / 2, -info.max / 2, info.max, -info.max)
    ties = (*_TIES, 0.5 - ulp / 4, 1 / ulp - 1.5, 1 / ulp + 1, -(0.5 - ulp / 4), 0.5 / ulp - 0.5)
    return (
        Group("saturated", 0, _in(saturated, dtype), 8),
        Group("sweep", 1, _sweep(dtype), 4),
        Group("ties", 2, _in(ties, dtype), 4),
        Group("near-zero", 3, _in(_NEAR_ZERO, dtype)),
        Group("near-one", 4, _in(ones, dtype)),
        Group("whole", 6, _in(_WHOLE, dtype), 4),
        Group("angles", 7, _in(_ANGLES, dtype)),
        Group("grid", 8, _in(_grid(), dtype), 2),
        Group("edges", 5, _edges(dtype)),
        Group("zero", 6, _in((0.0,), dtype)),
        Group("negative", 7, _in(_NEGATIVE, dtype), 1),
    )


def _edges(dtype: torch.dtype) -> Tensor:
    """Zeros of both signs, subnormals, the smallest and largest normal numbers, their neighbours, and the ends of
    common domains.
    """
    info = torch.finfo(dtype)
    smallest = info.tiny * info.eps
    edges = (0.0, 1.0, -1.0, -0.0, info.tiny, -info.tiny, smallest, info.max, -info.max, info.tiny / 2, -smallest,
             info.tiny * (1 + info.eps), 0.5, 2.0, -2.0, info.tiny * (1 - info.eps))  # fmt: skip
    return torch.tensor(edges, dtype=torch.float64).to(dtype).double()


@cache
def _sweep(dtype: torch.dtype) -> Tensor:
    """One value with all mantissa bits in use for every power of two, subnormals included, both signs, evenly spread
    from the first on: any head of the list covers the whole range.
    """
    info = torch.finfo(dtype)
    lowest = round(math.log2(info.tiny * info.eps))
    highest = round(math.log2(info.max))
    exponents = torch.arange(lowest, highest, dtype=torch.float64)
    count = exponents.numel()
    order = (torch.arange(2 * count, dtype=torch.float64) * 0.6180339887498949 % 1.0).argsort(stable=True)
    # below 1.95, which no format rounds up to the next power
    mantissa = 1.0 + 0.95 * (torch.arange(count, dtype=torch.float64) * 0.7548776662466927 % 1.0)
    positive = mantissa * 2.0**exponents
    both = torch.stack([positive, -positive.flip(0)], 1).reshape(-1)[order]
    return _in(both.tolist(), dtype)


def _grid() -> list[float]:
    """Close to evenly spaced between -12 and 12, where smooth activations bend, and up to 120 outside."""
    inner = torch.linspace(-12, 12, 193, dtype=torch.float64)
    outer = torch.linspace(-120, 120, 63, dtype=torch.float64)
    values = torch.cat([inner, outer]) * 1.0009765
    order = (torch.arange(values.numel(), dtype=torch.float64) * 0.6180339887498949 % 1.0).argsort(stable=True)
    return values[order].tolist()


def _in(values: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Rounded to the dtype, the finite ones, each once, in order."""
    rounded = torch.tensor(values, dtype=torch.float64).to(dtype).double()
    kept = dict.fromkeys(value for value in rounded.tolist() if math.isfinite(value))
    return torch.tensor(list(kept), dtype=torch.float64)


#: Beside each other in binary operations: signs, zeros, whole and odd exponents, magnitudes that swallow each other.
_FLOAT_PAIRS = (1.0, -2.5, 0.0, 3.0, -7.0, 0.5, 300.0, -0.0, 2.0, -3.0, 1e-3, 1e4, -1e-20, 5.5, -1e19, 1e30)
_NONFINITE_PAIRS = (math.nan, 1.0, math.inf, -math.inf, -2.0, 0.0)
_INTEGER_PAIRS = (-7, 3, 7, -3, 1, -1, 2, 65536, 32768, 46341, 255, -128, 200, 2**24 + 1, 2**31 - 1, -(2**31) + 1,
                  2**53 + 1, 3037000500, -100, 2**40 + 1)  # fmt: skip
_NATURAL_PAIRS = (2, 3, 7, 1, 0, 5, 31, 13, 32, 33, 16, 8, 63)
_NEIGHBOURS = (2**24, 2**53, 2**31 - 2, 200, 127, 255, 1, 0, -1, -128, -200, -(2**24), -(2**53), 2**16, 2**15, 2048,
               256, 2**32, 2**40, -(2**31) + 2)  # fmt: skip


def float_pairs(dtype: torch.dtype) -> Tensor:
    """Values to combine with each other, finite."""
    return _in(_FLOAT_PAIRS, dtype) if dtype.itemsize > 1 else torch.tensor([1.0, -2.0, 0.0, 3.0, 0.5])


def nonfinite_pairs() -> Tensor:
    """NaN, infinities and what they are put beside."""
    return torch.tensor(_NONFINITE_PAIRS, dtype=torch.float64)


def integer_pairs(dtype: torch.dtype) -> Tensor:
    """Non-zero integers whose quotients differ by convention and whose products and sums leave 8 to 53 bits.

    None is the least of the dtype.
    """
    return _whole(_INTEGER_PAIRS, dtype)


def natural_pairs(dtype: torch.dtype) -> Tensor:
    """Small integers that are not negative: exponents and shifts."""
    return _whole(_NATURAL_PAIRS, dtype)


def neighbours(dtype: torch.dtype) -> Tensor:
    """Integers next to which a narrower type, a sign or a float no longer tells them apart; none the least."""
    return _whole(_NEIGHBOURS, dtype)


@cache
def integer_groups(dtype: torch.dtype, alone: bool) -> tuple[Group, ...]:
    """The lists for an integer dtype; zeros by themselves, since a divisor may be none.

    The least value is left out unless the tensor stands ``alone``: beside -1 its quotient ends a process on some
    processors, eager's greatest common divisor among them.
    """
    info = torch.iinfo(dtype)
    ends = (info.max, info.min if alone else info.min + 1, info.max - 1, info.min + 1, -1, 1)
    wide = (2**24 + 1, 2**31, -(2**31), 2**53 + 1, 2**32 + 1, 65537, 40000, 257, 2049, -(2**24) - 1, -(2**53) - 1,
            2**31 - 1, 2**62, 4294967295, 65535)  # fmt: skip
    small = (-7, 7, -1, 200, 128, 127, 255, -128, -3, 3, 1, 2, 100, -100, 5, -5, 31, 129)
    return (
        Group("extremes", 0, _whole(ends, dtype, alone)),
        Group("wide", 1, _whole(wide, dtype, alone)),
        Group("small", 2, _whole(small, dtype, alone)),
        Group("natural", 3, natural_pairs(dtype)),
        Group("zeros", 6, _whole((0,), dtype)),
    )


def _whole(values: Sequence[int], dtype: torch.dtype, alone: bool = False) -> Tensor:
    info = torch.iinfo(dtype)
    least = info.min if alone or not dtype.is_signed else info.min + 1
    kept = [value for value in dict.fromkeys(values) if least <= value <= min(info.max, 2**63 - 1)]
    return torch.tensor(kept or [1], dtype=torch.int64)
