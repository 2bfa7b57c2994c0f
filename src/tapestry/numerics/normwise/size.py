"""The shape of an entry of the table of errors bounded in norm, and the norms all of them use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from tapestry.numerics.facts import CallFacts

#: Error in units of roundoff (float64, broadcastable to the result) of result ``index``; None for a call not covered.
Size = Callable[[CallFacts, int, Tensor], Tensor | None]


def root_mean_square(value: Tensor, dims: Sequence[int]) -> Tensor:
    """Along ``dims``, kept as size 1; infinities and NaN count as 0."""
    squares = value.abs().nan_to_num(nan=0.0, posinf=0.0).square()
    return squares.mean(tuple(dims), keepdim=True).sqrt() if dims else squares.sqrt()


def euclidean(value: Tensor, dims: Sequence[int]) -> Tensor:
    """The 2-norm along ``dims``, kept as size 1; infinities and NaN count as 0."""
    return value.abs().nan_to_num(nan=0.0, posinf=0.0).square().sum(tuple(dims), keepdim=True).sqrt()
