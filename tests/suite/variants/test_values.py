"""What the generators of values promise: telling values, in rows that act together, with finite results where asked."""

from __future__ import annotations

import pytest
import torch

from tapestry.suite.variants.call import Kind, OpCall
from tapestry.suite.variants.derive import Budget, derive, make
from tapestry.suite.variants.elements import float_groups, integer_groups
from tapestry.suite.variants.patterns import FINITE, INTEGERS, LARGE, NONFINITE
from tapestry.suite.variants.rows import is_elementwise, row_dims
from tapestry.suite.variants.setting import Setting

aten = torch.ops.aten
_FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", _FLOATS)
def test_lists_hold_values_of_the_format_each_once(dtype: torch.dtype) -> None:
    for group in float_groups(dtype):
        assert group.values.numel() > 0
        assert torch.equal(group.values.to(dtype).double(), group.values), group.name
        assert bool(torch.isfinite(group.values).all())


@pytest.mark.parametrize("dtype", _FLOATS)
def test_the_sweep_has_every_power_of_two_with_both_signs(dtype: torch.dtype) -> None:
    sweep = next(group.values for group in float_groups(dtype) if group.name == "sweep")
    info = torch.finfo(dtype)
    for values in (sweep[sweep > 0], -sweep[sweep < 0]):
        exponents = set(torch.frexp(values).exponent.tolist())
        least, most = (int(torch.frexp(torch.tensor(edge).double()).exponent) for edge in (info.tiny, info.max))
        assert set(range(least, most)) <= exponents
        assert float(values.min()) < info.tiny


def test_the_head_of_the_sweep_covers_the_whole_range() -> None:
    head = next(group.values for group in float_groups(torch.float32) if group.name == "sweep")[:16].abs().log2()
    assert float(head.min()) < -120
    assert float(head.max()) > 100
    assert float(head.sort().values.diff().max()) < 64


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_stay_in_their_type(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    for group in integer_groups(dtype, True):
        assert bool(((group.values >= info.min) & (group.values <= info.max)).all())
    alone = torch.cat([group.values for group in integer_groups(dtype, True)])
    beside = torch.cat([group.values for group in integer_groups(dtype, False)])
    assert bool((alone == info.min).any())
    assert dtype == torch.uint8 or not bool((beside == info.min).any())


@pytest.mark.parametrize("length", [1, 2, 7, 64])
def test_patterns_have_the_length_of_the_row(length: int) -> None:
    for pattern in (*FINITE, *LARGE):
        row = pattern.make(length, torch.float32)
        assert row.shape == (length,)
        assert bool(torch.isfinite(row.float()).all()), pattern.name
    assert all(not bool(torch.isfinite(entry.make(length, torch.float32)).all()) for entry in NONFINITE if length > 2)
    assert all(entry.make(length, torch.int8).to(torch.int8).shape == (length,) for entry in INTEGERS)


def test_a_deep_row_lies_along_the_dimension_of_the_softmax() -> None:
    made = make(OpCall(aten.softmax.int, (torch.zeros(5, 3), 0)), "values:self:rows.0").tensors[0]
    assert bool((made[:, 0] == -104.5).all())
    assert bool((made[:, 1] != -104.5).all())


@pytest.mark.parametrize(
    ("call", "place", "dims"),
    [
        (OpCall(aten.softmax.int, (torch.ones(2, 3, 4), 1)), 0, (1,)),
        (OpCall(aten.sum.dim_IntList, (torch.ones(2, 3, 4), [0, -1])), 0, (0, 2)),
        (OpCall(aten.sum.default, (torch.ones(2, 3),)), 0, (0, 1)),
        (OpCall(aten.layer_norm.default, (torch.ones(2, 3, 4), [3, 4])), 0, (1, 2)),
        (OpCall(aten.mm.default, (torch.ones(2, 3), torch.ones(3, 4))), 1, (0,)),
        (OpCall(aten.linear.default, (torch.ones(2, 3), torch.ones(4, 3))), 1, (1,)),
        (OpCall(aten.conv2d.default, (torch.ones(2, 3, 5, 5), torch.ones(4, 3, 3, 3))), 1, (1, 2, 3)),
        (OpCall(aten.max_pool2d.default, (torch.ones(2, 3, 4, 4), [2, 2])), 0, (2, 3)),
        (OpCall(aten.scaled_dot_product_attention.default, (torch.ones(1, 2, 3, 4),) * 3), 0, (3,)),
    ],
)
def test_rows_are_what_acts_together(call: OpCall, place: int, dims: tuple[int, ...]) -> None:
    assert row_dims(call, Setting(call).meanings[place], call.tensors[place]) == dims


@pytest.mark.parametrize(
    ("call", "elementwise"),
    [
        (OpCall(aten.add.Tensor, (torch.ones(2), torch.ones(2))), True),
        (OpCall(aten.floor_divide.default, (torch.ones(2), torch.ones(2))), True),
        (OpCall(aten.cat.default, ([torch.ones(2), torch.ones(2)],)), True),
        (OpCall(aten.embedding.default, (torch.ones(2, 3), torch.tensor([1]))), True),
        (OpCall(aten.amax.default, (torch.ones(2, 3),)), False),
        (OpCall(aten.max_pool2d.default, (torch.ones(1, 1, 4, 4), [2, 2])), False),
        (OpCall(aten.sort.default, (torch.ones(2),)), False),
        (OpCall(aten.linear.default, (torch.ones(2, 3), torch.ones(4, 3))), False),
    ],
)
def test_elementwise(call: OpCall, elementwise: bool) -> None:
    assert is_elementwise(call) == elementwise


@pytest.mark.parametrize("target", [aten.exp.default, aten.reciprocal.default, aten.log.default])
def test_overflow_comes_by_itself(target: torch._ops.OpOverload) -> None:
    """Variants whose results are finite can count for a program; those with overflow are named with a plus."""
    call = OpCall(target, (torch.rand(8, 64, generator=torch.Generator().manual_seed(0)) + 0.1,))
    seen = False
    for variant, made in derive(call, kinds={Kind.VALUES}):
        finite = bool(torch.isfinite(made.target(*made.args)).all())
        assert finite or variant.name.endswith("+")
        seen = seen or not finite
    assert seen


def test_rows_that_overflow_come_by_themselves() -> None:
    call = OpCall(aten.sum.dim_IntList, (torch.ones(64, 32).half(), [1]))
    tamed, whole = (make(call, f"values:self:rows{end}").tensors[0].sum(1) for end in ("", "+"))
    assert bool(torch.isfinite(tamed).all())
    assert not bool(torch.isfinite(whole).all())


def test_a_tensor_of_one_element_gets_the_most_telling_values() -> None:
    call = OpCall(aten.tanh.default, (torch.ones(()),))
    seen = {float(made.tensors[0]) for _, made in derive(call, Budget(cases=16), {Kind.VALUES, Kind.NONFINITE})}
    assert {45.0, 0.5} <= seen
    assert any(value != value for value in seen)


def test_pairs_meet_in_one_element() -> None:
    call = OpCall(aten.remainder.Tensor, (torch.arange(1, 513), torch.arange(1, 513)))
    pairs = [zip(*(t.tolist() for t in made.tensors), strict=True) for _, made in derive(call, kinds={Kind.VALUES})]
    assert {(-7, 3), (7, -3), (-7, -3)} <= {pair for each in pairs for pair in each}


def test_a_nan_stands_beside_each_operand_in_turn() -> None:
    call = OpCall(aten.minimum.default, (torch.ones(8), torch.ones(8)))
    found = [tuple(made.tensors) for _, made in derive(call, kinds={Kind.NONFINITE})]
    assert any(bool((left.isnan() & ~right.isnan()).any()) for left, right in found)
    assert any(bool((~left.isnan() & right.isnan()).any()) for left, right in found)


def test_the_least_integer_never_stands_beside_minus_one() -> None:
    """Their quotient ends the process in eager's greatest common divisor."""
    call = OpCall(aten.gcd.default, (torch.arange(1, 513), torch.arange(1, 513)))
    made = [made for _, made in derive(call, Budget(cases=500), {Kind.VALUES})]
    assert made
    assert all(not bool((tensor == torch.iinfo(torch.int64).min).any()) for entry in made for tensor in entry.tensors)


def test_an_index_of_unknown_range_is_left_alone() -> None:
    pooled, places = aten.max_pool2d_with_indices.default(torch.rand(1, 1, 4, 4), [2, 2])
    target = aten.max_pool2d_with_indices_backward.default
    call = OpCall(target, (pooled, torch.rand(1, 1, 4, 4), [2, 2], [2, 2], [0, 0], [1, 1], False, places))
    held = [made for _, made in derive(call, Budget(cases=500), {Kind.VALUES, Kind.NONFINITE})]
    assert held
    assert all(made.tensors[2] is places for made in held)


def test_large_tensors_keep_their_values() -> None:
    weight = torch.zeros(5 << 20)
    call = OpCall(aten.mul.Tensor, (weight, torch.ones(1)))
    assert all(made.tensors[0] is weight for _, made in derive(call, Budget(cases=4), {Kind.VALUES}))
