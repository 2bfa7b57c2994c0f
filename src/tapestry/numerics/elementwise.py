"""Elementwise operators: which accuracy each has, and where its result jumps. Inputs are taken as exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tapestry.numerics.accuracy import CORRECT, FUNCTIONS, TWO_STEPS, UNKNOWN, Accuracy, Model
from tapestry.numerics.arguments import names
from tapestry.numerics.bounded import Arithmetic, Bounded, power_slack
from tapestry.numerics.facts import CallFacts

#: Operators that are one function of the accuracy table under another name.
_AS = {
    "multiply": "mul", "divide": "div", "true_divide": "div", "arctan": "atan", "arcsin": "asin", "arccos": "acos",
    "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "special_erf": "erf",
    "special_erfc": "erfc", "special_exp2": "exp2", "special_expm1": "expm1", "special_log1p": "log1p",
    "float_power": "pow", "_add_relu": "add", "special_round": "round",
}  # fmt: skip
#: One rounding of an exact result.
_CORRECT = names("""
    square leaky_relu prelu _prelu_kernel softshrink frac
    threshold_backward masked_scale dequantize quantized_decomposed::dequantize_per_tensor""")
_TWO_STEPS = names("xlogy special_xlogy entr special_entr complex polar rrelu rrelu_with_noise native_dropout_backward")
#: Functions with zeros that are not at 0, or computed by long series: relative, and absolute near those zeros.
_SERIES = names("""
    lgamma digamma mvlgamma special_multigammaln special_gammaln special_digamma special_psi zeta
    special_zeta i0 special_i0 special_i0e special_i1 special_i1e erfinv special_erfinv special_erfcx special_ndtr
    special_ndtri special_log_ndtr special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
    gamma igamma igammac special_gammainc special_gammaincc special_xlog1py
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
    special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_airy_ai
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_legendre_polynomial_p
    special_laguerre_polynomial_l""")
_SERIES_ACCURACY = Accuracy(Model(32.0, absolute=2.0**-20), Model(64.0, absolute=2.0**-19))
#: A constant of the operator, rounded, times the operand.
_BY_CONSTANT = names("deg2rad rad2deg")
#: Powers that a careful implementation multiplies out.
_LARGEST_PRODUCT = 64.0
_PLAIN_POWERS = {2.0: CORRECT, 3.0: TWO_STEPS, 1.0: CORRECT, 0.0: CORRECT, -1.0: FUNCTIONS["reciprocal"],
                 -2.0: Accuracy(Model(1.5), Model(4.0)), 0.5: FUNCTIONS["sqrt"], -0.5: FUNCTIONS["rsqrt"]}  # fmt: skip


def known(facts: CallFacts) -> bool:
    """Whether the operator has a line of its own here."""
    tables = (FUNCTIONS, _AS, _CORRECT, _TWO_STEPS, _BY_CONSTANT, _SERIES, _JUMPS)
    return facts.name == "angle" or any(facts.name in table for table in tables)


def bound(facts: CallFacts, want: Tensor, unit: float, stored: float, column: str) -> Tensor:
    """What each element may be off by in the ``careful`` or ``allowed`` column, before rounding to a narrower dtype.

    ``unit`` is the roundoff computed in, ``stored`` that of the declared dtype, in which a quotient may be rounded.
    """
    name = _AS.get(facts.name, facts.name)
    jump = _JUMPS.get(name)
    if jump is not None and not (name == "div" and facts.bound.get("rounding_mode") is None):
        own = CORRECT.careful.error(want, None, unit)
        return own + jump(facts, want, max(unit, stored)) if column == "allowed" else own
    model: Model = getattr(_accuracy(facts), column)
    operand = facts.wide.get("self") if _depends_on_x(model) else None
    x = operand.to(torch.float64) if isinstance(operand, Tensor) and not operand.is_complex() else None
    error = model.error(want, x, unit)
    inherited = _INHERITED.get(name)
    if inherited is None or column != "allowed" or facts.has_complex:
        return error
    return torch.maximum(error, inherited(facts, want, unit))


def _accuracy(facts: CallFacts) -> Accuracy:
    name = _AS.get(facts.name, facts.name)
    if name == "angle":  # of a real number: 0 or pi
        return FUNCTIONS["atan2"] if facts.has_complex else CORRECT
    if name == "pow":
        return _power(_exponent(facts))
    if name in FUNCTIONS:
        return _complex_or(FUNCTIONS[name], facts)
    if name in _CORRECT:
        return _complex_or(CORRECT, facts)
    if name in _BY_CONSTANT:
        return TWO_STEPS
    if name in _TWO_STEPS:
        return Accuracy(Model(8.0), Model(8.0, absolute=2.0**-11)) if name == "polar" else \
            Accuracy(Model(5.0), Model(5.0, absolute=2.0**-21))  # fmt: skip
    return _SERIES_ACCURACY if name in _SERIES else UNKNOWN


def _complex_or(real: Accuracy, facts: CallFacts) -> Accuracy:
    """Complex arithmetic is judged by the modulus: a few real operations each."""
    if not any(isinstance(value, Tensor) and value.is_complex() for value in facts.bound.values()):
        return real
    return Accuracy(*(replace(model, ulps=4 * model.ulps + 4) for model in (real.careful, real.allowed)))


def _depends_on_x(model: Model) -> bool:
    return bool(model.ulps_per_x or model.absolute)


def _exponent(facts: CallFacts) -> float:
    value = facts.wide.get("exponent")
    return float(value) if isinstance(value, int | float) else torch.nan


def _is_multiplied_out(exponent: float) -> bool:
    """Whether a power is to be had by products: known while compiling, and not large."""
    return exponent in _PLAIN_POWERS or (exponent.is_integer() and abs(exponent) <= _LARGEST_PRODUCT)


def _power(exponent: float) -> Accuracy:
    if exponent in _PLAIN_POWERS or not _is_multiplied_out(exponent):
        return _PLAIN_POWERS.get(exponent, FUNCTIONS["pow"])
    return Accuracy(*(Model(max(16.0, abs(exponent) / 2)),) * 2)  # n - 1 roundings


def _power_by_logarithm(facts: CallFacts, want: Tensor, unit: float) -> Tensor:
    """exp2(y log2 x), on top of a careful power's own error."""
    if _is_multiplied_out(_exponent(facts)):
        return torch.zeros((), dtype=torch.float64)
    base, exponent = (torch.as_tensor(facts.wide[name], dtype=torch.float64) for name in ("self", "exponent"))
    slack = power_slack(base, exponent, unit) + 2 * unit * FUNCTIONS["pow"].allowed.ulps
    return (want.abs() * slack).nan_to_num(nan=0.0, posinf=0.0)


def _tan_by_sin_and_cos(facts: CallFacts, want: Tensor, unit: float) -> Tensor:
    x = _exact_operand(facts, unit)
    return (x.sin() / x.cos()).bound


def _acosh_by_log(facts: CallFacts, want: Tensor, unit: float) -> Tensor:
    x = _exact_operand(facts, unit)
    return (x + (x * x - 1.0).sqrt()).log().bound


def _exact_operand(facts: CallFacts, unit: float) -> Bounded:
    operand = torch.as_tensor(facts.wide["self"], dtype=torch.float64)
    return Arithmetic(unit, "allowed").exact(operand)


#: What a specification defines by another expression: WGSL's accuracy "inherited from".
_INHERITED: dict[str, Callable[[CallFacts, Tensor, float], Tensor]] = {
    "pow": _power_by_logarithm,
    "tan": _tan_by_sin_and_cos,
    "acosh": _acosh_by_log,
}


def _near_whole(quotient: Tensor, unit: float) -> Tensor:
    return (quotient - quotient.round()).abs() <= 8 * unit * quotient.abs().clamp(min=2.0**-126)


def _operands(facts: CallFacts) -> tuple[Tensor, Tensor]:
    left, right = (torch.as_tensor(facts.wide[name], dtype=torch.float64) for name in ("self", "other"))
    return left, right


def _whole_jump(facts: CallFacts, want: Tensor, unit: float) -> Tensor:
    """A quotient within rounding of a whole number may land on either side of it."""
    left, right = _operands(facts)
    quotient = left / right
    return torch.where(_near_whole(quotient, unit), 1.0, 0.0) + (4 * unit * quotient.abs()).nan_to_num(posinf=0.0)


def _remainder_jump(facts: CallFacts, want: Tensor, unit: float) -> Tensor:
    """WGSL's own definition, x - y * trunc(x / y): rounds at the size of x, and may be off by one y."""
    left, right = _operands(facts)
    return torch.where(_near_whole(left / right, unit), right.abs(), 0.0) + 2 * unit * left.abs()


def _decimal_jump(facts: CallFacts, want: Tensor, unit: float) -> Tensor:
    decimals = facts.bound.get("decimals", 0)
    if not isinstance(decimals, int) or decimals == 0:
        return torch.zeros_like(want)
    scaled = torch.as_tensor(facts.wide["self"], dtype=torch.float64) * 10.0**decimals
    near_half = ((scaled - scaled.floor()) - 0.5).abs() <= 8 * unit * scaled.abs()
    return torch.where(near_half, 10.0**-decimals, 0.0) + 4 * unit * want.abs()


_JUMPS: dict[str, Callable[[CallFacts, Tensor, float], Tensor]] = {
    "floor_divide": _whole_jump,
    "div": _whole_jump,
    "remainder": _remainder_jump,
    "fmod": _remainder_jump,
    "round": _decimal_jump,
}
