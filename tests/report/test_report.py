"""The page as a browser would parse it: the facts it shows, its escaping, its safety, its size."""

from __future__ import annotations

import base64
import builtins
import dataclasses
import hashlib
import json
import math
import os
import re
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tapestry.errors import EnvironmentProblem, UsageError
from tapestry.migration.result import Finding, MigrationResult, NodeRecord, Step
from tapestry.report import ReportHeader, write_report

pytestmark = pytest.mark.slow

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
BLOCKS = {"p", "div", "dt", "dd", "li", "tr", "td", "th", "h2", "h3", "h4"}
VOID = {"meta", "input", "img", "br", "link", "hr", "wbr"}


class Page(HTMLParser):
    """Text by element id and by class, every tag with its attributes, and the text of styles and scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"style": [], "script": []}
        self.data = ""
        self.rows: list[list[str]] = []
        self._texts: dict[str, list[str]] = {}
        self._open: list[tuple[str, list[str]]] = []
        self.feed(self.source)
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in self.raw and dict(attrs).get("type") != "application/json":
            self.raw[tag].append("")
        if tag == "tr":
            self.rows.append([])
        if tag in BLOCKS:
            self._note(" ")
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            marks = [f"#{value}" for name, value in attrs if name == "id"]
            marks += [f".{name}" for key, value in attrs if key == "class" for name in (value or "").split()]
            self._open.append((tag, marks))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> without a start"
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if not self._open:
            return
        tag, marks = self._open[-1]
        if "#graph-data" in marks:
            self.data += data
            return
        if tag in self.raw:
            self.raw[tag][-1] += data
            return
        if any(name in ("td", "th") for name, _ in self._open):
            self.rows[-1][-1] += data
        self._note(data)

    def _note(self, data: str) -> None:
        for _, marks in self._open:
            for mark in marks:
                self._texts.setdefault(mark, []).append(data)

    def text(self, mark: str) -> str:
        return " ".join("".join(self._texts.get(mark, [])).split())

    def row(self, first: str) -> list[str]:
        return next([" ".join(cell.split()) for cell in row] for row in self.rows if row and row[0].strip() == first)

    @property
    def graph(self) -> dict[str, Any]:
        return json.loads(self.data, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def page(tmp_path: Path, result: MigrationResult, header: ReportHeader) -> Page:
    write_report(tmp_path / "report.html", result, header)
    return Page(tmp_path / "report.html")


def test_a_good_migration_says_so_in_one_line(tmp_path: Path, good: MigrationResult, header: ReportHeader) -> None:
    seen = page(tmp_path, good, header)
    assert (
        seen.text(".line") == "All 36 compute nodes run on opencl:0; the whole model is right: 5.4e-6 of allowed 2.2e-5"
    )
    assert ("div", {"class": "verdict good", "id": "verdict"}) in seen.tags
    assert seen.text("#coverage").count("100%") == 4
    assert "36 of 36" in seen.text("#coverage")
    assert "values moved per run 5" in seen.text("#coverage")
    assert "launches per run 158" in seen.text("#coverage")
    assert "No findings" in seen.text("#findings")
    assert "took 2 min 14 s" in seen.text(".meta")
    assert not [attrs for _, attrs in seen.tags if attrs.get("id") in ("blocked", "latent")]


def test_the_check_is_explained(tmp_path: Path, good: MigrationResult, header: ReportHeader) -> None:
    shown = page(tmp_path, good, header).text("#check")
    assert "Error on the target 5.4e-6" in shown
    assert "Source error 5.4e-6" in shown
    assert "Bound 2.2e-5 What is allowed: 4 times the source's own error, and 1e-5 at least." in shown
    assert "Target against source 2.1e-6" in shown


def test_the_bound_is_explained_as_numerics_has_it() -> None:
    whole = pytest.importorskip("tapestry.numerics.whole", reason="the bound's rule lives beside torch")
    assert (whole.PROGRAM_FACTOR, whole.PROGRAM_FLOOR) == (4.0, 1e-5)


def test_tokens_are_shown_for_a_language_model(tmp_path: Path, good: MigrationResult, header: ReportHeader) -> None:
    check = msgspec.structs.replace(good.check, tokens={"prompts": 4, "compared": 1200, "equal": 1199})
    shown = page(tmp_path, msgspec.structs.replace(good, check=check), header).text("#check")
    assert "Greedy tokens 1,199 / 1,200" in shown
    assert "over 4 prompts" in shown


def test_findings_stand_under_their_cause(tmp_path: Path, troubled: MigrationResult, header: ReportHeader) -> None:
    seen = page(tmp_path, troubled, header)
    assert seen.text(".line").startswith("29 of 36 compute nodes run on opencl:0; the whole model is right")
    assert "3 findings concern 14 nodes; 8 nodes stay on the source" in seen.text(".detail")
    assert [attrs["data-cause"] for _, attrs in seen.tags if "data-cause" in attrs] == ["replay", "program", "merge"]
    for number, finding in enumerate(troubled.findings, 1):
        shown = seen.text(f"#finding-{number}")
        assert finding.reason in shown
        assert all(node in shown for node in finding.nodes)
        assert finding.ops[0] in shown
    assert "nets/encoder.py:22" in seen.text("#finding-1")
    assert "repro/scaled_dot_product_attention-1a2b" in seen.text("#finding-1")


def test_what_stays_on_the_source_is_named_with_its_reason(
    tmp_path: Path, troubled: MigrationResult, header: ReportHeader
) -> None:
    seen = page(tmp_path, troubled, header)
    assert all(entry.node in seen.text("#blocked") for entry in troubled.blocked)
    assert seen.row("aten.bernoulli.default")[1:3] == ["1", "random: drawn on the source, in order"]
    assert seen.row("aten.scaled_dot_product_attention.default")[1:3] == ["6", "finding 1"]


def test_shares_are_never_rounded_up_to_all(tmp_path: Path, troubled: MigrationResult, header: ReportHeader) -> None:
    shown = page(tmp_path, troubled, header).text("#coverage")
    assert "99.9%" in shown
    assert "100%" not in shown


def test_operators_are_listed_with_their_worst_errors(
    tmp_path: Path, troubled: MigrationResult, header: ReportHeader
) -> None:
    seen = page(tmp_path, troubled, header)
    attention = [row for row in seen.rows if row and row[0] == "aten.scaled_dot_product_attention.default"][-1]
    assert attention[1:] == ["4", "pass 1fail 2timeout 1", "∞", "∞", "NaN"]
    assert seen.row("aten.linear.default") == ["aten.linear.default", "3", "pass 3", "1.5", "0.011", "1.1e-11"]


def test_steps_are_drawn_and_listed(tmp_path: Path, troubled: MigrationResult, header: ReportHeader) -> None:
    seen = page(tmp_path, troubled, header)
    assert len([tag for tag, attrs in seen.tags if tag == "svg" and "timeline" in (attrs.get("class") or "")]) == 2
    marks = [attrs["class"] for tag, attrs in seen.tags if tag == "g"]
    # Two drawings, each with every step; the four bad ones and the one whose worker died are crosses.
    assert len(marks) == 2 * len(troubled.steps)
    assert marks.count("step bad") == 2 * 3
    assert marks.count("step infinite") == 2 * 1
    assert seen.row("9")[1:6] == ["offload", "34", "34", "∞", "–"]
    assert seen.row("8")[6] == "journal"
    assert "does not compile as one region" in seen.text(".steps-table")


def test_the_graph_holds_every_node_once(tmp_path: Path, troubled: MigrationResult, header: ReportHeader) -> None:
    graph = page(tmp_path, troubled, header).graph
    leaves: list[int] = []

    def walk(module: dict[str, Any]) -> None:
        for kid in module["kids"]:
            leaves.append(kid) if isinstance(kid, int) else walk(kid)

    walk(graph["tree"])
    assert sorted(leaves) == list(range(len(troubled.nodes)))
    for row, record in zip(graph["nodes"], troubled.nodes, strict=True):
        assert row[0] == record.node
        assert graph["ops"][row[1]] == record.op
        assert graph["sources"][row[2]][1] in record.source
        assert row[3:7] == [record.place, record.region, int(record.compute), record.verdict]
        history = graph["histories"][row[9]]
        assert [entry[1] for entry in history] == [attempt.verdict for attempt in record.tried]
        assert row[10] == record.why


def test_modules_carry_badges(tmp_path: Path, troubled: MigrationResult, header: ReportHeader) -> None:
    graph = page(tmp_path, troubled, header).graph
    (encoder,) = [kid for kid in graph["tree"]["kids"] if isinstance(kid, dict) and kid["name"] == "encoder.layer"]
    assert (encoder["on"], encoder["total"], encoder["bad"], encoder["worst"]) == (35, 42, 6, "∞")
    first = encoder["kids"][0]
    assert (first["name"], first["path"], first["on"], first["total"]) == ("0", "encoder.layer.0", 5, 7)


def test_long_runs_of_folded_nodes_share_a_row(tmp_path: Path, good: MigrationResult, header: ReportHeader) -> None:
    folded = tuple(
        NodeRecord(f"c{n}", "aten.full.default", "", "", "folded", "", False, "", None, ()) for n in range(5)
    )
    tree = page(tmp_path, msgspec.structs.replace(good, nodes=(*folded, *good.nodes)), header).graph["tree"]
    assert tree["kids"][0]["name"] == "6 folded nodes"
    assert (tree["kids"][0]["total"], tree["kids"][0]["kids"]) == (0, list(range(6)))


def test_a_broken_run_shows_no_number_it_does_not_have(
    tmp_path: Path, broken: MigrationResult, header: ReportHeader
) -> None:
    seen = page(tmp_path, broken, dataclasses.replace(header, seconds=None, environment={}, facts=(), command=""))
    assert seen.text(".line") == "The whole model could not be checked on webgpu:0: its last run broke off"
    assert "Not measured" in seen.text("#coverage")
    assert "%" not in seen.text("#coverage")
    assert "Source error –" in seen.text("#check")
    assert "Bound –" in seen.text("#check")
    assert "No steps were tried" in seen.text("#steps")
    assert "No cause was found" in seen.text("#findings")


def test_a_wrong_model_is_called_wrong(tmp_path: Path, good: MigrationResult, header: ReportHeader) -> None:
    check = msgspec.structs.replace(good.check, good=False, max_rel_error=0.5)
    seen = page(tmp_path, msgspec.structs.replace(good, check=check), header)
    assert seen.text(".line") == "The whole model is wrong on opencl:0: error 0.50, allowed 2.2e-5"
    assert ("div", {"class": "verdict bad", "id": "verdict"}) in seen.tags


@pytest.mark.parametrize("value", [0.0, 5e-324, 1e300, math.inf, math.nan])
def test_any_error_can_be_drawn(tmp_path: Path, good: MigrationResult, header: ReportHeader, value: float) -> None:
    steps = (
        Step("offload", 0, 0, False, value, value, value, False),
        Step("merge", 1, 1, False, None, None, 0.0, False),
    )
    check = msgspec.structs.replace(
        good.check, max_rel_error=value, source_error=value, max_abs_error=value, cosine=value
    )
    seen = page(tmp_path, msgspec.structs.replace(good, check=check, steps=steps), header)
    drawing = [value or "" for tag, attrs in seen.tags if tag in ("path", "rect", "circle") for value in attrs.values()]
    assert not [value for value in drawing if re.search("nan|inf", value)]


def test_names_and_reasons_are_text(tmp_path: Path, good: MigrationResult, header: ReportHeader) -> None:
    plain = page(tmp_path, good, header)
    finding = Finding((EVIL,), (EVIL,), (EVIL,), "fail", "replay", EVIL, EVIL)
    strange = msgspec.structs.replace(finding, cause=EVIL, verdict=EVIL)
    node = NodeRecord(EVIL, EVIL, EVIL, EVIL, "target", EVIL, True, EVIL, 0.0, (EVIL,))
    result = msgspec.structs.replace(
        good, target=EVIL, backend=EVIL, findings=(finding, strange), nodes=(*good.nodes, node),
        steps=(msgspec.structs.replace(good.steps[0], kind=EVIL, reason=EVIL),),
        latent=({"op": EVIL, "variant": EVIL, "verdict": EVIL, "reason": EVIL},),
    )  # fmt: skip
    evil = ReportHeader(EVIL, header.date, EVIL, EVIL, 1.0, {EVIL: EVIL}, ((EVIL, EVIL),))
    seen = page(tmp_path, result, evil)
    assert [tag for tag, _ in seen.tags].count("script") == [tag for tag, _ in plain.tags].count("script") == 2
    assert not [tag for tag, _ in seen.tags if tag == "img"]
    assert not [name for _, attrs in seen.tags for name in attrs if name.startswith("on")]
    assert EVIL in seen.text("h1") or EVIL in seen.text(".command")
    assert seen.graph["nodes"][-1][0] == EVIL


def test_nothing_is_loaded_and_only_its_own_script_runs(
    tmp_path: Path, troubled: MigrationResult, header: ReportHeader
) -> None:
    seen = page(tmp_path, troubled, header)
    policy = next(
        attrs["content"] or "" for _, attrs in seen.tags if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for kind in ("style", "script"):
        (text,) = seen.raw[kind]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
        assert not re.search(r"@import|url\(|fetch\(|XMLHttp|innerHTML|eval\(", text)
    assert not [tag for tag, _ in seen.tags if tag in ("link", "img", "iframe", "object", "base")]
    # The policy forbids style attributes; a link leads to the page itself.
    assert not [attrs for _, attrs in seen.tags if "style" in attrs or "src" in attrs]
    assert all((attrs["href"] or "").startswith("#") for _, attrs in seen.tags if "href" in attrs)
    outside = set(re.findall(r"https?://[^\s\"'<)]+", seen.source))
    assert outside <= {"http://www.w3.org/2000/svg"}  # a name, never loaded


def test_links_lead_somewhere(tmp_path: Path, troubled: MigrationResult, header: ReportHeader) -> None:
    seen = page(tmp_path, troubled, header)
    ids = [attrs["id"] for _, attrs in seen.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {(attrs["href"] or "")[1:] for _, attrs in seen.tags if "href" in attrs} <= set(ids)


def test_a_large_graph_stays_small(tmp_path: Path, large: MigrationResult, header: ReportHeader) -> None:
    seen = page(tmp_path, large, header)
    assert len(seen.graph["nodes"]) == 2501
    # 300 bytes a node is what its name, module and what it reads take; the page itself is under 64 KiB.
    assert len(seen.source.encode()) < 64 * 1024 + 2501 * 300
    # Nodes are data until a reader opens their module: the elements don't grow with the graph.
    assert len(seen.tags) < 800


def test_the_environment_and_facts_are_shown(tmp_path: Path, good: MigrationResult, header: ReportHeader) -> None:
    shown = page(tmp_path, good, header).text("#run")
    assert header.command in shown
    assert "2026-12-01 09:30 UTC" in shown
    assert "torch 2.13.0" in shown
    assert "Sentence similarity 0.83, equal to the source's" in shown


def test_an_older_report_is_replaced_and_nothing_else_is_left(
    tmp_path: Path, good: MigrationResult, header: ReportHeader
) -> None:
    path = tmp_path / "deep" / "report.html"
    write_report(path, good, header)
    path.write_text("old")
    write_report(path, good, header)
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert os.listdir(path.parent) == ["report.html"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o400


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, good: MigrationResult, header: ReportHeader) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "report.html", tmp_path):
        with pytest.raises(UsageError, match=re.escape(str(path))):
            write_report(path, good, header)
    assert os.listdir(tmp_path) == ["file"]


def test_without_jinja2_the_install_line_is_given(
    tmp_path: Path, good: MigrationResult, header: ReportHeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "jinja2":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(EnvironmentProblem, match=re.escape("pip install 'tapestry-ml[report]'")):
        write_report(tmp_path / "report.html", good, header)
