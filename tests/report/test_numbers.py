"""Numbers as a reader sees them, and where drawings put them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.report import numbers
from tapestry.report.scale import CountScale, LogScale
from tapestry.report.sources import source_line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0.0, "0"), (math.inf, "∞"), (-math.inf, "−∞"), (math.nan, "NaN"), (5.414e-6, "5.4e-6"),
        (1e-5, "1.0e-5"), (9.96e-6, "1.0e-5"), (0.00123, "0.0012"), (0.0010, "0.0010"), (0.28, "0.28"), (0.999, "1.0"),
        (1.0, "1.0"), (12.34, "12"), (6789.0, "6,800"), (16548133.9, "1.7e7"), (-0.28, "-0.28"), (5e-324, "4.9e-324"),
    ],
)  # fmt: skip
def test_errors_have_two_digits(value: float | None, text: str) -> None:
    assert numbers.error(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (math.inf, "–"), (0.0, "0 s"), (3e-10, "0 s"), (8.5e-7, "850 ns"), (1.234e-5, "12.3 µs"),
        (9.9996e-4, "1.00 ms"), (0.0999, "99.9 ms"), (3.456, "3.46 s"), (1234.5, "1,234 s"), (-0.0021, "-2.10 ms"),
    ],
)  # fmt: skip
def test_durations_have_three_digits(value: float | None, text: str) -> None:
    assert numbers.duration(value) == text


@given(st.floats(min_value=1e-9, max_value=1e6))
def test_a_duration_reads_back_within_its_digits(value: float) -> None:
    number, unit = numbers.duration(value).replace(",", "").split()
    # Three significant digits: half a unit of the third one, 0.5% of the value at most.
    assert float(number) * numbers.UNITS[unit] == pytest.approx(value, rel=5.1e-3)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.0, "0"), (1.234e7, "0.0123"), (4.5678e9, "4.57"), (1.234e12, "1,234")]
)
def test_rates_are_billions(value: float | None, text: str) -> None:
    assert numbers.rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0004, "<0.1%"), (0.0123, "1.2%"), (0.375, "37%"), (0.9999, "99%"), (1.4, "140%")],
)
def test_shares_of_a_roof_may_be_over_it(value: float | None, text: str) -> None:
    assert numbers.of_roof(value) == text


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_an_error_reads_back_within_its_digits(value: float) -> None:
    # Two significant digits: half a unit of the second one, 5% of the value at most.
    assert float(numbers.error(value).replace(",", "")) == pytest.approx(value, rel=0.0501)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (1.0, "100%"), (0.99999, "99.9%"), (0.5, "50%"), (0.8056, "80.5%"), (1e-5, "<0.1%"), (0.0, "0%"),
        (0.29, "29%"), (math.nan, "–"),
    ],
)  # fmt: skip
def test_shares_are_never_rounded_up(value: float | None, text: str) -> None:
    assert numbers.share(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0.0, "0 s"), (1e-5, "<1 ms"), (0.23, "230 ms"), (0.9999, "1.0 s"), (1.82, "1.8 s"),
        (59.7, "1 min 00 s"),        (134.2, "2 min 14 s"), (3725.0, "1 h 02 min"), (math.inf, "–"),
    ],
)  # fmt: skip
def test_durations(value: float | None, text: str) -> None:
    assert numbers.seconds(value) == text


def test_sizes_and_counts() -> None:
    assert [numbers.nbytes(value) for value in (0, 999, 1200, 77_332_072, 5 * 2**40)] == [
        "0 B", "999 B", "1.2 KiB", "74 MiB", "5.0 TiB",
    ]  # fmt: skip
    assert numbers.plural(1, "node") == "1 node"
    assert numbers.plural(2500, "node") == "2,500 nodes"


def test_source_lines_are_shortened_without_loss() -> None:
    line = source_line("/v/lib/python3.11/site-packages/nets/bert/model.py:85 (encoder.layer.0)")
    assert (line.name, line.path, line.module) == ("model.py:85", "nets/bert/model.py:85", "encoder.layer.0")
    assert line.full == "/v/lib/python3.11/site-packages/nets/bert/model.py:85"
    assert source_line("/data/someone/long/way/to/my/model.py:3 (model)").path == "to/my/model.py:3"
    assert source_line("unknown line (model)").name == "unknown line (model)"


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=True)), max_size=6), st.floats(allow_nan=True))
def test_a_logarithmic_axis_holds_every_value(values: list[float | None], value: float) -> None:
    scale = LogScale.over(values, 100.0, 20.0)
    assert 20.0 <= scale.at(value) <= 100.0
    assert 2 <= len(scale.ticks) <= 5
    assert all(20.0 <= tick.at <= 100.0 for tick in scale.ticks)


@given(st.lists(st.integers(0, 10**7), max_size=6))
def test_a_linear_axis_holds_every_count(values: list[int]) -> None:
    scale = CountScale.over(values, 100.0, 20.0)
    assert all(20.0 <= scale.at(value) <= 100.0 for value in values)
    assert 2 <= len(scale.ticks) <= 6
