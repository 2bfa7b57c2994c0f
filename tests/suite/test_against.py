"""Comparing two replays, and JUnit: no device needed."""

from __future__ import annotations

from xml.etree import ElementTree

from tapestry.numerics.judgement import Metrics
from tapestry.numerics.verdict import Verdict
from tapestry.suite.against import Past, compare
from tapestry.suite.junit import as_junit
from tapestry.suite.verdicts import CaseResult, ReplayResult


def past(case: str, verdict: Verdict = Verdict.PASS, max_rel: float | None = 0.0, imprecise: bool = False) -> Past:
    return Past(case, "aten.relu.default", verdict, max_rel, imprecise)


def test_verdicts_errors_and_cases_that_come_and_go() -> None:
    before = [
        past("mended", Verdict.FAIL), past("broken"), past("vaguer"), past("coarser", max_rel=1e-6),
        past("finer", max_rel=1e-3), past("another order", max_rel=2e-7), past("gone"), past("still", Verdict.ERROR),
    ]  # fmt: skip
    now = [
        past("mended"), past("broken", Verdict.CRASHED), past("vaguer", imprecise=True), past("coarser", max_rel=1e-4),
        past("finer", max_rel=1e-6), past("another order", max_rel=6e-7), past("new"), past("still", Verdict.FAIL),
    ]  # fmt: skip
    found = compare(before, now)
    assert [change.case for change in found.worse] == ["broken", "vaguer", "coarser"]
    assert [change.case for change in found.better] == ["mended", "finer"]
    assert found.added == ("new",)
    assert found.gone == ("gone",)
    assert found.worse[2].before == "pass, max rel 1e-06"


def test_below_a_rounding_nothing_is_worse() -> None:
    assert not compare([past("a", max_rel=1e-12)], [past("a", max_rel=6e-8)]).worse


def result(case: str, verdict: Verdict, reason: str = "because") -> CaseResult:
    return CaseResult(case, "k", "aten.relu.default", "", verdict, False, reason, Metrics(), "exact", 0.5)


def test_junit_counts_and_survives_what_xml_cannot_hold() -> None:
    verdicts = [Verdict.PASS, Verdict.FAIL, Verdict.CRASHED, Verdict.UNSUPPORTED, Verdict.UNDEFINED]
    results = tuple(result(f"case {verdict}", verdict, "a\x00b <&> \ud800") for verdict in verdicts)
    root = ElementTree.fromstring(as_junit([ReplayResult("cpu", "eager", results)]))
    (suite,) = root
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["5", "1", "1", "2"]
    assert [test[-1].tag for test in suite] == ["properties", "failure", "error", "skipped", "skipped"]
    assert suite[1][-1].get("message") == "fail: a�b <&> �"
