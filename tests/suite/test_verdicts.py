"""Results counted and summarised: every verdict named, failures first, the worst error found."""

from __future__ import annotations

import math

import msgspec
import pytest

from tapestry.numerics.judgement import Metrics
from tapestry.numerics.verdict import Verdict
from tapestry.suite.verdicts import BLOCKING, CaseResult, ReplayResult, by_operator


def result(op: str, verdict: Verdict, metrics: Metrics | None = None) -> CaseResult:
    return CaseResult(f"{op}-{verdict}", "key", op, "", verdict, False, "", metrics or Metrics(), "", 0.1)


def test_every_verdict_is_counted() -> None:
    replayed = ReplayResult("opencl:0", "tvm", tuple(result("op", verdict) for verdict in Verdict))
    assert replayed.verdicts == {str(verdict): 1 for verdict in Verdict}
    assert {entry.verdict for entry in replayed.failures} == BLOCKING
    assert not replayed.good
    good = ReplayResult("opencl:0", "tvm", (result("op", Verdict.PASS), result("op", Verdict.UNDEFINED)))
    assert good.good
    assert good.verdicts["fail"] == 0
    assert ReplayResult("opencl:0", "tvm", ()).good


def test_only_pass_and_undefined_do_not_block() -> None:
    assert frozenset(Verdict) - BLOCKING == {Verdict.PASS, Verdict.UNDEFINED}


def test_operators_with_failures_come_first() -> None:
    summaries = by_operator(
        [
            result("a", Verdict.PASS), result("b", Verdict.UNDEFINED), result("z", Verdict.PASS),
            result("z", Verdict.CRASHED), result("y", Verdict.UNSUPPORTED),
        ]
    )  # fmt: skip
    assert [entry.op for entry in summaries] == ["y", "z", "a", "b"]
    assert summaries[1].verdicts == {"pass": 1, "crashed": 1}
    assert summaries[1].cases == 2
    assert by_operator([]) == ()


@pytest.mark.parametrize("order", [1, -1])
def test_the_worst_is_the_worst_in_any_order(order: int) -> None:
    metrics = [
        Metrics(1, 2, 3, 0.1, 0.9, 40.0),
        Metrics(5, 1, 1, 0.2, 1.0, None),
        Metrics(2, math.inf, 2, 0.0, 0.5, 20.0),
    ]
    (summary,) = by_operator([result("op", Verdict.FAIL, entry) for entry in metrics[::order]])
    assert summary.worst == Metrics(5, math.inf, 3, 0.2, 0.5, 20.0)
    metrics.append(Metrics(math.nan, 0, 0, math.nan, math.nan))
    (summary,) = by_operator([result("op", Verdict.FAIL, entry) for entry in metrics[::order]])
    assert math.isnan(summary.worst.max_ulp)
    assert math.isnan(summary.worst.nmse)
    assert math.isnan(summary.worst.cosine)
    assert summary.worst.max_abs == 3


def test_results_are_plain_data() -> None:
    entry = result("op", Verdict.FAIL, Metrics(math.inf, math.nan))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(entry), type=CaseResult)
    assert repr(again) == repr(entry)
