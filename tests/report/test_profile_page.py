"""The page of a profile: the drawing's geometry, the tables, and what is missing on a partial target."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tapestry.migration.result import MigrationResult, MissingOperator, MissingReason, Mixed
from tapestry.profiling.profile import summarised
from tapestry.profiling.result import ProfileResult, RegionProfile, Roofs, Site, Timing
from tapestry.profiling.rows import against_roof
from tapestry.program.work import Work
from tapestry.report import ReportHeader, write_profile_report, write_report
from tapestry.report.roofline import roofline

ROOFS = Roofs(5e9, 50e9, "the driver's copy of a buffer", "multiply-adds, 8 wide", 128 << 20)
HEADER = ReportHeader("demo:<minilm>", dt.datetime(2026, 12, 1, tzinfo=dt.UTC))


def region(op: str, seconds: float, flops: int, nbytes: int, calls: int = 1) -> RegionProfile:
    sites = tuple(
        Site((f"{op}{k}",), f"layer.{k}", f"/usr/site-packages/nets/enc.py:{7 + k} (layer.{k})") for k in range(calls)
    )
    row = RegionProfile(op, (f"aten.{op}.default",), "target", "tvm", calls, 2, 0, 0, sites)
    return against_roof(row, Timing(seconds, 0.9 * seconds, 2 * seconds, 9, 4), Work(flops, nbytes), ROOFS)


def result() -> ProfileResult:
    left = RegionProfile(
        "h", ("aten.histc.default",), "source", "", 1, 0, 64, 8, (Site(("h",), "", "m.py:1 (model)"),),
        Timing(2e-4, 1e-4, 3e-4, 5, 1), reason="tvm: no rule for <histc>",
    )  # fmt: skip
    rows = [
        region("linear", 1.5e-3, 9_437_184, 688_128, 24),
        region("gelu", 90e-6, 49_152, 393_216, 6),
        region("embedding", 30e-6, 0, 98_304),
        left,
    ]
    return summarised("opencl:0", "device", ROOFS, rows, 3)


def page(tmp_path: Path, found: ProfileResult) -> str:
    path = tmp_path / "profile.html"
    write_profile_report(path, found, HEADER)
    return path.read_text()


def test_the_page_says_what_the_profile_found(tmp_path: Path) -> None:
    text = page(tmp_path, result())
    assert "demo:&lt;minilm&gt;" in text
    assert "no rule for &lt;histc&gt;" in text
    assert "tvm, 2 launches" in text
    # 24 calls of 1.5 ms and 6 of 90 µs, and one of 30 µs.
    assert "36.6 ms" in text
    assert "layer.0 and 23 more" in text
    assert "3 nodes launch nothing" in text
    assert "1 region without floating-point operations is in the table only" in text
    operators = text.split('id="operators"')[1].split("</section>")[0]
    assert re.findall(r'<td data-sort="(aten\.\w+)', operators) == [
        "aten.linear", "aten.gelu", "aten.embedding", "aten.histc",
    ]  # fmt: skip


def test_a_page_on_which_nothing_ran(tmp_path: Path) -> None:
    text = page(tmp_path, summarised("opencl:0", "device", ROOFS, [], 0))
    assert "Nothing of the model runs on opencl:0" in text
    assert "No region ran" in text
    assert 'id="roofline"' not in text


@pytest.mark.parametrize("width", [980.0, 344.0])
def test_dots_lie_under_the_roof(width: float) -> None:
    rows = [region("linear", 1.5e-3, 9_437_184, 688_128), region("gelu", 90e-6, 49_152, 393_216)]
    drawing = roofline(rows, ROOFS, width)
    assert drawing.ridge_x < drawing.right
    begin, ridge = re.findall(r"[ML]([\d.]+) ([\d.]+)", drawing.roof)
    (x0, y0), (x1, y1) = ((float(x), float(y)) for x, y in (begin, ridge))
    assert (x1, y1) == pytest.approx((drawing.ridge_x, drawing.ridge_y), abs=0.05)
    for point in drawing.points:
        assert drawing.left <= point.x <= drawing.right
        roof = y1 if point.x >= x1 else y0 + (point.x - x0) / (x1 - x0) * (y1 - y0)
        assert point.y > roof  # downwards in SVG
    # The larger share of the time has the larger dot, and lies behind.
    assert drawing.points[0].radius > drawing.points[1].radius
    assert "linear" in drawing.points[0].text
    for label in drawing.labels:
        room = 6.6 * len(label.text)
        assert drawing.left - 20 <= (label.x if label.anchor == "start" else label.x - room)
        assert (label.x + room if label.anchor == "start" else label.x) <= drawing.right


@given(
    st.lists(st.tuples(st.floats(1e-9, 1e3), st.integers(1, 10**13), st.integers(1, 10**12)), min_size=1, max_size=20),
    st.floats(1e6, 1e13),
    st.floats(1e6, 1e15),
)
def test_any_profile_can_be_drawn(rows: list[tuple[float, int, int]], copy: float, flops: float) -> None:
    roofs = Roofs(copy, flops, "copy", "chain", 1)
    drawn = [
        against_roof(region("relu", 1, 1, 1), Timing(seconds, seconds, seconds, 1, 1), Work(work, nbytes), roofs)
        for seconds, work, nbytes in rows
    ]
    drawing = roofline(drawn, roofs, 980.0)
    assert len(drawing.points) == len(rows)
    for point in drawing.points:
        assert drawing.left <= point.x <= drawing.right
        assert drawing.top <= point.y <= drawing.bottom


def _missing(op: str, gain: float | None) -> MissingOperator:
    movable = gain is not None
    return MissingOperator(
        op, ("a", "b"), ("m.py:3 (x)",), (MissingReason("unsupported: <none>", 2),), movable, 2, 0.25, 800, 0.004, 4e-3,
        4 if movable else 0, 2048, 1e-3 if movable else None, 1e-4 if movable else None, 2e-3 if movable else None,
        gain, gain and gain / 2,
    )  # fmt: skip


def test_what_is_missing_is_ranked_on_the_page(tmp_path: Path, good: MigrationResult) -> None:
    mixed = Mixed(6, 4096, 1.25e-3, 4, 8e-3, 0.12, 0.08, ROOFS, {}, {}, "the moon was not measured")
    missing = (_missing("aten.histc.default", 4.9e-3), _missing("aten.bernoulli.default", None))
    path = tmp_path / "report.html"
    write_report(path, structs.replace(good, mixed=mixed, missing=missing), HEADER)
    section = path.read_text().split('<section id="missing">')[1].split("</section>")[0]
    assert section.index("histc") < section.index("bernoulli")
    assert "unsupported: &lt;none&gt;" in section
    assert "4.90 ms" in section
    assert "2.45 ms" in section
    assert "cannot move" in section
    assert "the moon was not measured" in section
    assert "6 transfers of 4.0 KiB take" in section

    write_report(path, good, HEADER)
    assert 'id="missing"' not in path.read_text()
