"""What became of a subject on a device, and in which way it failed: two failures are the same when their ways are.

Not here: running it (on_device), and reducing (reduce).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from tapestry.errors import TapestryError
from tapestry.numerics.arguments import eager_results
from tapestry.numerics.float64 import oracle
from tapestry.numerics.judgement import Judgement, Metrics
from tapestry.numerics.judging import judge
from tapestry.numerics.no_oracle import NoOracle
from tapestry.numerics.verdict import Verdict
from tapestry.program.graph import Call, Ref, operands
from tapestry.program.interpret import Values, run_calls, run_graph
from tapestry.suite.composition.judging import judge_graph
from tapestry.suite.expected import oracle_results
from tapestry.suite.repro.subject import Subject
from tapestry.suite.verdicts import BLOCKING

#: Numbers and addresses, which differ between two reports of the same error.
_PARTICULARS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:[x×,. ]+\d+)*|\[[^\[\]]*\]|\([^()]*\)")


@dataclass(frozen=True, eq=False)
class Expected:
    """What a subject should give, one entry for each output of its graph: eager's results, and float64's.

    ``exact`` is None where there is no oracle, ``no_oracle`` says why.
    """

    source: tuple[Tensor, ...]
    exact: tuple[Tensor | None, ...] | None
    no_oracle: str = ""


@dataclass(frozen=True, eq=False)
class Attempt:
    """One run. ``got`` has one tensor for each output of the graph, or is None where the device gave nothing.

    ``way`` names how it failed, in words that are equal for failures alike; empty where it did not fail.
    """

    judgement: Judgement
    way: str
    got: tuple[Tensor, ...] | None = None

    @property
    def failed(self) -> bool:
        """Whether the verdict is a bad one."""
        return self.judgement.verdict in BLOCKING

    @property
    def lost(self) -> bool:
        """Whether the device had to be started again."""
        return self.judgement.verdict in (Verdict.CRASHED, Verdict.TIMEOUT)


def expected(subject: Subject) -> Expected:
    """What eager and the oracle give for a subject."""
    graph = subject.graph
    if not subject.single:
        source = run_graph(graph, [tensor.clone() for tensor in subject.inputs])
        exact = _exact_graph(subject)
        return Expected(source, exact, "" if exact is not None else "one of the calls has no oracle")
    call = subject.call
    flat = eager_results(call.target, call.args, call.kwargs)
    values = dict(zip((entry.name for entry in graph.inputs), subject.inputs, strict=True))
    source = tuple(
        cast("Tensor", flat[ref.item]) if ref.name == graph.calls[0].name else values[ref.name] for ref in graph.outputs
    )
    wide = oracle_results(call)
    if wide is None:
        return Expected(source, None, "the operator has no oracle")
    exact = tuple(
        (wide[ref.item] if ref.item < len(wide) else None) if ref.name == graph.calls[0].name else values[ref.name]
        for ref in graph.outputs
    )
    return Expected(source, exact)


def judged(subject: Subject, got: Sequence[Tensor]) -> Attempt:
    """Judge what a device gave for a subject, in the order of the graph's outputs."""
    want = expected(subject)
    if subject.single:
        judgement = _judge_call(subject, got, want)
    else:
        judgement = judge_graph(subject.graph, subject.inputs, got, want.source, want.exact)
    way = _way(judgement, got, want) if judgement.verdict is Verdict.FAIL else ""
    return Attempt(judgement, way, tuple(got))


def ended(verdict: Verdict, error: Exception | str) -> Attempt:
    """A run that gave no result."""
    known = isinstance(error, TapestryError | str)
    reason = str(error) if known else f"{type(error).__name__}: {error}"
    judgement = Judgement(verdict, False, reason, Metrics(), "")
    if verdict in (Verdict.CRASHED, Verdict.TIMEOUT):
        return Attempt(judgement, str(verdict))
    kind = "refused" if isinstance(error, str) else type(error).__name__
    return Attempt(judgement, f"{verdict}: {kind}: {_PARTICULARS.sub('#', reason.splitlines()[0] if reason else '')}")


def _judge_call(subject: Subject, got: Sequence[Tensor], want: Expected) -> Judgement:
    """As replaying judges a case: results that nothing reads are neither computed nor judged."""
    (call,) = subject.graph.calls
    if len(got) != len(subject.graph.outputs):
        reason = f"expected {len(subject.graph.outputs)} outputs, got {len(got)}"
        return Judgement(Verdict.FAIL, False, reason, Metrics(), "structure")
    results: list[Tensor | None] = [None] * len(call.outputs)
    source: list[Tensor | None] = [None] * len(call.outputs)
    exact: list[Tensor | None] = [None] * len(call.outputs)
    for place, ref in enumerate(subject.graph.outputs):
        if ref.name == call.name:
            results[ref.item], source[ref.item] = got[place], want.source[place]
            exact[ref.item] = want.exact[place] if want.exact is not None else None
    whole = subject.call
    return judge(
        whole.target, whole.args, whole.kwargs, results, source, None if want.exact is None else exact
    )  # fmt: skip


def _way(judgement: Judgement, got: Sequence[Tensor], want: Expected) -> str:
    """``structure``, ``range``, ``values``, or what is wrong about NaN and infinities."""
    if judgement.judged_by in ("structure", "range"):
        return f"fail: {judgement.judged_by}"
    exact = want.exact or (None,) * len(want.source)
    pairs = [
        (actual, source if wide is None else wide.to(source.dtype))
        for actual, source, wide in zip(got, want.source, exact, strict=True)
        if actual.shape == source.shape and (actual.is_floating_point() or actual.is_complex())
    ]
    for name, wrong in _PATTERNS.items():
        if any(bool(wrong(_wide(actual), _wide(right)).any()) for actual, right in pairs):
            return f"fail: {name}"
    return "fail: values"


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _lost_nan(got: Tensor, want: Tensor) -> Tensor:
    return want.isnan() & ~got.isnan()


def _new_nan(got: Tensor, want: Tensor) -> Tensor:
    return got.isnan() & ~want.isnan()


def _infinity(got: Tensor, want: Tensor) -> Tensor:
    return (got.isinf() | want.isinf()) & (got != want)


#: How the patterns of NaN and infinities can differ, the first that does giving the name.
_PATTERNS = {
    "NaN is lost": _lost_nan,
    "NaN where there is none": _new_nan,
    "infinity": _infinity,
}


def _exact_graph(subject: Subject) -> tuple[Tensor | None, ...] | None:
    """The graph in float64, call by call; None where a call has no oracle."""

    def compute(call: Call, args: tuple[object, ...], kwargs: object) -> object:
        read = [subject.graph.spec(ref).dtype for ref in operands(call)]
        declared = next((dtype for dtype in read if dtype.is_floating_point), None)
        results = oracle(call.target, args, cast("dict[str, object]", kwargs), declared)
        return results if call.is_tuple else results[0]

    values: Values = {
        Ref(entry.name): tensor.double() if tensor.is_floating_point() else tensor
        for entry, tensor in zip(subject.graph.inputs, subject.inputs, strict=True)
    }
    try:
        with torch.no_grad():
            run_calls(subject.graph.calls, values, frozenset(subject.graph.outputs), compute)
    except (NoOracle, RuntimeError, ValueError, TypeError, IndexError):
        return None
    return tuple(cast("Tensor", values[ref]) for ref in subject.graph.outputs)
