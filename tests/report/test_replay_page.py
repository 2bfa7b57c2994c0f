"""The report of a replay, and latent failures in that of a migration."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from tapestry.numerics.judgement import Metrics
from tapestry.numerics.verdict import Verdict
from tapestry.report import ReportHeader, write_replay_report
from tapestry.suite.verdicts import CaseResult, ReplayResult

HEADER = ReportHeader("suite <of> bert", dt.datetime(2026, 12, 1, tzinfo=dt.UTC))


def case(name: str, verdict: Verdict, latent: bool = False) -> CaseResult:
    metrics = Metrics(max_rel=1e-6)
    return CaseResult(
        name, "k", "aten.relu.default", "nan", verdict, False, "<b>", metrics, "exact", 0.1, "tvm", latent
    )


def page(tmp_path: Path, *results: CaseResult) -> str:
    path = tmp_path / "replay.html"
    write_replay_report(path, [ReplayResult("opencl:0", "tvm", results), ReplayResult("cpu", "eager", results)], HEADER)
    return path.read_text()


def test_each_device_has_its_operators_and_failures(tmp_path: Path) -> None:
    text = page(tmp_path, case("good", Verdict.PASS), case("bad-1", Verdict.FAIL), case("far-2", Verdict.CRASHED, True))
    assert "suite &lt;of&gt; bert" in text
    assert "2 of 6 cases are right" in text
    assert text.count("bad-1") == text.count("far-2") == 2
    assert '<div class="verdict bad"' in text
    assert "<b>" not in text.split("bad-1")[1].split("</tr>")[0].replace("&lt;b&gt;", "")


def test_latent_failures_are_no_disaster(tmp_path: Path) -> None:
    assert '<div class="verdict partial"' in page(tmp_path, case("far", Verdict.FAIL, True), case("good", Verdict.PASS))
    assert '<div class="verdict good"' in page(tmp_path, case("good", Verdict.PASS))
