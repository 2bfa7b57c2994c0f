"""Sums and sums of products: which operators they are, how many terms a result has, and how large the terms are.

The bounds and their constants are those of docs/numerics.md: per element 2 sqrt(n) eps (|A|·|B|), and over a tensor
an rms error of at most 8 eps times the rms of |A|·|B|.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import cast

import torch
from torch import Tensor

from tapestry.numerics.arguments import names
from tapestry.numerics.facts import CallFacts
from tapestry.numerics.formats import accumulation_dtype, component, unit_roundoff

#: Elements from which the rms criterion applies.
RMS_ELEMENTS = 64
#: rms(error) <= RMS_FACTOR eps rms(|A|·|B|), growing with sqrt(n) / RMS_ROOT for very long sums.
RMS_FACTOR = 8.0
RMS_ROOT = 8.0
#: |error| <= ELEMENT_FACTOR sqrt(n) eps (|A|·|B|).
ELEMENT_FACTOR = 2.0
#: Partial sums stored in a 16-bit output dtype may each round: per element u (3 |y| + 4 |A·B|_2), rms 2 u of both.
NARROW_OUTPUT, NARROW_WALK, NARROW_RMS = 3.0, 4.0, 2.0

#: Linear operators whose number of terms is what they give on ones.
COUNTED = names("""
    mm matmul bmm linear addmm addbmm baddbmm addmv addr mv dot vdot inner outer ger einsum tensordot kron
    chain_matmul linalg_multi_dot linalg_matmul linalg_vecdot _grouped_mm convolution _convolution conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d conv_depthwise3d _conv_depthwise2d mkldnn_convolution
    convolution_overrideable thnn_conv2d slow_conv3d bilinear _trilinear sum nansum sum_to_size cumsum trace
    index_add scatter_add scatter_reduce index_put index_reduce scatter embedding_bag _embedding_bag col2im fold
    cross linalg_cross diff trapezoid trapz cumulative_trapezoid mkldnn_linear conv_tbc
    put segment_reduce linalg_vander""")
#: Averages: the number of terms is not what ones give.
AVERAGED = names("""
    mean nanmean avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    _adaptive_avg_pool2d _adaptive_avg_pool3d""")


@dataclass(frozen=True)
class Terms:
    """Per result element (float64, broadcastable): number of terms, sum of magnitudes, root of the sum of squares."""

    length: Tensor
    magnitude: Tensor
    walk: Tensor


def terms(facts: CallFacts, index: int, want: Tensor, squares: bool) -> Terms:
    """Number and size of the terms of result ``index``. ``squares`` asks for the walk, needed for 16-bit results."""
    magnitude = _result(facts.run_wide(torch.abs, abs), index)
    if facts.name in AVERAGED:
        length = torch.tensor(float(_averaged_length(facts, want)), dtype=torch.float64)
        walk = magnitude / length.sqrt()
        return Terms(length, magnitude, walk)
    length = _result(facts.run_wide(torch.ones_like, lambda _: 1.0), index)
    walk = _result(facts.run_wide(_square, _square_number), index).sqrt() if squares else magnitude
    return Terms(length.abs().clamp(min=1.0), magnitude, walk)


def element_bound(of: Terms, want: Tensor, declared: torch.dtype) -> Tensor:
    """What each element may be off by, the rounding to the declared dtype included."""
    eps = 2 * unit_roundoff(accumulation_dtype(declared))
    bound = ELEMENT_FACTOR * eps * of.length.sqrt() * of.magnitude
    if not is_narrow(declared):
        return bound
    return bound + unit_roundoff(declared) * (NARROW_OUTPUT * want.abs() + NARROW_WALK * of.walk)


def rms_bound(of: Terms, want: Tensor, declared: torch.dtype, keep: Tensor) -> float:
    """What the root mean square of the error over the kept elements may be."""
    eps = 2 * unit_roundoff(accumulation_dtype(declared))
    factor = max(RMS_FACTOR, float(of.length.max()) ** 0.5 / RMS_ROOT)
    bound = factor * eps * _rms(of.magnitude, keep)
    if not is_narrow(declared):
        return bound
    return bound + NARROW_RMS * unit_roundoff(declared) * _rms(torch.hypot(want.abs(), of.walk), keep)


def is_narrow(declared: torch.dtype) -> bool:
    """Whether results are stored in fewer bits than sums are held in."""
    return component(declared).itemsize < 4


def _rms(value: Tensor, keep: Tensor) -> float:
    kept = value.expand(keep.shape)[keep]
    return float(kept.square().mean().sqrt())


def _square(value: Tensor) -> Tensor:
    return value.abs().square()


def _square_number(value: float) -> float:
    return value * value


def _result(results: tuple[Tensor | None, ...], index: int) -> Tensor:
    value = results[index]
    assert value is not None
    return value


def _averaged_length(facts: CallFacts, want: Tensor) -> int:
    operand = facts.tensor("self")
    assert operand is not None
    kernel = facts.bound.get("kernel_size")
    if kernel is not None:
        spatial = 1 if facts.name.endswith("1d") else 3 if facts.name.endswith("3d") else 2
        sizes = [kernel] if isinstance(kernel, int) else list(cast(Sequence[int], kernel))
        return prod(sizes * spatial if len(sizes) == 1 else sizes)
    if "adaptive" in facts.name:
        pairs = zip(operand.shape, want.shape, strict=True)
        return prod(ceil(size / out) + 1 for size, out in pairs if out and size != out)
    return max(1, operand.numel() // max(want.numel(), 1))
