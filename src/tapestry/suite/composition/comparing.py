"""A platform's tensor against what is known of a value: within its bound, undefined, or wrong, and where.

Not here: where bounds come from (running).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tapestry.numerics.compare import describe, same
from tapestry.numerics.formats import component, is_inexact, largest, smallest_normal, unit_roundoff, wide_dtype
from tapestry.suite.composition.values import Value


@dataclass(frozen=True)
class Outcome:
    """``problem`` is empty when the tensor is right; ``compared`` marks the elements that were compared."""

    problem: str
    compared: Tensor


def structure_problem(got: object, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """How a result's kind, shape or dtype differs from what was declared; empty when it does not."""
    if not isinstance(got, Tensor):
        return f"expected a tensor, got {type(got).__name__}"
    if tuple(got.shape) != shape:
        return f"expected shape {list(shape)}, got {list(got.shape)}"
    if got.dtype != dtype:
        return f"expected dtype {str(dtype).removeprefix('torch.')}, got {str(got.dtype).removeprefix('torch.')}"
    return ""


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors agree everywhere, NaN with NaN and -0.0 with 0.0."""
    return left.shape == right.shape and left.dtype == right.dtype and bool(same(left, right).all())


def compare(got: Tensor, value: Value, source: Tensor) -> Outcome:
    """Compare a tensor of the declared shape and dtype. ``source`` is eager's: no further off than it is right, too."""
    got = got.detach().resolve_conj().resolve_neg()
    compared = ~value.doubtful
    if not is_inexact(value.dtype):
        wrong = ~same(got, value.exact.to(got.dtype)) & compared & ~same(got, source)
        return Outcome(describe(wrong, got, value.exact) if bool(wrong.any()) else "", compared)
    wide, exact = got.to(wide_dtype(got.dtype)), value.exact
    expected = exact.to(got.dtype)
    finite = torch.isfinite(wide) & torch.isfinite(exact)
    stray = ~finite & ~same(got, expected) & ~same(got, source) & ~_overflow(wide, value) & compared
    if bool(stray.any()):
        return Outcome(describe(stray, got, expected), compared)
    error = torch.where(finite & compared, (wide - exact).abs(), 0.0)
    limit = value.bound + smallest_normal(value.dtype)
    beyond = error > limit
    if bool(beyond.any()):
        own = (source.to(exact.dtype) - exact).abs().nan_to_num(nan=0.0, posinf=0.0)
        beyond = beyond & (error > own)
    if not bool(beyond.any()):
        return Outcome("", compared & finite)
    excess = torch.where(beyond, error / limit.clamp(min=smallest_normal(value.dtype)), 0.0)
    allowed = float(limit.expand(error.shape).flatten()[int(excess.argmax())])
    return Outcome(f"{describe(beyond, wide, exact, excess)}, allowed {allowed:.3g}", compared & finite)


def _overflow(wide: Tensor, value: Value) -> Tensor:
    """Infinite where the exact value is within its bound of overflow."""
    if value.dtype.is_complex:
        return torch.zeros(wide.shape, dtype=torch.bool)
    edge = largest(component(value.dtype)) * (1 - unit_roundoff(value.dtype))
    near = value.exact.abs() + value.bound >= edge
    return near & torch.isinf(wide) & (wide.sign() == value.exact.sign())
