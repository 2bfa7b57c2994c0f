"""Activations in primitives, written the numerically stable way."""

from __future__ import annotations

from math import pi, sqrt

import torch

from tapestry.numerics.bounded import Bounded
from tapestry.numerics.formulas.call import Formula, FormulaCall

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # Klambauer et al., arXiv 1706.02515
#: Units of roundoff that ½ + p(x) / q(x) loses at the size of ½, as Eigen and ONNX Runtime's MLAS have it.
_HALVES = 4.0


def sigmoid_of(x: Bounded) -> Bounded:
    """1 / (1 + exp(-x)): right at both ends, where exp overflows to infinity or vanishes.

    Allowed is also ½ more than an odd function, which loses the tail on the left.
    """
    result = x.arithmetic.constant(1.0) / ((-x).exp() + 1.0)
    if x.arithmetic.column == "careful":
        return result
    return result.widened(torch.tensor(_HALVES * x.arithmetic.unit, dtype=torch.float64))


def _sigmoid(call: FormulaCall) -> tuple[Bounded, ...]:
    return (sigmoid_of(call.value("self")),)


def _silu(call: FormulaCall) -> tuple[Bounded, ...]:
    x = call.value("self")
    return (x * sigmoid_of(x),)


def _gelu(call: FormulaCall) -> tuple[Bounded, ...]:
    x = call.value("self")
    if call.bound.get("approximate") == "tanh":
        inner = (x + x * x * x * 0.044715) * sqrt(2 / pi)
        return (x.scaled_exactly(0.5) * (inner.tanh() + 1.0),)
    return (x.scaled_exactly(0.5) * ((x * sqrt(0.5)).erf() + 1.0),)


def _softplus_of(x: Bounded) -> Bounded:
    """log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|))."""
    return x.clamp(0.0, None) + (-x.abs()).exp().log1p()


def _softplus(call: FormulaCall) -> tuple[Bounded, ...]:
    x, beta = call.value("self"), call.number("beta", 1.0)
    scaled = x if beta == 1.0 else x * beta
    smooth = _softplus_of(scaled) if beta == 1.0 else _softplus_of(scaled) / beta
    return (x.where(scaled.value > call.number("threshold", 20.0), smooth),)


def _log_sigmoid(call: FormulaCall) -> tuple[Bounded | None, ...]:
    result = -_softplus_of(-call.value("self"))
    return (result, None)


def _mish(call: FormulaCall) -> tuple[Bounded, ...]:
    x = call.value("self")
    return (x * _softplus_of(x).tanh(),)


def _elu_of(x: Bounded, alpha: float, scale: float, input_scale: float) -> Bounded:
    inner = x if input_scale == 1.0 else x * input_scale
    negative = inner.clamp(None, 0.0).expm1() * (alpha * scale)
    return (x if scale == 1.0 else x * scale).where(x.value > 0, negative)


def _elu(call: FormulaCall) -> tuple[Bounded, ...]:
    numbers = (call.number("alpha", 1.0), call.number("scale", 1.0), call.number("input_scale", 1.0))
    return (_elu_of(call.value("self"), *numbers),)


def _selu(call: FormulaCall) -> tuple[Bounded, ...]:
    return (_elu_of(call.value("self"), _SELU_ALPHA, _SELU_SCALE, 1.0),)


def _celu(call: FormulaCall) -> tuple[Bounded, ...]:
    alpha = call.number("alpha", 1.0)
    return (_elu_of(call.value("self"), alpha, 1.0, 1.0 / alpha),)


def _hardsigmoid_of(x: Bounded) -> Bounded:
    return (x + 3.0).clamp(0.0, 6.0) / 6.0


def _hardsigmoid(call: FormulaCall) -> tuple[Bounded, ...]:
    return (_hardsigmoid_of(call.value("self")),)


def _hardswish(call: FormulaCall) -> tuple[Bounded, ...]:
    x = call.value("self")
    return (x * _hardsigmoid_of(x),)


def _glu(call: FormulaCall) -> tuple[Bounded, ...]:
    x = call.value("self")
    dim = int(call.number("dim", -1))
    half = x.value.shape[dim] // 2
    left, right = (x.apply(lambda tensor, s=start: tensor.narrow(dim, s, half)) for start in (0, half))
    return (left * sigmoid_of(right),)


def _softsign(call: FormulaCall) -> tuple[Bounded, ...]:
    x = call.value("self")
    return (x / (x.abs() + 1.0),)


def _tanhshrink(call: FormulaCall) -> tuple[Bounded, ...]:
    x = call.value("self")
    return (x - x.tanh(),)


def _logit(call: FormulaCall) -> tuple[Bounded, ...]:
    x = call.value("self")
    if call.bound.get("eps") is not None:
        eps = call.number("eps", 0.0)
        x = x.clamp(eps, 1 - eps)
    return ((x / (-x + 1.0)).log(),)


FORMULAS: dict[str, Formula] = {
    "sigmoid": _sigmoid,
    "special_expit": _sigmoid,
    "silu": _silu,
    "gelu": _gelu,
    "softplus": _softplus,
    "log_sigmoid": _log_sigmoid,
    "log_sigmoid_forward": _log_sigmoid,
    "mish": _mish,
    "elu": _elu,
    "selu": _selu,
    "celu": _celu,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "glu": _glu,
    "softsign": _softsign,
    "tanhshrink": _tanhshrink,
    "logit": _logit,
    "special_logit": _logit,
}
