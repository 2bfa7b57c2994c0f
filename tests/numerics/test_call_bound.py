"""The bound of one call: absolute, per element, and the one that judge uses."""

from __future__ import annotations

# ruff: noqa: SLF001 - names of ATen operators begin with an underscore
from typing import Any

import pytest
import torch
from torch import Tensor

from tapestry.numerics import bound_of, flatten_result, judge, oracle

aten = torch.ops.aten

X = torch.randn(4, 33, generator=torch.Generator().manual_seed(0))
CALLS: dict[str, tuple[torch._ops.OpOverload, tuple[Any, ...]]] = {
    "exp": (aten.exp.default, (X,)),
    "mul": (aten.mul.Tensor, (X, X.flip(-1))),
    "mm": (aten.mm.default, (X, X.t())),
    "softmax": (aten._softmax.default, (X, -1, False)),
    "layer_norm": (aten.native_layer_norm.default, (X, [33], X[0], X[1], 1e-5)),
    "gelu": (aten.gelu.default, (X,)),
    "fft": (aten._fft_r2c.default, (X, [1], 0, True)),
    "half": (aten.mul.Tensor, (X.half(), X.half())),
    "half mm": (aten.mm.default, (X.half(), X.half().t())),
}


def first(target: torch._ops.OpOverload, args: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    want, source = oracle(target, args)[0], flatten_result(target(*args))[0]
    assert want is not None
    assert source is not None
    return want, source


@pytest.mark.parametrize("name", CALLS)
def test_a_result_passes_just_within_the_bound_and_fails_beyond_it(name: str) -> None:
    target, args = CALLS[name]
    want, source = first(target, args)
    bound = bound_of(target, args, {}, 0, want, source.dtype)
    assert bound.careful.dtype == bound.allowed.dtype == torch.float64
    careful, allowed = bound.careful.expand(want.shape), bound.allowed.expand(want.shape)
    assert bool((careful > 0).all())
    assert bool((careful <= allowed).all())
    assert bool(((source.to(want.dtype) - want).abs() <= allowed).all())
    place = tuple(size // 2 for size in want.shape)
    results = list(flatten_result(target(*args)))

    def with_error(factor: float) -> str:
        changed = source.clone()
        changed[place] = (want[place] + factor * allowed[place]).to(source.dtype)
        return judge(target, args, {}, [changed, *results[1:]], results, oracle(target, args)).verdict

    assert with_error(0.5) == "pass"
    assert with_error(4.0) == "fail"


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (aten.relu.default, (X,)),
        (aten.cat.default, ([X, X],)),
        (aten.argmax.default, (X, 1)),
        (aten.gt.Tensor, (X, X.flip(-1))),
        (aten.add.Tensor, (torch.arange(3), torch.arange(3))),
    ],
)
def test_exact_classes_have_no_room(target: torch._ops.OpOverload, args: tuple[Any, ...]) -> None:
    want, source = first(target, args)
    bound = bound_of(target, args, {}, 0, want, source.dtype)
    assert bound.kind == "exact"
    assert not bool(bound.careful.any())
    assert not bool(bound.allowed.any())


def test_a_cast_from_double_may_round_once() -> None:
    x = torch.tensor([0.1, 0.5], dtype=torch.float64)
    args, kwargs = (x,), {"dtype": torch.float32}
    want = oracle(aten._to_copy.default, args, kwargs)[0]
    assert want is not None
    bound = bound_of(aten._to_copy.default, args, kwargs, 0, want, torch.float32)
    assert bound.kind == "exact"
    assert 0 < float(bound.allowed[0]) <= 0.1 * 2**-24
    assert float(bound.allowed[1]) == 0.0


def test_where_the_result_is_not_finite_the_bound_is_zero() -> None:
    x = torch.tensor([0.0, 1.0])
    want = oracle(aten.log.default, (x,))[0]
    assert want is not None
    bound = bound_of(aten.log.default, (x,), {}, 0, want, torch.float32)
    assert bool(torch.isfinite(bound.allowed).all())


@pytest.mark.parametrize("item", [1, 2])
def test_a_result_without_elements_has_a_bound_without_elements(item: int) -> None:
    """The saved statistics of a batch norm for inference: no formula gives them."""
    target, args = aten._native_batch_norm_legit_no_training.default, (X, None, None, X[0], X[0].abs(), 0.1, 1e-5)
    source, want = flatten_result(target(*args))[item], oracle(target, args)[item]
    assert source is not None
    assert want is not None
    bound = bound_of(target, args, {}, item, want, source.dtype)
    assert bound.careful.shape == bound.allowed.shape == source.shape == (0,)
