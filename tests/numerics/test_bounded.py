"""The running error bound: whatever float32 makes of a formula lies inside it, and it is not absurdly wide."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tapestry.numerics.bounded import Arithmetic, Bounded, sum_error

SINGLE = Arithmetic(2.0**-24, "careful")

FORMULAS: dict[str, tuple[Callable[[Bounded, Bounded], Bounded], Callable[[Tensor, Tensor], Tensor]]] = {
    "a + b": (lambda a, b: a + b, lambda a, b: a + b),
    "(a + b) - a": (lambda a, b: (a + b) - a, lambda a, b: (a + b) - a),
    "a * b - a": (lambda a, b: a * b - a, lambda a, b: a * b - a),
    "a / (1 + b²)": (lambda a, b: a / (b.square() + 1.0), lambda a, b: a / (b * b + 1)),
    "exp(a / 8) * b": (lambda a, b: (a / 8.0).exp() * b, lambda a, b: (a / 8).exp() * b),
    "log(1 + a²)": (lambda a, b: (a.square() + 1.0).log(), lambda a, b: (a * a + 1).log()),
    "sqrt(a² + b²)": (lambda a, b: (a.square() + b.square()).sqrt(), lambda a, b: (a * a + b * b).sqrt()),
    "tanh(a - b)": (lambda a, b: (a - b).tanh(), lambda a, b: (a - b).tanh()),
    "sum": (lambda a, b: (a * b).sum(-1), lambda a, b: (a * b).sum(-1, keepdim=True)),
    "matmul": (
        lambda a, b: a.matmul(b.apply(lambda tensor: tensor.transpose(-1, -2))),
        lambda a, b: a @ b.transpose(-1, -2),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
@given(st.integers(0, 2**16), st.integers(1, 40), st.sampled_from([1e-3, 1.0, 50.0]))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_single_precision_lies_inside_the_bound(name: str, seed: int, size: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(3, size, generator=generator) * scale for _ in range(2))
    bounded, plain = FORMULAS[name]
    result = bounded(SINGLE.exact(a.double()), SINGLE.exact(b.double()))
    error = (plain(a, b).double() - result.value).abs()
    # the smallest normal: the bound speaks of relative roundings, not of underflow
    assert bool((error <= result.bound + 2.0**-126).all())
    assert bool((result.bound >= 0).all())


def test_a_sum_of_exact_values_is_known_to_a_few_units() -> None:
    result = SINGLE.exact(torch.ones(1, 100, dtype=torch.float64)).sum(-1)
    assert float(result.bound) == pytest.approx(100 * sum_error(100, 2.0**-24))
    assert float(result.bound) / 100 < 1e-5


def test_bounds_of_infinities_are_zero() -> None:
    masked = SINGLE.exact(torch.tensor([-torch.inf, 0.0], dtype=torch.float64)) - 1.0
    assert masked.bound[0] == 0
    weights = masked.exp()
    assert weights.value[0] == 0
    assert bool(torch.isfinite(weights.bound).all())


def test_the_allowed_column_is_wider_than_the_careful_one() -> None:
    x = torch.linspace(-5, 5, 11, dtype=torch.float64)
    for function in (Bounded.exp, Bounded.tanh, Bounded.erf):
        careful = function(SINGLE.exact(x)).bound
        allowed = function(Arithmetic(2.0**-24, "allowed").exact(x)).bound
        assert bool((allowed >= careful).all())


def test_every_product_of_a_matrix_product_may_underflow() -> None:
    """A device that flushes subnormal products loses each of them: 64 times most of the smallest normal number."""
    left = SINGLE.exact(torch.full((1, 64), 2.0**-6, dtype=torch.float64))
    right = SINGLE.exact(torch.full((64, 1), 2.0**-6 * 0.9 * 2.0**-114, dtype=torch.float64))
    result = left.matmul(right)
    flushed = 0.0
    assert float(result.value) > 50 * 2.0**-126
    assert abs(float(result.value) - flushed) <= float(result.bound) <= 65 * 2.0**-126
