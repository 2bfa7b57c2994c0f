"""Which calls become cases: values that differ, rare ones before others, outliers always, never far over the limit."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tapestry.suite.features import RARE, features_of
from tapestry.suite.sampler import Sample, Samples


def offer(samples: Samples, place: int, *inputs: Tensor) -> bool:
    """What carving does with one call."""
    features = tuple(features_of(tensor) for tensor in inputs)
    wanted = samples.wants(features)
    if wanted:
        samples.add(Sample(str(place), 0, place, inputs, (), features))
    return wanted


def of(*values: float) -> Tensor:
    return torch.tensor(values)


def calls(samples: Samples) -> list[int]:
    return [sample.call for sample in samples.chosen()]


ORDINARY = [of(10.0**power, 3 * 10.0**power) for power in range(-3, 12)]


def test_the_first_call_is_kept_and_its_like_is_not() -> None:
    samples = Samples(5)
    assert [offer(samples, place, of(1, 1.5)) for place in range(4)] == [True, False, False, False]
    assert (samples.seen, samples.alike, calls(samples)) == (4, 3, [0])


def test_an_operator_without_inputs_is_kept_once() -> None:
    samples = Samples(5)
    assert [offer(samples, place) for place in range(3)] == [True, False, False]


def test_the_limit_holds_for_ordinary_values() -> None:
    samples = Samples(5)
    for place, tensor in enumerate(ORDINARY):
        offer(samples, place, tensor)
    assert len(samples.kept) == 5
    assert len(samples.chosen()) <= 6
    assert len(ORDINARY) - 1 in calls(samples)  # the largest


def test_rare_values_come_in_after_the_limit() -> None:
    rare = [of(1, math.nan), of(1, math.inf), of(1, -math.inf), of(1, 0.0, 1e-42)]
    samples = Samples(5)
    for place, tensor in enumerate([*ORDINARY, *rare]):
        offer(samples, place, tensor)
    tokens = {token for sample in samples.chosen() for _, token in sample.tokens}
    assert tokens >= {"nan", "+inf", "-inf", "zeros", "subnormal"}
    assert len(samples.kept) == 5


def test_rare_values_of_one_input_do_not_stand_for_another() -> None:
    samples = Samples(2)
    for place, pair in enumerate([(1.0, 2.0), (9.0, 9e9), (math.nan, 2.0), (1.0, math.nan)]):
        offer(samples, place, of(pair[0], 1.0), of(pair[1], 1.0))
    assert {2, 3} <= set(calls(samples))


def test_an_outlier_of_a_late_layer_is_kept_beyond_the_limit() -> None:
    samples = Samples(1)
    for place, peak in enumerate([1.0, 1.05, 1.08, 500.0, 2.0, 510.0]):
        offer(samples, place, of(peak, 0.5))
    assert calls(samples) == [0, 3]


def test_outliers_are_kept_for_each_input() -> None:
    samples = Samples(1)
    for place, pair in enumerate([(1.0, 1.0), (9.0, 1.0), (1.0, 9.0), (99.0, 1.0)]):
        offer(samples, place, of(pair[0], 0.5), of(pair[1], 0.5))
    assert sorted(calls(samples)) == [0, 2, 3]


values = st.sampled_from([0.0, 1.0, -1.0, 1e3, 1e9, 3e38, 1e-42, math.nan, math.inf, -math.inf])


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.integers(1, 4), st.lists(st.lists(values, min_size=1, max_size=3), min_size=1, max_size=12))
def test_whatever_comes(limit: int, offered: list[list[float]]) -> None:
    samples = Samples(limit)
    before: set[str] = set()
    for place, entry in enumerate(offered):
        offer(samples, place, of(*entry))
        tokens = {token for sample in samples.chosen() for _, token in sample.tokens}
        assert before & RARE <= tokens, "a rare value that was kept is lost"
        before = {token for sample in samples.kept for _, token in sample.tokens}
    rare = [sample for sample in samples.kept if any(token in RARE for _, token in sample.tokens)]
    assert 1 <= len(samples.kept) <= max(limit, min(2 * limit, len(rare)))
    assert len(samples.chosen()) <= len(samples.kept) + 1
    assert len(set(calls(samples))) == len(calls(samples))
    assert samples.seen == len(offered) >= samples.alike + len(samples.chosen())
    peaks = [features_of(of(*entry)).peak for entry in offered]
    kept = [sample.features[0].peak for sample in samples.chosen()]
    assert max(kept) * 1.1 >= max(peaks)
