"""The whole-program check: how far a program's outputs are from the oracle's, and how far they may be."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

import msgspec
import torch
from torch import Tensor

from tapestry.numerics.formats import is_inexact

#: A program passes at the larger of this and PROGRAM_FACTOR times the source's own error.
PROGRAM_FLOOR = 1e-5
PROGRAM_FACTOR = 4.0


class ProgramError(msgspec.Struct, frozen=True):
    """``max_rel_error``: the maximum over outputs of max|got - want| / max|want|; inf where shape, an exact output or
    the places of NaN and infinities differ. ``max_abs_error`` and ``cosine`` are over the floating outputs.
    """

    max_rel_error: float
    max_abs_error: float
    cosine: float


def program_error(got: Sequence[Tensor], want: Sequence[Tensor]) -> ProgramError:
    """The error of a program's outputs against another's (the oracle's in float64, or the source's)."""
    if len(got) != len(want):
        return ProgramError(inf, inf, 0.0)
    relative, absolute = 0.0, 0.0
    products = got_squares = want_squares = 0.0
    for actual, expected in zip(got, want, strict=True):
        if actual.shape != expected.shape:
            return ProgramError(inf, inf, 0.0)
        if not is_inexact(actual.dtype) or not is_inexact(expected.dtype):
            relative = relative if torch.equal(actual, expected.to(actual.dtype)) else inf
            continue
        left, right = _wide(actual), _wide(expected)
        error, size = _largest_error(left, right)
        absolute = max(absolute, error)
        relative = max(relative, 0.0 if error == 0.0 else error / size if size else inf)
        left, right = left.nan_to_num(0.0, 0.0, 0.0), right.nan_to_num(0.0, 0.0, 0.0)
        products += float((left * right).sum())
        got_squares += float(left.square().sum())
        want_squares += float(right.square().sum())
    norms = sqrt(got_squares) * sqrt(want_squares)
    both_zero = got_squares == want_squares == 0.0
    return ProgramError(relative, absolute, 1.0 if both_zero else products / norms if norms else 0.0)


def program_bound(source_error: float) -> float:
    """The largest ``max_rel_error`` with which a whole program passes: max(1e-5, 4 times the source's own)."""
    return max(PROGRAM_FLOOR, PROGRAM_FACTOR * source_error)


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor.to(torch.float64)


def _largest_error(got: Tensor, want: Tensor) -> tuple[float, float]:
    if got.numel() == 0:
        return 0.0, 0.0
    finite = torch.isfinite(want)
    if not bool(finite.all()) or not bool(torch.isfinite(got).all()):
        matching = (got == want) | ((got != got) & (want != want))
        if not bool((matching | (finite & torch.isfinite(got))).all()):
            return inf, 1.0
        got, want = torch.where(finite, got, 0.0), torch.where(finite, want, 0.0)
    return float((got - want).abs().max()), float(want.abs().max())
