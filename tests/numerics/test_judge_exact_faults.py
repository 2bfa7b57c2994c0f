"""Kinds of wrong platforms where results are exact: narrow integers, casts that truncate, copies that change bits."""

from __future__ import annotations

# ruff: noqa: SLF001 - names of ATen operators begin with an underscore
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from support.judged_calls import CALLS, Call, seeded
from tapestry.numerics import flatten_result, judge, oracle

aten = torch.ops.aten


def verdict(call: Call, got: Any) -> str:
    target, args, kwargs = call
    return judge(target, args, kwargs, flatten_result(got), None, oracle(target, args, kwargs)).verdict


def assert_told_apart(call: Call, wrong: Any) -> None:
    target, args, kwargs = call
    assert verdict(call, target(*args, **kwargs)) == "pass"
    assert verdict(call, wrong) == "fail"


# Integers through narrower or floating formats.

BIG = torch.tensor([[2**53 + 1, -(2**53) - 3, 2**40 + 7], [2**31, -(2**31) - 1, 3]])
INTEGERS: dict[str, Call] = {
    "add": (aten.add.Tensor, (BIG, BIG.flip(0)), {}),
    "sub": (aten.sub.Tensor, (BIG, -BIG.flip(0)), {}),
    "mul": (aten.mul.Tensor, (BIG, torch.tensor(3)), {}),
    "neg": (aten.neg.default, (BIG,), {}),
    "abs": (aten.abs.default, (BIG,), {}),
    "sum": (aten.sum.dim_IntList, (BIG, [0]), {}),
    "cumsum": (aten.cumsum.default, (BIG, 0), {}),
    "prod": (aten.prod.dim_int, (BIG, 0), {}),
    "mm": (aten.mm.default, (BIG, torch.eye(3, dtype=torch.int64)), {}),
    "maximum": (aten.maximum.default, (BIG, BIG.flip(0)), {}),
    "amax": (aten.amax.default, (BIG, [1]), {}),
    "where": (aten.where.self, (BIG > 0, BIG, BIG.flip(0)), {}),
    "clamp": (aten.clamp.default, (BIG, -(2**53) - 5, 2**53 + 1), {}),
    "index_select": (aten.index_select.default, (BIG, 0, torch.tensor([1, 0])), {}),
    "gather": (aten.gather.default, (BIG, 0, torch.tensor([[1, 0, 0]])), {}),
    "cat": (aten.cat.default, ([BIG, BIG],), {}),
    "clone": (aten.clone.default, (BIG,), {}),
    "floor_divide": (aten.floor_divide.default, (BIG, torch.tensor(1)), {}),
    "remainder": (aten.remainder.Scalar, (BIG, 1000), {}),
    "bitwise_and": (aten.bitwise_and.Scalar, (BIG, -1), {}),
    "shift": (aten.bitwise_left_shift.Tensor_Scalar, (BIG, 2), {}),
    "sort": (aten.sort.default, (BIG,), {}),
    "to int64": (aten._to_copy.default, (BIG,), {"dtype": torch.int64}),
}


def _through(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(dtype).to(torch.int64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int32])
@pytest.mark.parametrize("name", sorted(set(INTEGERS) - {"remainder", "amax"}))
def test_integers_through_another_format(name: str, dtype: torch.dtype) -> None:
    target, args, kwargs = INTEGERS[name]
    flat = flatten_result(target(*args, **kwargs))
    assert flat[0] is not None
    assert_told_apart((target, args, kwargs), (_through(dtype)(flat[0]), *flat[1:]))


def test_a_remainder_in_single_precision() -> None:
    call = INTEGERS["remainder"]
    assert_told_apart(call, BIG.float().remainder(1000.0).to(torch.int64))


def test_a_comparison_in_double_precision() -> None:
    left, right = torch.tensor([2**53 + 1, 2**24 + 1]), torch.tensor([2**53, 2**24])
    assert_told_apart((aten.gt.Tensor, (left, right), {}), left.double() > right.double())
    assert_told_apart((aten.eq.Tensor, (left, right), {}), left.float() == right.float())


NUMERATOR, DENOMINATOR = torch.tensor([-7, 7, -7, 7, -8]), torch.tensor([2, 2, -2, -2, 4])


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ((aten.floor_divide.default, (NUMERATOR, DENOMINATOR), {}), (NUMERATOR / DENOMINATOR).trunc().long()),
        ((aten.div.Tensor_mode, (NUMERATOR, DENOMINATOR), {"rounding_mode": "floor"}),
         (NUMERATOR / DENOMINATOR).trunc().long()),
        ((aten.div.Tensor_mode, (NUMERATOR, DENOMINATOR), {"rounding_mode": "trunc"}),
         (NUMERATOR / DENOMINATOR).floor().long()),
        ((aten.remainder.Tensor, (NUMERATOR, DENOMINATOR), {}), torch.fmod(NUMERATOR, DENOMINATOR)),
        ((aten.fmod.Tensor, (NUMERATOR, DENOMINATOR), {}), torch.remainder(NUMERATOR, DENOMINATOR)),
        ((aten.floor_divide.default, (NUMERATOR.float(), DENOMINATOR.float()), {}),
         (NUMERATOR / DENOMINATOR).trunc()),
        ((aten.remainder.Tensor, (NUMERATOR.float(), DENOMINATOR.float()), {}),
         torch.fmod(NUMERATOR, DENOMINATOR).float()),
    ],
)  # fmt: skip
def test_division_rounded_the_other_way(call: Call, wrong: Tensor) -> None:
    assert_told_apart(call, wrong)


# Casts.

FRACTIONS = torch.cat([seeded(1, 64), torch.tensor([1.00390625, 1.01171875, 65519.0, 3.0000001, -0.1])])


def truncated(x: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """Rounded towards zero by clearing bits of float32."""
    return (x.view(torch.int32) & ~((1 << bits) - 1)).view(torch.float32).to(dtype)


def ties_away(x: Tensor) -> Tensor:
    """Bfloat16 with ties away from zero instead of to even."""
    return truncated((x.view(torch.int32) + (1 << 15)).view(torch.float32), 16, torch.bfloat16)


CASTS: dict[str, tuple[Tensor, torch.dtype, Tensor]] = {
    "bfloat16 truncated": (FRACTIONS, torch.bfloat16, truncated(FRACTIONS, 16, torch.bfloat16)),
    "bfloat16 ties away": (FRACTIONS, torch.bfloat16, ties_away(FRACTIONS)),
    "float16 truncated": (FRACTIONS[:64], torch.float16, truncated(FRACTIONS[:64], 13, torch.float16)),
    "float16 through bfloat16": (FRACTIONS, torch.float16, FRACTIONS.bfloat16().half()),
    "float32 through float16": (FRACTIONS.double(), torch.float32, FRACTIONS.half().float()),
    "integers rounded": (FRACTIONS, torch.int32, FRACTIONS.round().to(torch.int32)),
    "integers floored": (FRACTIONS, torch.int64, FRACTIONS.floor().to(torch.int64)),
    "int64 to float32 truncated": (
        torch.tensor([2**24 + 3, -(2**24) - 3]), torch.float32, torch.tensor([2.0**24 + 2, -(2.0**24) - 2])),
    "double twice rounded": (
        torch.tensor([1 + 2.0**-8 + 2.0**-40], dtype=torch.float64), torch.bfloat16,
        torch.tensor([1.0]).bfloat16()),
    "bool of a fraction": (torch.tensor([0.5, 0.0]), torch.bool, torch.tensor([False, False])),
}  # fmt: skip


@pytest.mark.parametrize("name", CASTS)
def test_casts_that_round_otherwise(name: str) -> None:
    x, dtype, wrong = CASTS[name]
    call: Call = (aten._to_copy.default, (x,), {"dtype": dtype})
    if name != "double twice rounded":  # eager rounds twice itself
        assert verdict(call, x.to(dtype)) == "pass"
    assert verdict(call, wrong) == "fail"


# Copies.

VALUES = seeded(2, 4, 6)
COPIES: dict[str, Call] = {
    "clone": (aten.clone.default, (VALUES,), {}),
    "cat": (aten.cat.default, ([VALUES, VALUES],), {}),
    "index_select": (aten.index_select.default, (VALUES, 1, torch.tensor([0, 3])), {}),
    "gather": (aten.gather.default, (VALUES, 1, torch.tensor([[0], [3], [1], [5]])), {}),
    "embedding": (aten.embedding.default, (VALUES, torch.tensor([1, 2])), {}),
    "transpose": (aten.transpose.int, (VALUES, 0, 1), {}),
    "flip": (aten.flip.default, (VALUES, [0]), {}),
    "roll": (aten.roll.default, (VALUES, [1], [1]), {}),
    "pad": (aten.constant_pad_nd.default, (VALUES, [1, 1], 0.3), {}),
    "where": (aten.where.self, (VALUES > 0, VALUES, -VALUES), {}),
    "masked_fill": (aten.masked_fill.Scalar, (VALUES, VALUES > 0, 0.1), {}),
    "slice_scatter": (aten.slice_scatter.default, (VALUES, VALUES[:1], 0, 0, 1), {}),
    "relu": (aten.relu.default, (VALUES,), {}),
    "clamp": (aten.clamp.default, (VALUES, -0.3, 0.7), {}),
    "maximum": (aten.maximum.default, (VALUES, VALUES.flip(0)), {}),
    "amax": (aten.amax.default, (VALUES, [1]), {}),
    "max_pool2d": (aten.max_pool2d.default, (VALUES[None, None], [2, 2]), {}),
    "sort": (aten.sort.default, (VALUES,), {}),
    "topk": (aten.topk.default, (VALUES, 2), {}),
    "neg": (aten.neg.default, (VALUES,), {}),
    "abs": (aten.abs.default, (VALUES,), {}),
    "tril": (aten.tril.default, (VALUES,), {}),
    "repeat": (aten.repeat.default, (VALUES, [2, 1]), {}),
    "upsample_nearest2d": (aten.upsample_nearest2d.vec, (VALUES[None, None], [8, 12], None), {}),
    "half clone": (aten.clone.default, (VALUES.half(),), {}),
    "double clone": (aten.clone.default, (VALUES.double(),), {}),
    "scatter": (aten.scatter.src, (VALUES, 0, torch.zeros(1, 6, dtype=torch.int64), VALUES.flip(0)), {}),
    "scatter of the largest": (
        aten.scatter_reduce.two, (VALUES, 0, torch.zeros(4, 6, dtype=torch.int64), VALUES.flip(0), "amax"), {}),
    "fftshift": (aten.fft_fftshift.default, (VALUES,), {}),
    "embedding_bag of the largest": (
        aten.embedding_bag.default, (VALUES, torch.tensor([0, 1, 2]), torch.tensor([0]), False, 2), {}),
}  # fmt: skip


def one_step_off(x: Tensor) -> Tensor:
    """The largest element moved by one unit in the last place."""
    changed = x.clone().contiguous()
    place = int(changed.abs().flatten().argmax())
    changed.view(-1)[place] = torch.nextafter(changed.view(-1)[place], torch.zeros((), dtype=x.dtype))
    return changed


@pytest.mark.parametrize("name", COPIES)
def test_copies_that_are_not_bit_exact(name: str) -> None:
    target, args, kwargs = COPIES[name]
    flat = flatten_result(target(*args, **kwargs))
    assert flat[0] is not None
    assert_told_apart((target, args, kwargs), (one_step_off(flat[0]), *flat[1:]))


def test_nothing_known_is_judged_as_unknown() -> None:
    for name, make in CALLS.items():
        target, args, kwargs = make(seeded(3, 3, 4))
        outcome = judge(target, args, kwargs, flatten_result(target(*args, **kwargs)), None,
                        oracle(target, args, kwargs))  # fmt: skip
        assert not outcome.judged_by.startswith("unknown"), name
