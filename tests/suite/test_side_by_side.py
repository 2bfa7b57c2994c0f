"""Several devices on one suite: what they disagree on, and what is no disagreement."""

from __future__ import annotations

import math

import pytest

from tapestry.numerics.judgement import Metrics
from tapestry.numerics.verdict import Verdict
from tapestry.suite.side_by_side import OperatorRow, side_by_side
from tapestry.suite.verdicts import CaseResult, ReplayResult


def result(
    case: str, op: str, verdict: Verdict = Verdict.PASS, nmse: float = 0.0, *, imprecise: bool = False
) -> CaseResult:
    metrics = Metrics(max_rel=math.sqrt(nmse), nmse=nmse)
    return CaseResult(case, "k", op, "", verdict, imprecise, f"why {case}", metrics, "bound", 0.5)


def replays(*devices: list[CaseResult]) -> list[ReplayResult]:
    return [ReplayResult(f"device:{place}", "b", tuple(results)) for place, results in enumerate(devices)]


def rows_of(*devices: list[CaseResult]) -> dict[str, OperatorRow]:
    return {row.op: row for row in side_by_side(replays(*devices))}


def test_operators_that_differ_come_first_with_an_example() -> None:
    one = [result("a-0", "a"), result("b-0", "b", nmse=1e-14), result("c-0", "c"), result("c-1", "c")]
    two = [result("a-0", "a"), result("b-0", "b", nmse=1e-8), result("c-0", "c"), result("c-1", "c", Verdict.FAIL)]
    rows = side_by_side(replays(one, two))
    assert [(row.op, row.differs, row.count, row.case) for row in rows] == [
        ("c", "verdict", 1, "c-1"), ("b", "error", 1, "b-0"), ("a", "", 0, ""),
    ]  # fmt: skip
    assert rows[0].devices[1].verdicts == {"pass": 1, "fail": 1}
    assert [(entry.device, entry.verdict, entry.reason) for entry in rows[0].examples] == [
        ("device:0", "pass", ""), ("device:1", "fail", "why c-1"),
    ]  # fmt: skip
    assert rows[1].devices[1].nmse == 1e-8
    assert rows[2].examples == ()


def test_the_third_device_may_be_the_odd_one() -> None:
    assert rows_of(*[[result("a-0", "a")]] * 2, [result("a-0", "a", Verdict.CRASHED)])["a"].differs == "verdict"


def test_imprecise_and_precise_are_different_verdicts() -> None:
    rows = rows_of([result("a-0", "a")], [result("a-0", "a", imprecise=True)])
    assert rows["a"].differs == "verdict"
    assert rows["a"].examples[1].verdict == "pass, imprecise"


@pytest.mark.parametrize(
    ("errors", "differs"),
    [
        ((1e-7, 3.9e-7), ""),  # another order of summation
        ((1.2e-7, 4.9e-7), "error"),
        ((0.0, 4e-7), ""),  # four roundings of float32 against none
        ((0.0, 1e-6), "error"),
        ((1e-3, 2e-3), ""),
        ((1e-3, 5e-3, 1e-3), "error"),
        ((math.nan, 1e-3), ""),  # nothing to compare
    ],
)
def test_errors_differ_from_four_times_on(errors: tuple[float, ...], differs: str) -> None:
    assert rows_of(*([result("a-0", "a", nmse=error**2)] for error in errors))["a"].differs == differs


def test_two_failures_alike_are_no_difference() -> None:
    failed = [[result("a-0", "a", Verdict.FAIL, nmse=nmse)] for nmse in (0.1, 0.9)]
    assert rows_of(*failed)["a"].differs == ""


def test_only_cases_that_all_have_are_compared() -> None:
    rows = rows_of([result("a-0", "a"), result("b-0", "b")], [result("a-1", "a", Verdict.FAIL)])
    assert rows["a"].differs == ""
    assert rows["b"].devices[1].verdicts == {}


def test_numbers_that_json_cannot_hold_are_none() -> None:
    (row,) = side_by_side(replays([result("a-0", "a", nmse=math.inf)], [result("a-0", "a", Verdict.FAIL)]))
    assert row.devices[0].nmse is None
    assert row.examples[0].nmse is None


def test_one_replay_or_none_has_nothing_to_differ_from() -> None:
    assert side_by_side([]) == ()
    assert [row.differs for row in side_by_side(replays([result("a-0", "a", Verdict.FAIL)]))] == [""]
