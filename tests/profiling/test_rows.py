"""What follows from a time, the work and the roofs; by hand and for any values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.profiling.result import RegionProfile, Roofs, Site, Timing
from tapestry.profiling.rows import against_roof, by_headroom, summed_by_operator
from tapestry.program.work import Work

#: 100 bytes and 1,000 operations a second.
ROOFS = Roofs(100.0, 1000.0, "copy", "chain", 1)
PLACE = (Site(("n",), "layer", "model.py:3 (layer)"),)


def row(op: str = "aten.relu.default", calls: int = 1, place: str = "target", seconds: float = 1.0) -> RegionProfile:
    timing = Timing(seconds, seconds, seconds, 1, 1)
    return RegionProfile(op, (op,), place, "tvm", calls, 1, 0, 0, PLACE, timing)


def timed(seconds: float, work: Work, calls: int = 1, op: str = "aten.relu.default") -> RegionProfile:
    return against_roof(row(op, calls), Timing(seconds, seconds, seconds, 1, 1), work, ROOFS)


def test_below_the_memory_roof() -> None:
    found = timed(4.0, Work(flops=100, nbytes=200), calls=3)
    assert (found.bound, found.roof_seconds, found.roof_share) == ("memory", 2.0, 0.5)
    assert (found.bytes_per_second, found.flops_per_second) == (50.0, 25.0)
    assert found.headroom_seconds == 3 * 2.0


def test_below_the_arithmetic_roof() -> None:
    found = timed(4.0, Work(flops=3000, nbytes=200))
    assert (found.bound, found.roof_seconds, found.roof_share, found.headroom_seconds) == ("arithmetic", 3.0, 0.75, 1.0)


def test_faster_than_memory_has_no_headroom() -> None:
    found = timed(1.0, Work(flops=0, nbytes=200))
    assert (found.roof_share, found.headroom_seconds) == (2.0, 0.0)


@given(st.floats(1e-9, 1e3), st.integers(0, 10**12), st.integers(1, 10**12), st.integers(1, 100))
def test_headroom_is_the_time_above_the_roof(seconds: float, flops: int, nbytes: int, calls: int) -> None:
    found = timed(seconds, Work(flops, nbytes), calls)
    assert found.headroom_seconds is not None
    assert found.roof_share is not None
    assert 0 <= found.headroom_seconds <= seconds * calls
    assert (found.headroom_seconds > 0) == (found.roof_share < 1)
    least = found.seconds - found.headroom_seconds
    # Within the rounding of one multiplication and one subtraction.
    assert least == pytest.approx(min(seconds, ROOFS.seconds(flops, nbytes)) * calls, rel=1e-12, abs=1e-12 * seconds)


def test_sums_by_operator_rank_by_headroom() -> None:
    rows = [
        timed(3.0, Work(0, 100), 2, "a"),  # 4 of 6 seconds
        timed(9.0, Work(0, 100), 1, "b"),  # 8 of 9
        timed(2.0, Work(0, 100), 1, "a"),  # 1 of 2
        row("b", 5, "source", 0.5),
        row("c", 1, "source", 7.0),
    ]
    found = summed_by_operator(rows)
    assert [entry.op for entry in found] == ["b", "a", "c"]
    b, a, c = found
    assert (b.calls, b.seconds, b.headroom_seconds, b.source_calls, b.source_seconds) == (1, 9.0, 8.0, 5, 2.5)
    assert (a.regions, a.calls, a.seconds, a.headroom_seconds, a.roof_share) == (2, 3, 8.0, 5.0, 3 / 8)
    assert (c.calls, c.seconds, c.roof_share, c.source_calls) == (0, 0.0, None, 1)
    assert [entry.key for entry in by_headroom(rows)] == ["b", "a", "a", "c", "b"]


def test_a_kind_names_few_operators() -> None:
    many = RegionProfile("k", tuple("abcdef"), "target", "tvm", 1, 1, 0, 0, PLACE)
    assert many.kind == "a + b + c + d + 2"
