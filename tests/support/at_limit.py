"""Elementary functions as bad as a device specification allows: the exact value off by just that, signs at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor


def ulp(y: Tensor) -> Tensor:
    """The spacing of float32 at each float64 value."""
    _, exponent = torch.frexp(y.abs().clamp(min=2.0**-126))
    return torch.ldexp(torch.full_like(y, 2.0**-23), exponent - 1)


def off_by(exact: Tensor, error: Tensor, seed: int) -> Tensor:
    """Float32 values as far from ``exact`` as ``error`` lets them be, up or down at random."""
    up = torch.rand(exact.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    value = (exact + torch.where(up, error, -error)).float()
    too_far = (value.double() - exact).abs() > error
    return torch.where(too_far, torch.nextafter(value, exact.float()), value)


@dataclass(frozen=True)
class Function:
    """``exact`` in float64, and ``error(y, x)``: the absolute error a specification allows for exact arguments."""

    exact: Callable[[Tensor], Tensor]
    error: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, x: Tensor, seed: int = 0) -> Tensor:
        wide = x.double()
        exact = self.exact(wide)
        return off_by(exact, self.error(exact, wide), seed)


def _ulps(count: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda y, x: count * ulp(y)


def _absolute(size: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda y, x: torch.full_like(y, size)


def _log_error(y: Tensor, x: Tensor) -> Tensor:
    return torch.where((x >= 0.5) & (x <= 2.0), 2.0**-21, 3 * ulp(y))


def _within_turn(y: Tensor, x: Tensor) -> Tensor:
    return torch.where(x.abs() <= pi, 2.0**-11, 4 * ulp(y))


def _tan_error(y: Tensor, x: Tensor) -> Tensor:
    """Sin / cos, each 2^-11 off, to first order, and the quotient's 2.5 ulp."""
    return 2.0**-11 * 0.95 * (x.sin().abs() + x.cos().abs()) / x.cos().square() + 2.5 * ulp(y)


#: W3C WebGPU Shading Language, "Accuracy of expressions" and "Accuracy of built-in functions", f32.
WGSL: dict[str, Function] = {
    "exp": Function(torch.exp, lambda y, x: (3 + 2 * x.abs()) * ulp(y)),
    "exp2": Function(torch.exp2, lambda y, x: (3 + 2 * x.abs()) * ulp(y)),
    "log": Function(torch.log, _log_error),
    "log2": Function(torch.log2, _log_error),
    "sin": Function(torch.sin, _within_turn),
    "cos": Function(torch.cos, _within_turn),
    "tan": Function(torch.tan, _tan_error),
    "asin": Function(torch.asin, _absolute(6.81e-5)),
    "acos": Function(torch.acos, _absolute(6.77e-5)),
    "atan": Function(torch.atan, _ulps(4096)),
    "tanh": Function(torch.tanh, _absolute(1e-5)),
    "cosh": Function(torch.cosh, lambda y, x: (5 + 2 * x.abs()) * ulp(y)),
    "expm1": Function(torch.expm1, lambda y, x: (5 + 2 * x.abs()) * ulp(y)),
    "sqrt": Function(torch.sqrt, _ulps(4.5)),
    "rsqrt": Function(torch.rsqrt, _ulps(2)),
    "reciprocal": Function(torch.reciprocal, _ulps(2.5)),
}
#: OpenCL C 3.0, section 7.4, "ULP values for single precision built-in math functions", full profile.
OPENCL: dict[str, Function] = {
    "exp": Function(torch.exp, _ulps(3)),
    "exp2": Function(torch.exp2, _ulps(3)),
    "expm1": Function(torch.expm1, _ulps(3)),
    "log": Function(torch.log, _ulps(3)),
    "log2": Function(torch.log2, _ulps(3)),
    "log10": Function(torch.log10, _ulps(3)),
    "log1p": Function(torch.log1p, _ulps(2)),
    "sin": Function(torch.sin, _ulps(4)),
    "cos": Function(torch.cos, _ulps(4)),
    "tan": Function(torch.tan, _ulps(5)),
    "asin": Function(torch.asin, _ulps(4)),
    "acos": Function(torch.acos, _ulps(4)),
    "atan": Function(torch.atan, _ulps(5)),
    "sinh": Function(torch.sinh, _ulps(4)),
    "cosh": Function(torch.cosh, _ulps(4)),
    "tanh": Function(torch.tanh, _ulps(5)),
    "asinh": Function(torch.asinh, _ulps(4)),
    "acosh": Function(torch.acosh, _ulps(4)),
    "atanh": Function(torch.atanh, _ulps(5)),
    "erf": Function(torch.erf, _ulps(16)),
    "erfc": Function(torch.erfc, _ulps(16)),
    "sqrt": Function(torch.sqrt, _ulps(3)),
    "rsqrt": Function(torch.rsqrt, _ulps(2)),
    "reciprocal": Function(torch.reciprocal, _ulps(2.5)),
}
#: WGSL has no erf; what shaders write in its place reaches this.
ERF_IN_SHADERS = Function(torch.erf, _absolute(1e-6))


def divided(left: Tensor, right: Tensor, seed: int = 0) -> Tensor:
    """Division as WGSL and OpenCL allow it: 2.5 ulp."""
    exact = left.double() / right.double()
    return off_by(exact, 2.5 * ulp(exact), seed)
