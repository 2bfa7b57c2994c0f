"""Judging what is exact: structure, copies, integers, positions, NaN maps, and what is left out as undefined."""

from __future__ import annotations

# ruff: noqa: SLF001 - names of ATen operators begin with an underscore
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tapestry.numerics import Judgement, Verdict, flatten_result, judge, oracle

aten = torch.ops.aten
NAN, INF = torch.nan, torch.inf


def judged(target: torch._ops.OpOverload, args: tuple[Any, ...], *got: Tensor, **kwargs: Any) -> Judgement:
    source = flatten_result(target(*args, **kwargs))
    return judge(target, args, kwargs, got, source, oracle(target, args, kwargs))


def test_shape_dtype_and_number_of_results_are_judged_first() -> None:
    x = torch.ones(2, 3)
    assert judged(aten.neg.default, (x,), -x[:1]).reason == "expected shape [2, 3], got [1, 3]"
    assert judged(aten.neg.default, (x,), -x.double()).reason == "expected dtype float32, got float64"
    assert judged(aten.neg.default, (x,)).reason == "expected 1 results, got 0"
    scalar = judged(aten.sum.default, (x,), torch.tensor([6.0]))
    assert scalar.verdict == Verdict.FAIL
    assert scalar.reason == "expected shape [], got [1]"


def test_one_wrong_bit_of_a_copy_fails_and_says_where() -> None:
    x = torch.rand(2, 3) + 1
    got = x.clone()
    got[1, 2] = torch.nextafter(got[1, 2], torch.tensor(9.0))
    outcome = judged(aten.clone.default, (x,), got)
    assert outcome.verdict == Verdict.FAIL
    assert "at [1, 2] (1 of 6 elements wrong)" in outcome.reason
    assert 1.0 <= outcome.metrics.max_ulp < 1.01
    assert outcome.judged_by == "exact"


def test_negative_zero_is_zero() -> None:
    assert judged(aten.mul.Tensor, (torch.tensor([-1.0]), torch.tensor([0.0])), torch.tensor([0.0])).verdict == "pass"


def test_flushed_subnormals_pass_and_are_told() -> None:
    outcome = judged(aten.relu.default, (torch.tensor([1e-40, 1.0]),), torch.tensor([0.0, 1.0]))
    assert outcome.verdict == Verdict.PASS
    assert outcome.imprecise
    assert judged(aten.relu.default, (torch.tensor([2e-38, 1.0]),), torch.tensor([0.0, 1.0])).verdict == "fail"


@pytest.mark.parametrize("wrong", [0.0, INF])
def test_nan_must_stay(wrong: float) -> None:
    assert judged(aten.relu.default, (torch.tensor([NAN, 1.0]),), torch.tensor([wrong, 1.0])).verdict == "fail"
    x = torch.tensor([[NAN, 1.0]])
    assert judged(aten.amax.default, (x, [1]), torch.tensor([1.0])).verdict == "fail"
    assert judged(aten.amax.default, (x, [1]), torch.tensor([NAN])).verdict == "pass"


def test_nan_must_not_be_invented() -> None:
    x = torch.tensor([45.0, 0.5])
    outcome = judged(aten.tanh.default, (x,), torch.tensor([NAN, 0.46211716]))
    assert outcome.verdict == Verdict.FAIL
    assert outcome.reason.startswith("expected 1, got nan at [0]")


def test_infinity_is_right_where_the_declared_dtype_overflows() -> None:
    x = torch.tensor([300.0], dtype=torch.float16)
    assert judged(aten.mul.Tensor, (x, x), torch.tensor([INF], dtype=torch.float16)).verdict == "pass"
    assert judged(aten.mul.Tensor, (x, x), torch.tensor([65504.0], dtype=torch.float16)).verdict == "fail"
    small = torch.tensor([200.0], dtype=torch.float16)
    assert judged(aten.mul.Tensor, (small, small), torch.tensor([INF], dtype=torch.float16)).verdict == "fail"
    assert judged(aten.exp.default, (torch.tensor([100.0]),), torch.tensor([INF])).verdict == "pass"


@settings(derandomize=True)
@given(st.integers(-(2**40), 2**40), st.integers(-(2**20), 2**20), st.integers(-1, 1))
def test_integers_are_exact(left: int, right: int, off: int) -> None:
    args = (torch.tensor([left]), torch.tensor([right]))
    outcome = judged(aten.mul.Tensor, args, torch.tensor([left * right + off]))
    assert outcome.verdict == (Verdict.FAIL if off else Verdict.PASS)


def test_a_tie_may_point_at_either_value() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0]])
    assert judged(aten.argmax.default, (x, 1), torch.tensor([2])).verdict == "pass"
    assert judged(aten.argmax.default, (x, 1), torch.tensor([0])).verdict == "fail"
    assert judged(aten.argmax.default, (x, 1), torch.tensor([4])).verdict == "fail"
    assert judged(aten.argmax.default, (x,), torch.tensor(2)).verdict == "pass"
    nan = torch.tensor([[1.0, NAN, 3.0]])
    assert judged(aten.argmax.default, (nan, 1), torch.tensor([2])).verdict == "fail"


def test_sort_and_topk_positions_must_not_repeat() -> None:
    x = torch.tensor([3.0, 3.0, 1.0])
    values = torch.tensor([3.0, 3.0])
    assert judged(aten.topk.default, (x, 2), values, torch.tensor([1, 0])).verdict == "pass"
    assert judged(aten.topk.default, (x, 2), values, torch.tensor([0, 0])).verdict == "fail"
    assert judged(aten.topk.default, (x, 2), values, torch.tensor([0, 2])).verdict == "fail"
    ordered = torch.tensor([1.0, 3.0, 3.0])
    assert judged(aten.sort.default, (x,), ordered, torch.tensor([2, 1, 0])).verdict == "pass"
    assert judged(aten.sort.stable, (x,), ordered, torch.tensor([2, 1, 0]), stable=True).verdict == "fail"


def test_unsorted_topk_may_come_in_any_order() -> None:
    x = torch.tensor([1.0, 5.0, 4.0])
    args = (x, 2, -1, True, False)
    assert judged(aten.topk.default, args, torch.tensor([4.0, 5.0]), torch.tensor([2, 1])).verdict == "pass"
    assert judged(aten.topk.default, args, torch.tensor([4.0, 1.0]), torch.tensor([2, 0])).verdict == "fail"


def test_pooling_positions_point_into_the_flattened_map() -> None:
    x = torch.zeros(1, 1, 2, 2)
    args = (x, [2, 2])
    values = torch.zeros(1, 1, 1, 1)
    assert judged(aten.max_pool2d_with_indices.default, args, values, torch.tensor([[[[3]]]])).verdict == "pass"
    x[0, 0, 0, 1] = 1.0
    assert judged(aten.max_pool2d_with_indices.default, args, values + 1, torch.tensor([[[[3]]]])).verdict == "fail"


def test_casts_of_what_has_no_integer_are_left_out() -> None:
    cast = aten._to_copy.default
    x = torch.tensor([50.0, -50.0, NAN, INF, 300.0])
    got = torch.tensor([50, -50, -128, 127, 127], dtype=torch.int8)
    outcome = judged(cast, (x,), got, dtype=torch.int8)
    assert outcome.verdict == Verdict.PASS
    assert "left out" in outcome.reason
    got[0] = 49
    assert judged(cast, (x,), got, dtype=torch.int8).verdict == "fail"
    assert judged(cast, (x[2:],), got[2:], dtype=torch.int8).verdict == Verdict.UNDEFINED


def test_fully_masked_softmax_rows_are_left_out() -> None:
    x = torch.tensor([[-INF, -INF], [0.0, 0.0]])
    right = torch.tensor([[0.0, 0.0], [0.5, 0.5]])
    assert judged(aten._softmax.default, (x, 1, False), right).verdict == "pass"
    assert judged(aten._softmax.default, (x[:1], 1, False), right[:1]).verdict == "undefined"
    assert judged(aten._softmax.default, (x, 1, False), right.flip(0)).verdict == "fail"
    nan = torch.tensor([[NAN, NAN], [0.5, 0.5]])
    assert judged(aten._safe_softmax.default, (x, 1), nan).verdict == "fail"


def test_attention_over_masked_keys_is_left_out() -> None:
    query = torch.randn(1, 1, 2, 4)
    mask = torch.tensor([[True, True], [False, False]])
    args = (query, query, query, mask)
    right = aten.scaled_dot_product_attention.default(*args)
    other = right.clone()
    other[..., 1, :] = NAN
    assert judged(aten.scaled_dot_product_attention.default, args, other).verdict == "pass"
    other[..., 0, 0] += 1e-3
    assert judged(aten.scaled_dot_product_attention.default, args, other).verdict == "fail"


def test_shifts_by_the_width_are_left_out() -> None:
    args = (torch.tensor([1, 1], dtype=torch.int32), torch.tensor([1, 32], dtype=torch.int32))
    got = torch.tensor([2, 77], dtype=torch.int32)
    assert judged(aten.bitwise_left_shift.Tensor, args, got).verdict == "pass"


def test_eigenvectors_may_change_sign_and_eigenvalues_may_not_be_wrong() -> None:
    x = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    values, vectors = aten._linalg_eigh.default(x)
    assert judged(aten._linalg_eigh.default, (x,), values, -vectors).verdict == "pass"
    assert judged(aten._linalg_eigh.default, (x,), values + 1e-3, vectors).verdict == "fail"


def test_nothing_at_all_has_the_right_shape_and_passes() -> None:
    x = torch.zeros(2, 0)
    assert judged(aten.relu.default, (x,), x).verdict == "pass"
    assert judged(aten.sum.dim_IntList, (x, [1]), torch.zeros(2)).verdict == "pass"
    assert judged(aten.sum.dim_IntList, (x, [1]), torch.tensor([0.0, 1234.0])).verdict == "fail"
    assert judged(aten.softmax.int, (x, 1), x).verdict == "pass"
    assert judged(aten.linear.default, (x, torch.zeros(3, 0)), torch.zeros(2, 3)).verdict == "pass"


def test_without_an_oracle_shape_dtype_and_range_count() -> None:
    target, args = aten.rand.default, ([3],)
    source = (torch.zeros(3),)
    assert judge(target, args, {}, (torch.full((3,), 0.5),), source, None).verdict == "pass"
    assert judge(target, args, {}, (torch.full((3,), 1.5),), source, None).verdict == "fail"
    assert judge(target, args, {}, (torch.full((2,), 0.5),), source, None).verdict == "fail"


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # deprecated, and still exported by models
def test_quantised_results_are_compared_by_level() -> None:
    args = (torch.tensor([0.26, 0.25, 1.0]), 0.1, 3, torch.quint8)
    right = torch.quantize_per_tensor(*args)
    assert judged(aten.quantize_per_tensor.default, args, right).verdict == "pass"
    wrong = torch.quantize_per_tensor(args[0] + 0.1, *args[1:])
    assert judged(aten.quantize_per_tensor.default, args, wrong).verdict == "fail"


def test_no_worse_than_the_source_passes_as_imprecise() -> None:
    x = torch.rand(4) + 1
    wrong = (x * 1.01,)
    want = oracle(aten.exp.default, (x,))
    off = tuple(entry.exp() for entry in wrong)
    assert judge(aten.exp.default, (x,), {}, off, (x.exp(),), want).verdict == "fail"
    excused = judge(aten.exp.default, (x,), {}, off, off, want)
    assert excused.verdict == Verdict.PASS
    assert excused.imprecise


def test_a_result_that_the_oracle_lacks_is_told() -> None:
    x = torch.ones(2)
    outcome = judge(aten.neg.default, (x,), {}, (-x,), (-x,), ())
    assert outcome.verdict == Verdict.UNDEFINED
    assert "the oracle has no result 0" in outcome.reason
