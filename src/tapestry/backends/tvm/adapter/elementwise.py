"""Elementwise operators in Relax: arithmetic, comparisons, logic, functions.

Each converter says what TVM's own does wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from tvm import relax

from tapestry.backends.tvm.adapter.values import Converter, Node, R, argument, cast, dtype_of, name, operand
from tapestry.errors import UnsupportedError


def unary(op: Callable[[Any], Any]) -> Converter:
    """An elementwise function. TVM's own computes integer inputs as integers, and 16-bit floats in 16 bits."""

    def convert(imp: Any, node: Node) -> Any:
        dtype = dtype_of(node)
        return cast(imp, imp.block_builder.emit(op(operand(imp, node.args[0], dtype))), dtype_of(node))

    return convert


def predicate(op: Callable[[Any], Any]) -> Converter:
    """A test for NaN or infinity; integers have none."""

    def convert(imp: Any, node: Node) -> Any:
        value = node.args[0].meta["val"]
        dtype = value.dtype if value.dtype.is_floating_point else torch.float32
        return op(operand(imp, node.args[0], dtype))

    return convert


def binary(op: Callable[[Any, Any], Any]) -> Converter:
    """Arithmetic. TVM's own drops ``alpha`` and promotes 0-d tensors and Python floats beside integers wrongly."""

    def convert(imp: Any, node: Node) -> Any:
        dtype = dtype_of(node)
        left, right = (operand(imp, value, dtype) for value in node.args[:2])
        alpha = argument(node, 2, "alpha", 1)
        if alpha != 1:
            right = imp.block_builder.emit(R.multiply(right, operand(imp, alpha, dtype)))
        return cast(imp, imp.block_builder.emit(op(left, right)), dtype_of(node))

    return convert


def compare(op: Callable[[Any, Any], Any]) -> Converter:
    """A comparison in the type that torch promotes both sides to."""

    def convert(imp: Any, node: Node) -> Any:
        values = [value.meta["val"] if isinstance(value, fx.Node) else value for value in node.args[:2]]
        dtype = torch.result_type(*values)
        dtype = torch.uint8 if dtype == torch.bool else dtype
        return op(*(operand(imp, value, dtype) for value in node.args[:2]))

    return convert


def logical(op: Callable[..., Any]) -> Converter:
    """A logical operator on truth values."""

    def convert(imp: Any, node: Node) -> Any:
        return op(*(operand(imp, value, torch.bool) for value in node.args))

    return convert


def bitwise(on_integers: Callable[..., Any], on_bools: Callable[..., Any]) -> Converter:
    """A bitwise operator; on bool it is the logical one."""

    def convert(imp: Any, node: Node) -> Any:
        dtype = dtype_of(node)
        op = on_bools if dtype == torch.bool else on_integers
        return op(*(operand(imp, value, dtype) for value in node.args))

    return convert


def _keeping_nan(value: Any, result: Any) -> Any:
    """``result``, which TVM computes without regard to NaN, where ``value`` is a number, else ``value``.

    One test around minima and maxima: nested selections cost TVM's simplifier exponential time.
    """
    if "float" not in str(value.ty.dtype):
        return result
    return R.where(R.isnan(value), value, result)


def larger(left: Any, right: Any) -> Any:
    """The larger of two; NaN when either is. TVM's maximum returns the other operand beside NaN."""
    return _keeping_nan(right, _keeping_nan(left, R.maximum(left, right)))


def smaller(left: Any, right: Any) -> Any:
    """The smaller of two; NaN when either is."""
    return _keeping_nan(right, _keeping_nan(left, R.minimum(left, right)))


def _relu(imp: Any, node: Node) -> Any:
    """TVM's own loses NaN."""
    value = imp.env[node.args[0]]
    return _keeping_nan(value, R.maximum(value, relax.const(0, str(value.ty.dtype))))


def _clamp(imp: Any, node: Node) -> Any:
    """TVM's own loses NaN, and takes no tensors as bounds."""
    dtype = dtype_of(node)
    value = operand(imp, node.args[0], dtype)
    result = value
    for position, key, pick, beside in ((1, "min", R.maximum, larger), (2, "max", R.minimum, smaller)):
        bound = argument(node, position, key)
        if bound is not None:
            choose = beside if isinstance(bound, fx.Node) else pick
            result = imp.block_builder.emit(choose(result, operand(imp, bound, dtype)))
    return _keeping_nan(value, result)


def _where(imp: Any, node: Node) -> Any:
    """TVM's own does not promote the branches."""
    dtype = dtype_of(node)
    condition, yes, no = node.args
    return R.where(operand(imp, condition, torch.bool), operand(imp, yes, dtype), operand(imp, no, dtype))


def _pow(imp: Any, node: Node) -> Any:
    """Small whole exponents are products: a shader's pow is exp(b·log(a)), inexact, and NaN for a < 0."""
    dtype = dtype_of(node)
    base, exponent = node.args
    emit = imp.block_builder.emit
    if isinstance(exponent, int | float) and _is_product(exponent, dtype):
        return cast(imp, _product(imp, operand(imp, base, dtype), int(exponent)), dtype_of(node))
    if exponent == 0.5:
        return cast(imp, emit(R.sqrt(operand(imp, base, dtype))), dtype_of(node))
    if not dtype.is_floating_point:
        raise UnsupportedError(f"TVM has no integer power with exponent {exponent}")
    result = emit(R.power(operand(imp, base, dtype), operand(imp, exponent, dtype)))
    return cast(imp, result, dtype_of(node))


def _is_product(exponent: float, dtype: torch.dtype) -> bool:
    return float(exponent).is_integer() and exponent >= 1 and (exponent <= 4 or not dtype.is_floating_point)


def _product(imp: Any, value: Any, exponent: int) -> Any:
    """``value`` to a whole power of at least 1, by squaring."""
    result = None
    while exponent:
        if exponent & 1:
            result = value if result is None else imp.block_builder.emit(R.multiply(result, value))
        exponent >>= 1
        if exponent:
            value = imp.block_builder.emit(R.multiply(value, value))
    return result


def _remainder(imp: Any, node: Node) -> Any:
    """The remainder with the divisor's sign. On floats TVM's own is a − floor(a/b)·b, inexact for large quotients."""
    dtype = dtype_of(node)
    left, right = (operand(imp, value, dtype) for value in node.args[:2])
    if not dtype.is_floating_point:
        return R.floor_mod(left, right)
    rest = imp.block_builder.emit(R.mod(left, right))
    zero = relax.const(0.0, name(imp, dtype))
    opposite = R.not_equal(R.less(rest, zero), R.less(right, zero))
    return R.where(R.logical_and(R.not_equal(rest, zero), opposite), R.add(rest, right), rest)


def _negative(imp: Any, node: Node) -> Any:
    """As a difference: TVM's own multiplies by −1, which unsigned integers do not have."""
    value = imp.env[node.args[0]]
    if not dtype_of(node).is_signed:
        return R.subtract(relax.const(0, str(value.ty.dtype)), value)
    return R.negative(value)


def _divide_mode(imp: Any, node: Node) -> Any:
    """Division with rounding. On integers TVM's own divides as floats."""
    dtype = dtype_of(node)
    left, right = (operand(imp, value, dtype) for value in node.args[:2])
    mode = node.kwargs.get("rounding_mode")
    emit = imp.block_builder.emit
    if mode == "floor":
        result = R.floor_divide(left, right)
    elif mode is None:
        result = R.divide(left, right)
    elif dtype.is_floating_point:
        result = R.trunc(emit(R.divide(left, right)))
    else:
        floored = emit(R.floor_divide(left, right))
        inexact = R.not_equal(R.multiply(floored, right), left)
        negative = R.less(floored, relax.const(0, name(imp, dtype)))
        result = R.where(R.logical_and(inexact, negative), R.add(floored, relax.const(1, name(imp, dtype))), floored)
    return cast(imp, emit(result), dtype_of(node))


def _log1p(value: Any) -> Any:
    """log(1 + x) = 2·artanh(x / (2 + x)), by its series below ½. TVM's own takes log(1 + x), wrong near 0.

    (Kahan's correction by (1 + x) − 1 does not survive: TVM simplifies that to x.)
    """
    kind = str(value.ty.dtype)
    ratio = R.divide(value, R.add(value, relax.const(2.0, kind)))
    square = R.multiply(ratio, ratio)
    terms = 18 if kind == "float64" else 9
    series = R.full_like(value, relax.const(1.0 / (2 * terms + 1), kind))
    for term in range(terms - 1, -1, -1):
        series = R.add(relax.const(1.0 / (2 * term + 1), kind), R.multiply(square, series))
    small = R.less(R.abs(value), relax.const(0.5, kind))
    near = R.multiply(R.multiply(relax.const(2.0, kind), ratio), series)
    return R.where(small, near, R.log(R.add(value, relax.const(1.0, kind))))


def _expm1(value: Any) -> Any:
    """exp(x) − 1 that is right near 0: x·(1 + x/2·(1 + x/3·(…))) below ½. TVM's own subtracts."""
    kind = str(value.ty.dtype)
    terms = 18 if kind == "float64" else 10
    series = R.ones_like(value)
    for term in range(terms, 1, -1):
        series = R.add(relax.const(1.0, kind), R.multiply(R.multiply(value, relax.const(1.0 / term, kind)), series))
    small = R.less(R.abs(value), relax.const(0.5, kind))
    return R.where(small, R.multiply(value, series), R.subtract(R.exp(value), relax.const(1.0, kind)))


def _shift(op: Callable[[Any, Any], Any]) -> Converter:
    """A shift by a tensor or a number. TVM's importer has none."""

    def convert(imp: Any, node: Node) -> Any:
        dtype = dtype_of(node)
        return op(*(operand(imp, value, dtype) for value in node.args[:2]))

    return convert


_UNARY = {
    "abs": R.abs, "acos": R.acos, "acosh": R.acosh, "asin": R.asin, "asinh": R.asinh, "atan": R.atan,
    "atanh": R.atanh, "ceil": R.ceil, "cos": R.cos, "cosh": R.cosh, "erf": R.erf, "exp": R.exp,
    "exp2": lambda x: R.power(relax.const(2.0, str(x.ty.dtype)), x), "expm1": _expm1, "log1p": _log1p, "floor": R.floor,
    "log": R.log, "rsqrt": R.rsqrt, "sigmoid": R.sigmoid, "sign": R.sign, "sin": R.sin,
    "sinh": R.sinh, "sqrt": R.sqrt, "tan": R.tan, "tanh": R.tanh, "trunc": R.trunc,
}  # fmt: skip
_COMPARE = {
    "eq": R.equal, "ge": R.greater_equal, "gt": R.greater, "le": R.less_equal, "lt": R.less, "ne": R.not_equal,
}  # fmt: skip

_SHIFTS = {
    "bitwise_left_shift": ("Tensor", "Tensor_Scalar"),
    "bitwise_right_shift": ("Tensor", "Tensor_Scalar"),
    "__lshift__": ("Tensor", "Scalar"),
    "__rshift__": ("Tensor", "Scalar"),
}

#: By the name that TVM's importer uses.
ELEMENTWISE: dict[str, Converter] = {
    **{f"{key}.default": unary(op) for key, op in _UNARY.items()},
    **{f"{key}.{kind}": compare(op) for key, op in _COMPARE.items() for kind in ("Tensor", "Scalar")},
    **{f"add.{kind}": binary(R.add) for kind in ("Tensor", "Scalar")},
    **{f"sub.{kind}": binary(R.subtract) for kind in ("Tensor", "Scalar")},
    **{f"mul.{kind}": binary(R.multiply) for kind in ("Tensor", "Scalar")},
    **{f"div.{kind}": binary(R.divide) for kind in ("Tensor", "Scalar")},
    **{f"remainder.{kind}": _remainder for kind in ("Tensor", "Scalar")},
    "neg.default": _negative,
    "atan2.default": binary(R.atan2),
    "maximum.default": binary(larger),
    "minimum.default": binary(smaller),
    "div.Tensor_mode": _divide_mode,
    "div.Scalar_mode": _divide_mode,
    "reciprocal.default": unary(lambda value: R.divide(relax.const(1.0, str(value.ty.dtype)), value)),
    "logical_and.default": logical(R.logical_and),
    "logical_or.default": logical(R.logical_or),
    "logical_xor.default": logical(R.not_equal),
    "logical_not.default": logical(R.logical_not),
    **{f"bitwise_and.{kind}": bitwise(R.bitwise_and, R.logical_and) for kind in ("Tensor", "Scalar")},
    **{f"bitwise_or.{kind}": bitwise(R.bitwise_or, R.logical_or) for kind in ("Tensor", "Scalar")},
    **{f"bitwise_xor.{kind}": bitwise(R.bitwise_xor, R.not_equal) for kind in ("Tensor", "Scalar")},
    "bitwise_not.default": bitwise(R.bitwise_not, R.logical_not),
    **{f"{key}.{kind}": _shift(R.left_shift) for key in ("bitwise_left_shift", "__lshift__") for kind in _SHIFTS[key]},
    **{
        f"{key}.{kind}": _shift(R.right_shift) for key in ("bitwise_right_shift", "__rshift__") for kind in _SHIFTS[key]
    },
    "isnan.default": predicate(R.isnan),
    "isinf.default": predicate(R.isinf),
    "relu.default": _relu,
    "clamp.default": _clamp,
    "clamp.Tensor": _clamp,
    "where.self": _where,
    "pow.Tensor_Scalar": _pow,
    "pow.Tensor_Tensor": _pow,
    "pow.Scalar": _pow,
}
