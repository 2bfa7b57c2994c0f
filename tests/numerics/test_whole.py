"""The whole-program error and its bound."""

from __future__ import annotations

from math import inf

import pytest
import torch

from tapestry.numerics import program_bound, program_error


def test_the_worst_output_decides() -> None:
    want = (torch.tensor([1.0, -2.0]).double(), torch.tensor([100.0]).double())
    got = (torch.tensor([1.0, -2.0]), torch.tensor([101.0]))
    error = program_error(got, want)
    assert error.max_rel_error == pytest.approx(0.01)
    assert error.max_abs_error == pytest.approx(1.0)
    assert 0.999 < error.cosine <= 1.0


def test_the_error_is_relative_to_the_outputs_largest_value() -> None:
    want = torch.tensor([0.0, 10.0]).double()
    assert program_error((torch.tensor([0.1, 10.0]),), (want,)).max_rel_error == pytest.approx(0.01)


def test_integers_and_structure_are_exact() -> None:
    tokens = torch.tensor([1, 2])
    assert program_error((tokens,), (tokens,)).max_rel_error == 0.0
    assert program_error((tokens,), (tokens + 1,)).max_rel_error == inf
    assert program_error((torch.ones(2),), (torch.ones(3),)).max_rel_error == inf
    assert program_error((), (torch.ones(3),)).max_rel_error == inf


def test_nan_and_infinities_must_be_in_the_same_places() -> None:
    want = torch.tensor([torch.nan, torch.inf, 1.0])
    assert program_error((want.clone(),), (want.double(),)).max_rel_error == 0.0
    assert program_error((torch.tensor([0.0, torch.inf, 1.0]),), (want,)).max_rel_error == inf
    assert program_error((torch.tensor([torch.nan, -torch.inf, 1.0]),), (want,)).max_rel_error == inf
    assert program_error((torch.tensor([torch.nan, torch.inf, torch.nan]),), (want,)).max_rel_error == inf


def test_zero_and_empty_outputs() -> None:
    zero = torch.zeros(2)
    assert program_error((zero,), (zero,)).max_rel_error == 0.0
    assert program_error((zero,), (zero,)).cosine == 1.0
    assert program_error((zero + 1e-9,), (zero,)).max_rel_error == inf
    assert program_error((torch.zeros(0),), (torch.zeros(0),)).max_rel_error == 0.0


def test_the_bound_is_four_times_the_sources_error_and_at_least_1e_5() -> None:
    assert program_bound(0.0) == 1e-5
    assert program_bound(1e-3) == 4e-3
