"""Comparison of one result with the oracle's under a tolerance. Decides right or wrong, and says where and why."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tapestry.numerics.formats import is_inexact, is_short, largest, smallest_normal, unit_roundoff, wide_dtype
from tapestry.numerics.tolerance import Tolerance

#: How many different results must be short before it is no accident.
_TELLING = 4
#: Units of roundoff within which a short result is as good as the exact one.
_NEAR = 4.0


@dataclass(frozen=True)
class Outcome:
    """``problem`` is empty when the result is right; ``compared`` marks the elements that metrics may use."""

    problem: str
    imprecise: bool
    note: str
    compared: Tensor


def same(left: Tensor, right: Tensor) -> Tensor:
    """Elementwise equality with NaN equal to NaN and -0.0 equal to 0.0."""
    return (left == right) | ((left != left) & (right != right))


def describe(wrong: Tensor, got: Tensor, want: Tensor, worst: Tensor | None = None) -> str:
    """``expected …, got … at […]`` for the worst wrong element (the first, without ``worst``), and how many are."""
    flat = wrong.flatten()
    if worst is None:
        place = int(flat.to(torch.uint8).argmax())
    else:
        place = int(torch.where(flat, worst.expand(wrong.shape).flatten(), -1.0).nan_to_num(nan=torch.inf).argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(place), wrong.shape)] if wrong.dim() else []
    expected, actual = want.flatten()[place].item(), got.flatten()[place].item()
    count = f"{int(flat.sum())} of {flat.numel()} elements wrong"
    return f"expected {_shown(expected)}, got {_shown(actual)} at {index} ({count})"


def _shown(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def compare_exact(
    got: Tensor, want: Tensor, declared: torch.dtype, defined: Tensor | None, source: Tensor | None
) -> Outcome:
    """Equality after rounding the oracle's value to the declared dtype once. Subnormals may be flushed to 0."""
    target = _rounded(want, declared) if is_inexact(declared) else want.to(declared)
    wrong = ~same(got, target)
    if defined is not None:
        wrong = wrong & defined
    compared = torch.ones_like(wrong) if defined is None else defined.expand(wrong.shape)
    if not bool(wrong.any()):
        return Outcome("", False, "", compared)
    if is_inexact(declared):
        excused = (got == 0) & (target.abs() < smallest_normal(declared))
        if source is not None and source.shape == got.shape and source.dtype == got.dtype:
            excused = excused | same(got, source)
        wrong = wrong & ~excused
    if not bool(wrong.any()):
        return Outcome("", True, "subnormal values are flushed to zero, or as the source has them", compared)
    return Outcome(describe(wrong, got, target), False, "", compared)


def _rounded(want: Tensor, declared: torch.dtype) -> Tensor:
    return want if want.dtype == declared else want.to(declared)


def compare_bounded(got: Tensor, tolerance: Tolerance, defined: Tensor | None) -> Outcome:
    """Finite elements by the tolerance's bound; NaN and infinities by position."""
    if tolerance.is_exact:
        return compare_exact(got, tolerance.want, tolerance.declared, defined, tolerance.source)
    if got.numel() == 0:
        return Outcome("", False, "", torch.ones(got.shape, dtype=torch.bool))
    wide, want = got.to(wide_dtype(got.dtype)), tolerance.want
    finite = torch.isfinite(wide) & torch.isfinite(want)
    compared = finite if defined is None else finite & defined
    strayed = _strayed(got, wide, tolerance, finite if defined is None else finite | ~defined)
    if strayed:
        return Outcome(strayed, False, "", compared)
    error = torch.where(compared, (wide - want).abs(), 0.0)
    if bool((error <= tolerance.quick()).all()):
        return Outcome("", False, "", compared)
    return _by_bound(got, wide, tolerance, error, compared)


def _strayed(got: Tensor, wide: Tensor, tolerance: Tolerance, settled: Tensor) -> str:
    """Says which NaN or infinity is out of place; empty if none is."""
    if bool(settled.all()):
        return ""
    expected = _rounded(tolerance.want, tolerance.declared)
    wrong = ~settled & ~same(got, expected)
    if not bool(wrong.any()):
        return ""
    wrong = wrong & ~(_at_overflow(wide, tolerance) | _as_source(got, tolerance.source))
    if bool(wrong.any()):
        wrong = wrong & ~tolerance.overflows(wrong.shape)
    return describe(wrong, got, expected) if bool(wrong.any()) else ""


def _at_overflow(wide: Tensor, tolerance: Tolerance) -> Tensor:
    """Infinite where the exact value is within the bound of overflow."""
    want = tolerance.want
    if want.is_complex():
        return torch.zeros(want.shape, dtype=torch.bool)
    edge = largest(tolerance.declared) * (1 - unit_roundoff(tolerance.declared))
    near = want.abs() + tolerance.bound("allowed") >= edge
    return near & torch.isinf(wide) & (wide.sign() == want.sign())


def _as_source(got: Tensor, source: Tensor | None) -> Tensor:
    """A float32 overflow inside the source's own formula is nothing a platform can be blamed for."""
    if source is None or source.shape != got.shape:
        return torch.zeros(got.shape, dtype=torch.bool)
    return same(got, source)


def _by_bound(got: Tensor, wide: Tensor, tolerance: Tolerance, error: Tensor, compared: Tensor) -> Outcome:
    if _shortened(got, tolerance, error, compared):
        problem = f"{describe(error > 0, wide, tolerance.want, error)}; all results are rounded to 16 bits"
        return Outcome(problem, False, "", compared)
    imprecise, note = False, ""
    beyond = error > tolerance.bound("careful")
    if bool(beyond.any()):
        imprecise, note = True, "beyond what a careful implementation reaches, within what is allowed"
        allowed = tolerance.bound("allowed")
        beyond = error > allowed
        if bool(beyond.any()) and tolerance.source is not None:
            note = "no worse than the source"
            beyond = beyond & (error > _source_error(tolerance))
        if bool(beyond.any()):
            note = "a sum on the way leaves the range of the arithmetic"
            beyond = beyond & ~tolerance.overflows(beyond.shape)
        if bool(beyond.any()):
            excess = error / allowed.clamp(min=smallest_normal(tolerance.declared))
            bound = float(allowed.expand(error.shape).flatten()[int(torch.where(beyond, excess, 0.0).argmax())])
            problem = f"{describe(beyond, wide, tolerance.want, excess)}, allowed {bound:.3g}"
            return Outcome(problem, False, "", compared)
    limit = tolerance.rms_bound(compared)
    if limit is None:
        return Outcome("", imprecise, note, compared)
    return _by_rms(tolerance, error, compared, limit, Outcome("", imprecise, note, compared))


def _shortened(got: Tensor, tolerance: Tolerance, error: Tensor, compared: Tensor) -> bool:
    """Whether float32 results were rounded to a 16-bit format, although their bound may be wide enough for that.

    A result has its last 13 bits clear by chance once in 8192 times; all of several different ones do not. Those right
    to a few units of float32 do not count: the exact ones lie beside short numbers, as quotients of integers may.
    """
    if got.dtype != torch.float32:
        return False
    telling = compared & ~is_short(tolerance.want.to(torch.float32))
    if bool((telling & ~is_short(got)).any()):
        return False
    telling = telling & (error > _NEAR * tolerance.unit * tolerance.want.abs())
    return got[telling].abs().unique().numel() >= _TELLING


def _by_rms(tolerance: Tolerance, error: Tensor, compared: Tensor, limit: float, passed: Outcome) -> Outcome:
    rms = _rms(error, compared)
    if rms <= limit:
        return passed
    random = compared & ~tolerance.terms.aligned  # what is added one by one has passed by its elements
    if bool((random != compared).any()):
        limit_of_rest = tolerance.rms_bound(random)
        if limit_of_rest is None or _rms(error, random) <= limit_of_rest:
            return passed
    if tolerance.source is not None and rms <= _rms(_source_error(tolerance), compared):
        return Outcome("", True, "no worse than the source", compared)
    problem = f"expected an rms error of at most {limit:.3g}, got {rms:.3g}: arithmetic less precise than declared"
    return Outcome(problem, False, "", compared)


def _rms(error: Tensor, keep: Tensor) -> float:
    return float(error.expand(keep.shape)[keep].square().mean().sqrt())


def _source_error(tolerance: Tolerance) -> Tensor:
    source = tolerance.source
    if source is None or source.shape != tolerance.want.shape:
        return torch.zeros(())
    return (source.to(tolerance.want.dtype) - tolerance.want).abs().nan_to_num(nan=0.0, posinf=0.0)
