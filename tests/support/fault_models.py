"""Small models, each on values at which some runtime has been seen to go wrong: what docs/known-faults.md repeats.

Each function is a factory for the command line: ``tapestry carve tests/support/fault_models.py:relu -o suite``.
The values are ordinary input; what is wrong, and where, is for a replay to say.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Model = tuple[torch.nn.Module, tuple[Tensor, ...]]


class Of(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(*args)


def _with_nan() -> Tensor:
    x = torch.linspace(-2, 2, 64).view(4, 16)
    x[1, 3] = x[3, 0] = float("nan")
    return x


def relu() -> Model:
    """Of values with NaN among them."""
    return Of(torch.relu), (_with_nan(),)


def clamp() -> Model:
    """Of values with NaN among them."""
    return Of(lambda x: torch.clamp(x, -1, 1)), (_with_nan(),)


def amax() -> Model:
    """Of rows with NaN in some of them."""
    return Of(lambda x: torch.amax(x, 1)), (_with_nan(),)


def maximum() -> Model:
    """Of values with NaN on either side."""
    return Of(torch.maximum), (_with_nan(), _with_nan().flip(0))


def softmax() -> Model:
    """Of rows far below 0, and of one with NaN."""
    return Of(lambda x: torch.softmax(x, 1)), (_with_nan() - 1e4,)


def mean() -> Model:
    """Of four million equal values."""
    return Of(torch.mean), (torch.full((4_000_000,), 0.1),)


def large_integers() -> Model:
    """Products of int64 beyond 32 bits."""
    return Of(lambda x: x * 3), (torch.tensor([1, 2**31, -(2**40), 2**53 + 1]),)


def int32_sum() -> Model:
    """A sum of int32 in int32, which wraps."""
    return Of(lambda x: torch.sum(x, dtype=torch.int32)), (torch.full((4,), 2**30, dtype=torch.int32),)


def gelu_tanh() -> Model:
    """The approximation by tanh, which is not gelu."""
    return Of(lambda x: torch.nn.functional.gelu(x, approximate="tanh")), (torch.linspace(-4, 4, 256),)


def remainder() -> Model:
    """Of negative integers."""
    return Of(torch.remainder), (torch.tensor([-7, 7, -7, 7]), torch.tensor([3, -3, -3, 3]))


def layer_norm() -> Model:
    """Of values near 300 with a spread of 0.01."""
    torch.manual_seed(0)
    return Of(lambda x: torch.nn.functional.layer_norm(x, (64,))), (300 + 0.01 * torch.randn(8, 64),)


def tanh() -> Model:
    """Far from 0, where a formula by exp overflows, and close to it, where one cancels."""
    return Of(torch.tanh), (torch.tensor([-1e4, -90.0, -1e-6, 1e-30, 1e-3, 20.0, 1e30]),)


MODELS: tuple[Callable[[], Model], ...] = (
    relu, clamp, amax, maximum, softmax, mean, large_integers, int32_sum, gelu_tanh, remainder, layer_norm, tanh,
)  # fmt: skip
