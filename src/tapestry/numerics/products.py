"""Sums and sums of products: which operators they are, how many terms a result has, and how large the terms are.

The bounds and their constants are those of docs/numerics.md: per element 2 sqrt(n) eps (|A|·|B|), and over a tensor
an rms error of at most 8 eps times the rms of |A|·|B|.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from typing import cast

import torch
from torch import Tensor

from tapestry.numerics.arguments import names
from tapestry.numerics.bounded import COHERENCE, COHERENT_FACTOR, COHERENT_LIMIT
from tapestry.numerics.facts import CallFacts
from tapestry.numerics.formats import accumulation_dtype, component, unit_roundoff

#: Elements from which the rms criterion applies.
RMS_ELEMENTS = 64
#: rms(error) <= RMS_FACTOR eps rms(|A|·|B|), growing with sqrt(n) / RMS_ROOT for very long sums.
RMS_FACTOR = 8.0
RMS_ROOT = 7.0
#: |error| <= ELEMENT_FACTOR sqrt(n) eps (|A|·|B|).
ELEMENT_FACTOR = 2.0
#: Partial sums stored in a 16-bit output dtype may each round: per element u (3 |y| + 4 |A·B|_2), rms 2 u of both.
NARROW_OUTPUT, NARROW_WALK, NARROW_RMS = 3.0, 4.0, 2.0

#: Terms added one by one to one that dwarfs them: each addition rounds by half an eps of it, n times the same way.
DOMINATED_FACTOR = 0.5

#: Sums by place: kernels add each term to what lies in the result, in its own format and in no specified order.
PLACED = names("""
    index_put _unsafe_index_put _index_put_impl _unsafe_masked_index_put_accumulate put index_add scatter_add scatter
    scatter_reduce index_reduce col2im fold max_pool2d_with_indices_backward""")

#: Linear operators whose number of terms is what they give on ones.
COUNTED = names("""
    mm matmul bmm linear addmm addbmm baddbmm addmv addr mv dot vdot inner outer ger einsum tensordot kron
    chain_matmul linalg_multi_dot linalg_matmul linalg_vecdot _grouped_mm convolution _convolution conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d conv_depthwise3d _conv_depthwise2d mkldnn_convolution
    convolution_overrideable thnn_conv2d slow_conv3d bilinear _trilinear sum nansum sum_to_size cumsum trace
    index_add scatter_add scatter_reduce index_put index_reduce scatter embedding_bag _embedding_bag col2im fold
    mkldnn_linear conv_tbc put _embedding_bag_forward_only segment_reduce _unsafe_masked_index_put_accumulate
    _unsafe_index_put _index_put_impl max_pool2d_with_indices_backward bincount
    _convolution_mode _slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d
    slow_conv_transpose2d slow_conv_transpose3d _nnpack_spatial_convolution""")
#: Reductions by index, which add, average, multiply or choose as they are told.
REDUCED_BY_INDEX = names("scatter_reduce index_reduce segment_reduce scatter")
#: Averages: the number of terms is not what ones give.
AVERAGED = names("""
    mean nanmean avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    _adaptive_avg_pool2d _adaptive_avg_pool3d""")


@dataclass(frozen=True)
class Terms:
    """The terms that result ``index`` of a call adds up, per element (float64, broadcastable to ``want``)."""

    facts: CallFacts
    index: int
    want: Tensor

    @cached_property
    def magnitude(self) -> Tensor:
        """The sum of magnitudes |A|·|B|: the operator on absolute values (a divisor may be negative)."""
        return self._on(torch.abs, abs).abs()

    @cached_property
    def length(self) -> Tensor:
        """How many terms: what the operator gives on ones; for averages, the size of the window."""
        if self.facts.name == "index_reduce":  # has no sum by which to count
            return torch.bincount(cast(Tensor, self.facts.bound["index"])).max().to(torch.float64) + 1
        if self.facts.name in AVERAGED:
            return torch.tensor(float(_averaged_length(self.facts, self.want)), dtype=torch.float64)
        ones = self.facts.run_wide(torch.ones_like, lambda _: 1.0, _as_sum(self.facts))[self.index]
        assert ones is not None
        return ones.abs().clamp(min=1.0)

    @cached_property
    def walk(self) -> Tensor:
        """The root of the sum of squares: how far partial sums of random signs wander from 0."""
        squares = self._on(lambda value: value.abs().square(), lambda number: number * number).abs()
        averaged = self.facts.name in AVERAGED or bool(_as_sum(self.facts))
        return (squares / self.length).sqrt() if averaged else squares.sqrt()

    @cached_property
    def coherent(self) -> Tensor:
        """Where all terms have one magnitude, so that their roundings add up instead of averaging out."""
        return self.magnitude.square() >= COHERENCE * self.length * self.walk.square()

    @cached_property
    def dominated(self) -> Tensor:
        """Where one term carries nearly all, so that every other is rounded at its size, and lost if it is small."""
        return (self.length > 1) & (self.walk.square() >= COHERENCE * self.magnitude.square())

    @property
    def aligned(self) -> Tensor:
        """Where roundings add up: how large their mean square is then says nothing of the arithmetic."""
        return self.coherent | self.dominated

    @property
    def placed(self) -> bool:
        """Whether each addition may round to the format of the result."""
        return self.facts.name in PLACED

    def _on(self, change: Callable[[Tensor], Tensor], number: Callable[[float], float]) -> Tensor:
        value = self.facts.run_wide(change, number)[self.index]
        assert value is not None
        return value


def is_sum(facts: CallFacts) -> bool:
    """Whether the call adds up products or averages; a scatter or index reduction only when it is asked to add."""
    if facts.name not in COUNTED and facts.name not in AVERAGED:
        return False
    if facts.name in ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"):
        return facts.bound.get("mode") in (0, 1)
    return facts.bound.get("reduce") in (None, "sum", "add", "mean")


def is_product(facts: CallFacts) -> bool:
    """Whether the call multiplies elements up by index."""
    return facts.name in REDUCED_BY_INDEX and facts.bound.get("reduce") in ("prod", "multiply")


def _as_sum(facts: CallFacts) -> dict[str, object]:
    """The arguments that make a mean or a product by index a sum, so that ones count the terms."""
    if facts.name in REDUCED_BY_INDEX and facts.bound.get("reduce") in ("mean", "prod"):
        return {"reduce": "sum"}
    if facts.bound.get("reduce") == "multiply":
        return {"reduce": "add"}
    if facts.name in ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only") and facts.bound["mode"] == 1:
        return {"mode": 0}
    return {}


def element_bound(of: Terms, declared: torch.dtype, column: str) -> Tensor:
    """What each element may be off by, the rounding to the declared dtype included.

    The ``allowed`` column lets terms of one magnitude, and terms behind one that dwarfs them, be added one after the
    other, up to a limit, and sums by place in 16 bits round at every addition.
    """
    eps = 2 * unit_roundoff(accumulation_dtype(declared))
    bound = ELEMENT_FACTOR * eps * of.length.sqrt() * of.magnitude
    if column == "allowed":
        one_by_one = (of.length * COHERENT_FACTOR).clamp(max=COHERENT_LIMIT) * eps * of.magnitude
        bound = torch.where(of.coherent, torch.maximum(bound, one_by_one), bound)
        behind_a_large_one = (of.length * DOMINATED_FACTOR).clamp(max=COHERENT_LIMIT) * eps * of.magnitude
        bound = torch.where(of.dominated, torch.maximum(bound, behind_a_large_one), bound)
    if not is_narrow(declared):
        return bound
    bound = bound + unit_roundoff(declared) * (NARROW_OUTPUT * of.want.abs() + NARROW_WALK * of.walk)
    return torch.maximum(bound, _added_in_place(of, declared)) if column == "allowed" and of.placed else bound


def _added_in_place(of: Terms, declared: torch.dtype) -> Tensor:
    """Each of n additions rounds, in any order: n u / (1 + n u) times the sum of magnitudes.

    The worst case is reached by a large term that swallows n small ones, and by equal terms once the sum stops growing;
    it is never the whole sum (docs/numerics.md).
    """
    units = of.length * unit_roundoff(declared)
    return units / (1 + units) * of.magnitude


def rms_bound(of: Terms, declared: torch.dtype, keep: Tensor) -> float | None:
    """What the root mean square of the error over the kept elements may be; None where only elements count."""
    if of.placed and is_narrow(declared):
        return None
    eps = 2 * unit_roundoff(accumulation_dtype(declared))
    factor = max(RMS_FACTOR, float(of.length.max()) ** 0.5 / RMS_ROOT)
    bound = factor * eps * _rms(of.magnitude, keep)
    if not is_narrow(declared):
        return bound
    return bound + NARROW_RMS * unit_roundoff(declared) * _rms(torch.hypot(of.want.abs(), of.walk), keep)


def is_narrow(declared: torch.dtype) -> bool:
    """Whether results are stored in fewer bits than sums are held in."""
    return component(declared).itemsize < 4


def _rms(value: Tensor, keep: Tensor) -> float:
    kept = value.expand(keep.shape)[keep]
    return float(kept.square().mean().sqrt())


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
