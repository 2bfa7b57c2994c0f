"""Sums by place (index_add, scatter_add, index_put …) in 16 bits: every addition may round, in any order.

The tolerance is the worst case of docs/numerics.md, n u / (1 + n u) of the sum of magnitudes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tapestry.numerics import Judgement, judge, oracle

aten = torch.ops.aten
Call = tuple[torch._ops.OpOverload, tuple[object, ...], dict[str, object]]

#: The operator on a start value and terms that all go to one place.
OPERATORS: dict[str, Callable[[Tensor, Tensor], Call]] = {
    "index_put": lambda start, terms: (aten.index_put.default, (start, [_places(terms)], terms, True), {}),
    "put": lambda start, terms: (aten.put.default, (start, _places(terms), terms, True), {}),
    "index_add": lambda start, terms: (aten.index_add.default, (start, 0, _places(terms), terms), {}),
    "scatter_add": lambda start, terms: (aten.scatter_add.default, (start, 0, _places(terms), terms), {}),
    "scatter": lambda start, terms: (
        aten.scatter.reduce, (start, 0, _places(terms), terms), {"reduce": "add"}),
    "scatter_reduce": lambda start, terms: (
        aten.scatter_reduce.two, (start, 0, _places(terms), terms, "sum"), {}),
}  # fmt: skip
VALUES: dict[str, Callable[[int], Tensor]] = {
    "ones": lambda n: torch.ones(n, dtype=torch.float64),
    "uniform": lambda n: torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64),
    "normal": lambda n: torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64),
    "one large": lambda n: torch.cat([torch.full((1,), 2048.0), torch.ones(n - 1)]).double(),
    "cancelling": lambda n: torch.linspace(100, -100, n, dtype=torch.float64),
}
ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "first to last": lambda terms: terms,
    "last to first": lambda terms: terms.flip(0),
    "any": lambda terms: terms[torch.randperm(len(terms), generator=torch.Generator().manual_seed(5))],
}
NARROW = [torch.bfloat16, torch.float16]


def _places(terms: Tensor) -> Tensor:
    return torch.zeros(len(terms), dtype=torch.int64)


def _call(operator: str, values: str, count: int, dtype: torch.dtype) -> tuple[Call, Tensor]:
    terms = VALUES[values](count).to(dtype)
    return OPERATORS[operator](torch.zeros(1, dtype=dtype), terms), terms


def _judged(call: Call, got: Tensor) -> Judgement:
    target, args, kwargs = call
    return judge(target, args, kwargs, (got,), None, oracle(target, args, kwargs))


def _one_by_one(terms: Tensor) -> Tensor:
    total = torch.zeros((), dtype=terms.dtype)
    for term in terms:
        total = total + term
    return total.reshape(1)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("count", [3, 130, 1000])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_sums_that_round_at_every_addition_pass(
    operator: str, values: str, order: str, count: int, dtype: torch.dtype
) -> None:
    call, terms = _call(operator, values, count, dtype)
    outcome = _judged(call, _one_by_one(ORDERS[order](terms)))
    assert outcome.verdict == "pass", outcome


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_sums_that_round_once_are_not_imprecise(operator: str, values: str, dtype: torch.dtype) -> None:
    call, terms = _call(operator, values, 130, dtype)
    outcome = _judged(call, terms.double().sum().to(dtype).reshape(1))
    assert (outcome.verdict, outcome.imprecise) == ("pass", False), outcome


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("count", [3, 8, 130, 1000])
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_sum_that_is_not_there_fails(operator: str, count: int, dtype: torch.dtype) -> None:
    call, terms = _call(operator, "ones", count, dtype)
    assert _judged(call, torch.zeros(1, dtype=dtype)).verdict == "fail"
    if count <= 8:
        assert _judged(call, terms[-1:]).verdict == "fail"  # the last one written stands
        assert _judged(call, terms[:-1].double().sum().to(dtype).reshape(1)).verdict == "fail"


@pytest.mark.parametrize("operator", OPERATORS)
def test_float32_sums_by_place_keep_their_bound(operator: str) -> None:
    call, terms = _call(operator, "normal", 130, torch.float32)
    assert _judged(call, _one_by_one(terms)).verdict == "pass"
    assert _judged(call, _one_by_one(terms.bfloat16()).float()).verdict == "fail"
