"""Arithmetic of a few terms, where a scale or a second product can cancel: add with alpha, lerp, addcmul …"""

from __future__ import annotations

from math import pi

import torch

from tapestry.numerics.bounded import Bounded
from tapestry.numerics.formulas.call import Formula, FormulaCall


def _scaled(x: Bounded, factor: float) -> Bounded:
    return x if factor == 1.0 else x * x.arithmetic.exact(torch.tensor(factor, dtype=torch.float64))


def _has_complex(call: FormulaCall) -> bool:
    complex_number = any(isinstance(value, complex) for value in call.bound.values())
    return complex_number or any(
        isinstance(value, torch.Tensor) and value.is_complex() for value in call.bound.values()
    )


def _add(call: FormulaCall) -> tuple[Bounded, ...] | None:
    if _has_complex(call):
        return None
    return (call.value("self") + _scaled(call.value("other"), call.number("alpha", 1.0)),)


def _sub(call: FormulaCall) -> tuple[Bounded, ...] | None:
    if _has_complex(call):
        return None
    return (call.value("self") - _scaled(call.value("other"), call.number("alpha", 1.0)),)


def _rsub(call: FormulaCall) -> tuple[Bounded, ...] | None:
    if _has_complex(call):
        return None
    return (call.value("other") - _scaled(call.value("self"), call.number("alpha", 1.0)),)


def _addcmul(call: FormulaCall) -> tuple[Bounded, ...]:
    product = call.value("tensor1") * call.value("tensor2")
    return (call.value("self") + _scaled(product, call.number("value", 1.0)),)


def _addcdiv(call: FormulaCall) -> tuple[Bounded, ...]:
    ratio = call.value("tensor1") / call.value("tensor2")
    return (call.value("self") + _scaled(ratio, call.number("value", 1.0)),)


def _lerp(call: FormulaCall) -> tuple[Bounded, ...]:
    start, end, weight = call.value("self"), call.value("end"), call.value("weight")
    low = start + weight * (end - start)
    high = end - (end - start) * (-weight + 1.0)
    return (low.where(weight.value.abs() < 0.5, high),)


def _logaddexp(call: FormulaCall) -> tuple[Bounded, ...]:
    left, right = call.value("self"), call.value("other")
    gap = (left - right).abs()
    return (left.maximum(right) + (-gap).exp().log1p_by_log(),)


def _logaddexp2(call: FormulaCall) -> tuple[Bounded, ...]:
    left, right = call.value("self"), call.value("other")
    small = ((-(left - right).abs()).exp2()).log1p_by_log() * 1.4426950408889634  # 1 / log 2
    return (left.maximum(right) + small,)


def _sinc(call: FormulaCall) -> tuple[Bounded, ...] | None:
    if _has_complex(call):
        return None
    angle = call.value("self") * pi
    one = angle.arithmetic.exact(torch.ones((), dtype=torch.float64))
    return (one.where(angle.value == 0, angle.sin() / angle),)


def _ldexp(call: FormulaCall) -> tuple[Bounded, ...] | None:
    if _has_complex(call):
        return None
    return (call.value("self") * call.value("other").exp2(),)


def _cross(call: FormulaCall) -> tuple[Bounded, ...] | None:
    left, right = call.value("self"), call.value("other")
    if _has_complex(call) or left.value.dim() != right.value.dim():
        return None
    shape = torch.broadcast_shapes(left.value.shape, right.value.shape)
    given = call.bound.get("dim")
    dim = int(given) if isinstance(given, int) else shape.index(3)

    def turned(x: Bounded, steps: int) -> Bounded:
        return x.apply(lambda tensor: tensor.expand(shape).roll(steps, dim))

    return (turned(left, -1) * turned(right, -2) - turned(left, -2) * turned(right, -1),)


FORMULAS: dict[str, Formula] = {
    "add": _add,
    "sub": _sub,
    "subtract": _sub,
    "rsub": _rsub,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "lerp": _lerp,
    "logaddexp": _logaddexp,
    "logaddexp2": _logaddexp2,
    "sinc": _sinc,
    "special_sinc": _sinc,
    "ldexp": _ldexp,
    "cross": _cross,
    "linalg_cross": _cross,
}
