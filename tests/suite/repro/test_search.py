"""Delta debugging and the limits of a reduction."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from support.subjects import Faulty, subject_of
from tapestry.suite.repro.reduce import reduce_case
from tapestry.suite.repro.search import Limits, minimal

aten = torch.ops.aten


@given(st.integers(1, 200), st.data())
def test_one_needed_item_is_found_alone_in_a_logarithm_of_trials(count: int, data: st.DataObject) -> None:
    needed = data.draw(st.integers(0, count - 1))
    tried: list[list[int]] = []

    def fails(kept: list[int]) -> bool:
        tried.append(kept)
        return needed in kept

    assert minimal(range(count), fails) == [needed]
    assert len(tried) <= 2 * count.bit_length()


@given(st.integers(1, 40), st.data())
def test_what_is_needed_is_kept_and_what_is_left_of_few_is_needed(count: int, data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    found = minimal(range(count), lambda kept: needed <= set(kept), finest=count)
    assert found == sorted(needed)


@given(st.integers(2, 300), st.integers(1, 300))
def test_a_number_that_must_be_reached_is_nearly_reached(count: int, least: int) -> None:
    found = minimal(range(count), lambda kept: len(kept) >= least)
    # No eighth of what is left can go: that is what finest=8 promises.
    assert len(found) == count if least > count else least <= len(found) < least + len(found) / 8 + 1


def _double(subject: object, right: list[torch.Tensor]) -> list[torch.Tensor]:
    return [right[0] * 2]


def test_runs_are_bounded() -> None:
    device = Faulty(_double)
    subject = subject_of(aten.mul.Tensor, torch.randn(64, 64), torch.randn(64, 64))
    found = reduce_case(device, subject, Limits(runs=3))
    # The first run and the last one, which confirm, are not counted among those that reduce.
    assert device.runs == found.runs == 5
    assert found.subject.elements < subject.elements


def test_seconds_are_bounded() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    device = Faulty(_double)
    subject = subject_of(aten.mul.Tensor, torch.randn(8, 8), torch.randn(8, 8))
    found = reduce_case(device, subject, Limits(seconds=4.0), clock)
    assert device.runs <= 6
    assert found.attempt.failed


def test_no_seconds_is_no_reduction() -> None:
    subject = subject_of(aten.relu.default, torch.ones(4))
    found = reduce_case(Faulty(_double), subject, Limits(seconds=0.0))
    assert found.subject is subject
    assert found.attempt.failed
