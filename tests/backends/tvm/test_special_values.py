"""NaN, infinities and masked rows: where kernel compilers go wrong in silence."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tapestry.numerics import Verdict, judge, oracle

aten = torch.ops.aten

ODD = torch.tensor([1.0, math.nan, -1.0, math.inf, -math.inf, 0.0, -2.5])
LINES = torch.tensor([[-math.inf, -math.inf], [-math.inf, 1.0], [math.nan, -math.inf], [2.0, math.inf]])


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.equal(got.isnan(), want.isnan()) and torch.equal(got.nan_to_num(nan=7.0), want.nan_to_num(nan=7.0))


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.relu.default, (ODD,)),
        (aten.clamp.default, (ODD, -0.5, 0.5)),
        (aten.maximum.default, (ODD, ODD.flip(0))),
        (aten.minimum.default, (ODD, ODD.flip(0))),
        (aten.isnan.default, (ODD,)),
        (aten.isinf.default, (ODD,)),
        (aten.ne.Tensor, (ODD, ODD.flip(0))),
        (aten.eq.Scalar, (ODD, math.inf)),
        (aten.ge.Tensor, (ODD, ODD.flip(0))),
        (aten.logical_xor.default, (ODD, ODD.flip(0))),
        (aten.amax.default, (LINES, [1])),
        (aten.amin.default, (-LINES, [1])),
        (aten.max.dim, (LINES, 1)),
        (aten.argmax.default, (LINES, 1)),
        (aten.sort.default, (LINES, 1)),
        (aten.max_pool2d_with_indices.default, (torch.full((1, 1, 4, 4), -math.inf), [3, 3], [2, 2], [1, 1])),
    ],
    ids=str,
)
def test_nan_and_infinity_are_neither_lost_nor_made(bench: Any, op: Any, args: tuple[Any, ...]) -> None:
    got, want = bench.call(op, *args)
    assert all(same(one, other) for one, other in zip(got, want, strict=True))


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log2", "log1p", "tanh", "sigmoid", "silu", "elu"])
def test_special_values_of_exponentials_and_logarithms(bench: Any, name: str) -> None:
    """WGSL leaves them open, and SwiftShader has log(-1) = 0, log(0) = -88, exp(NaN) infinite."""
    (got,), (want,) = bench.call(getattr(aten, name).default, ODD)
    # A few roundings of float32, and what the formulas lose near 0: the special values are what is tested.
    torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("exponent", [2.5, -2.5, 5.0, -5.0, 4.0, -4.0, 1.5, math.inf])
def test_special_values_of_powers(bench: Any, exponent: float) -> None:
    base = torch.tensor([0.0, -0.0, 1.0, -1.0, -2.0, 2.0, -3.5, math.inf, -math.inf, math.nan])
    (got,), (want,) = bench.call(aten.pow.Tensor_Tensor, base, torch.full_like(base, exponent))
    # exp2(y log2 x) loses log2 x times y roundings; the special values are what is tested
    torch.testing.assert_close(got, want, rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", ["choice", "additive"])
def test_a_fully_masked_row_of_attention_is_zero(bench: Any, kind: str) -> None:
    x = torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    chosen = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4, [False, True, False, False]])
    given = chosen if kind == "choice" else torch.where(chosen, 0.0, -math.inf)
    (got,), (want,) = bench.call(aten.scaled_dot_product_attention.default, x, x, x, given)
    assert torch.equal(got[:, :, 1], torch.zeros(1, 2, 8))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)  # 4 products of values near 1


def test_an_index_out_of_range_reads_inside(bench: Any, one_call: Any) -> None:
    table = torch.tensor([[1.0], [2.0]])
    graph, _, _ = one_call(aten.embedding.default, (table, torch.tensor([0, 1])), {})
    (got,) = bench.run(graph, bench.compile(graph), [table, torch.tensor([-7, 9])])
    assert got.flatten().tolist() == [1.0, 2.0]


def near_zero() -> torch.Tensor:
    small = torch.logspace(-30, 0, 400)
    return torch.cat([small, -small, torch.linspace(-20, 20, 401), torch.tensor([0.0, math.inf, -math.inf, math.nan])])


@pytest.mark.parametrize("op", [aten.sinh.default, aten.asinh.default, aten.atanh.default, aten.acosh.default], ids=str)
def test_hyperbolic_functions_near_zero_and_at_their_ends(bench: Any, op: Any) -> None:
    x = near_zero() + (1.0 if op is aten.acosh.default else 0.0)
    x = x.clamp(-0.999, 0.999) if op is aten.atanh.default else x
    (got,), _ = bench.call(op, x)
    assert judge(op, (x,), {}, [got], [op(x)], oracle(op, (x,))).verdict == Verdict.PASS


@pytest.mark.parametrize("op", [aten.fmod.Tensor, aten.remainder.Tensor], ids=str)
def test_remainders_are_exact(bench: Any, op: Any) -> None:
    left = torch.tensor([1e8, 3.0e38, -7.5, 7.5, 5.0, 0.0, 1.0, math.inf, math.nan, 2.0, -1e-3, 1e30])
    right = torch.tensor([3.0, 7.0, 2.0, -2.0, 5.0, 3.0, math.inf, 2.0, 1.0, 0.0, 1e-8, 1.7])
    (got,), (want,) = bench.call(op, left, right)
    assert same(got, want)
