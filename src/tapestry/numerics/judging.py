"""Judging: one call's results against the oracle's, giving a verdict, a reason and metrics.

It runs nothing on a platform: ``got`` is what came back from one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from tapestry.numerics.arguments import eager_results
from tapestry.numerics.compare import Outcome, compare_bounded, compare_exact, describe
from tapestry.numerics.facts import CallFacts
from tapestry.numerics.float64 import oracle
from tapestry.numerics.flushing import with_flushed_operands
from tapestry.numerics.formats import is_inexact, wide_dtype
from tapestry.numerics.indices import dim_of, is_position, is_unordered, wrong_positions
from tapestry.numerics.integers import with_single_integers
from tapestry.numerics.judgement import Judgement, Metrics
from tapestry.numerics.metrics import ErrorSums
from tapestry.numerics.no_oracle import NoOracle
from tapestry.numerics.ranges import out_of_range
from tapestry.numerics.tolerance import EXACT, Tolerance
from tapestry.numerics.undefined import is_free, undefined_positions
from tapestry.numerics.verdict import Verdict

Results = Sequence[Tensor | None]


def judge(
    target: OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    got: Results,
    source: Results | None = None,
    want: Results | None = None,
) -> Judgement:
    """Judge a platform's results of one call.

    ``args`` and ``kwargs`` hold the real tensors the operator was called with (before any write). ``got`` are the
    platform's results, ``source`` eager's, which declare shapes and dtypes (None: eager is run here), ``want`` the
    oracle's (float64; None: the call has no oracle, and only shape, dtype and range are judged). All three are flat,
    with None where a result is not a tensor.

    Where a result is beyond its bound but no further from the oracle than ``source`` is, it passes as imprecise:
    a platform is not blamed for the source's own error.
    """
    facts = CallFacts(target, args, kwargs)
    declared = eager_results(target, args, kwargs) if source is None else source
    problem = _structure(got, declared)
    if problem:
        return _failed(problem, "structure", Metrics())
    if want is None:
        return _without_oracle(facts, got)
    judgement = _Case(facts, got, declared, source, want).judged()
    if judgement.verdict != Verdict.FAIL:
        return judgement
    return _with_operands_as_read(facts, got, declared) or judgement


def _with_operands_as_read(facts: CallFacts, got: Results, declared: Results) -> Judgement | None:
    """The judgement of a platform that reads operands otherwise, as it may, if that is what it did, else None."""
    for changed, note in (
        (with_flushed_operands(facts), "subnormal operands are read as zero"),
        (with_single_integers(facts, declared), "integers are rounded to float32 before they are computed with"),
    ):
        if changed is None:
            continue
        try:
            want = oracle(changed.target, changed.args, changed.kwargs)
        except NoOracle:
            continue
        judgement = _Case(changed, got, declared, None, want).judged()
        if judgement.verdict == Verdict.PASS:
            return Judgement(Verdict.PASS, True, note, judgement.metrics, judgement.judged_by)
    return None


def _structure(got: Results, declared: Results) -> str:
    if len(got) != len(declared):
        return f"expected {len(declared)} results, got {len(got)}"
    for index, (actual, expected) in enumerate(zip(got, declared, strict=True)):
        problem = _one_structure(actual, expected)
        if problem:
            return f"result {index}: {problem}" if len(got) > 1 else problem
    return ""


def _one_structure(actual: Tensor | None, expected: Tensor | None) -> str:
    if expected is None:
        return ""
    if actual is None:
        return "expected a tensor, got none"
    if actual.shape != expected.shape:
        return f"expected shape {list(expected.shape)}, got {list(actual.shape)}"
    if actual.dtype != expected.dtype:
        return f"expected dtype {_name(expected.dtype)}, got {_name(actual.dtype)}"
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _failed(problem: str, judged_by: str, metrics: Metrics) -> Judgement:
    return Judgement(Verdict.FAIL, False, problem, metrics, judged_by)


def _without_oracle(facts: CallFacts, got: Results) -> Judgement:
    for entry in got:
        problem = "" if entry is None else out_of_range(facts, entry)
        if problem:
            return _failed(problem, "range", Metrics())
    return Judgement(Verdict.PASS, False, "no oracle: shape, dtype and range are right", Metrics(), "range")


class _Case:
    """One case while it is judged: collects errors, classes and notes over its results."""

    def __init__(
        self, facts: CallFacts, got: Results, declared: Results, source: Results | None, want: Results
    ) -> None:
        self._facts = facts
        self._got, self._declared, self._source, self._want = got, declared, source, want
        self._sums = ErrorSums()
        self._classes: list[str] = []
        self._notes: list[str] = []
        self._left_out: list[str] = []
        self._compared = 0
        self._imprecise = False

    def judged(self) -> Judgement:
        problem = ""
        for index, (got, declared) in enumerate(zip(self._got, self._declared, strict=True)):
            want = self._want[index] if index < len(self._want) else None
            if got is None or declared is None:
                continue
            if want is None:
                self._left_out.append(f"the oracle has no result {index}")
                continue
            free = is_free(self._facts, index)
            if free:
                self._left_out.append(free)
                continue
            outcome = self._one(index, *_plain(got, want))
            problem = problem or self._located(index, outcome.problem)
            if outcome.imprecise:
                self._imprecise = True
                self._notes.append(outcome.note)
        judged_by = "+".join(dict.fromkeys(self._classes)) or EXACT
        metrics = self._sums.finished()
        if problem:
            return _failed(f"{problem} (class: {judged_by})", judged_by, metrics)
        return self._passed(judged_by, metrics)

    def _passed(self, judged_by: str, metrics: Metrics) -> Judgement:
        left_out = "; ".join(dict.fromkeys(self._left_out))
        if left_out and not self._compared:
            return Judgement(Verdict.UNDEFINED, False, f"nothing left to compare: {left_out}", metrics, judged_by)
        notes = "; ".join(dict.fromkeys(self._notes)) or f"within the bounds of class {judged_by}"
        reason = f"{notes}; left out: {left_out}" if left_out else notes
        return Judgement(Verdict.PASS, self._imprecise, reason, metrics, judged_by)

    def _located(self, index: int, problem: str) -> str:
        return f"result {index}: {problem}" if problem and len(self._got) > 1 else problem

    def _one(self, index: int, got: Tensor, want: Tensor) -> Outcome:
        if got.shape != want.shape:
            return Outcome(
                f"the oracle has shape {list(want.shape)}", False, "", torch.ones(got.shape, dtype=torch.bool)
            )
        if is_position(self._facts, index):
            return self._positions(got, want)
        if is_unordered(self._facts):
            got, want = (entry.sort(dim_of(self._facts)).values for entry in (got, want))
        outcome, kind = self._values(index, got, want)
        self._classes.append(kind)
        self._add(got, want, outcome.compared)
        return outcome

    def _values(self, index: int, got: Tensor, want: Tensor) -> tuple[Outcome, str]:
        undefined = undefined_positions(self._facts, got.dtype)
        defined = None
        if undefined is not None and _broadcasts(undefined[0], got):
            defined = ~undefined[0].expand(got.shape)
            self._left_out.append(undefined[1])
        source = self._source[index] if self._source is not None else None
        if not is_inexact(got.dtype):
            return compare_exact(got, want, got.dtype, defined, source), EXACT
        tolerance = Tolerance(self._facts, index, want, got.dtype, source)
        return compare_bounded(got, tolerance, defined), tolerance.judged_by

    def _positions(self, got: Tensor, want: Tensor) -> Outcome:
        self._classes.append(EXACT)
        self._compared += got.numel()
        wrong = wrong_positions(self._facts, got, want)
        problem = f"position: {describe(wrong, got, want)}" if bool(wrong.any()) else ""
        return Outcome(problem, False, "", ~wrong)

    def _add(self, got: Tensor, want: Tensor, compared: Tensor) -> None:
        kept = compared.numel() if bool(compared.all()) else int(compared.sum())
        self._compared += kept if kept or bool(self._left_out) else got.numel()
        wide = torch.complex128 if got.dtype.is_complex else torch.float64
        left, right = got.to(wide), want.to(wide)
        if kept < compared.numel():
            left, right = left[compared], right[compared]
        finite = torch.isfinite(left) & torch.isfinite(right)
        if not bool(finite.all()):
            left, right = left[finite], right[finite]
        self._sums.add(left, right, got.dtype)


def _broadcasts(mask: Tensor, result: Tensor) -> bool:
    """Whether a mask is about this result: those of other shapes (statistics beside a normalised tensor) are whole."""
    try:
        return torch.broadcast_shapes(mask.shape, result.shape) == result.shape
    except RuntimeError:
        return False


def _plain(got: Tensor, want: Tensor) -> tuple[Tensor, Tensor]:
    """Quantised tensors as their integer representation; everything detached and strided."""
    got = got.detach()
    if got.is_quantized:
        got = got.int_repr()
        want = want.int_repr() if want.is_quantized else want.to(got.dtype)
    if got.layout != torch.strided:
        got, want = got.to_dense(), want.to_dense()
    if is_inexact(got.dtype) and want.dtype != wide_dtype(got.dtype):
        want = want.to(wide_dtype(got.dtype))
    return got.resolve_conj().resolve_neg(), want.detach().resolve_conj().resolve_neg()
