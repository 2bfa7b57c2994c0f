"""Converters of ours for operators that TVM's importer gets wrong: one function per operator, FX node to Relax.

Each says what TVM's own does. A converter reads the result's dtype from ``meta["val"]``: inputs are brought to the
type eager computes in (float32 for the 16-bit types) and the result to the type eager returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from tvm import relax

from tapestry.errors import UnsupportedError

R = relax.op

Converter = Callable[[Any, fx.Node], Any]


def dtype_of(node: fx.Node) -> torch.dtype:
    """The dtype that eager gives the node's result."""
    return node.meta["val"].dtype


def name(dtype: torch.dtype) -> str:
    """TVM's name of a torch dtype."""
    return str(dtype).removeprefix("torch.")


def computing(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in for results of ``dtype``."""
    return torch.float32 if dtype in {torch.float16, torch.bfloat16} else dtype


def argument(node: fx.Node, position: int, key: str, default: Any = None) -> Any:
    """An argument given by position or by keyword."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(key, default)


def cast(imp: Any, value: Any, dtype: torch.dtype) -> Any:
    """``value`` as ``dtype``; bool from a number is "not zero", as in torch."""
    have = str(value.ty.dtype)
    if have == name(dtype):
        return value
    if dtype == torch.bool:
        return imp.block_builder.emit(R.not_equal(value, relax.const(0, have)))
    return imp.block_builder.emit(R.astype(value, name(dtype)))


def operand(imp: Any, value: Any, dtype: torch.dtype) -> Any:
    """A tensor or Python number as a Relax value of ``dtype``."""
    if isinstance(value, fx.Node):
        return cast(imp, imp.env[value], dtype)
    if dtype.is_floating_point:
        return relax.const(float(value), name(dtype))
    return relax.const(bool(value) if dtype == torch.bool else int(value), name(dtype))


def unary(op: Callable[[Any], Any]) -> Converter:
    """An elementwise function. TVM's own computes integer inputs as integers, and 16-bit floats in 16 bits."""

    def convert(imp: Any, node: fx.Node) -> Any:
        dtype = computing(dtype_of(node))
        return cast(imp, imp.block_builder.emit(op(operand(imp, node.args[0], dtype))), dtype_of(node))

    return convert


def predicate(op: Callable[[Any], Any]) -> Converter:
    """A test for NaN or infinity; integers have none."""

    def convert(imp: Any, node: fx.Node) -> Any:
        value = node.args[0].meta["val"]  # pyright: ignore
        dtype = computing(value.dtype) if value.dtype.is_floating_point else torch.float32
        return op(operand(imp, node.args[0], dtype))

    return convert


def binary(op: Callable[[Any, Any], Any]) -> Converter:
    """Arithmetic. TVM's own drops ``alpha`` and promotes 0-d tensors and Python floats beside integers wrongly."""

    def convert(imp: Any, node: fx.Node) -> Any:
        dtype = computing(dtype_of(node))
        left, right = (operand(imp, value, dtype) for value in node.args[:2])
        alpha = argument(node, 2, "alpha", 1)
        if alpha != 1:
            right = imp.block_builder.emit(R.multiply(right, operand(imp, alpha, dtype)))
        return cast(imp, imp.block_builder.emit(op(left, right)), dtype_of(node))

    return convert


def compare(op: Callable[[Any, Any], Any]) -> Converter:
    """A comparison in the type that torch promotes both sides to."""

    def convert(imp: Any, node: fx.Node) -> Any:
        values = [value.meta["val"] if isinstance(value, fx.Node) else value for value in node.args[:2]]
        dtype = torch.result_type(*values)
        dtype = torch.uint8 if dtype == torch.bool else computing(dtype)
        return op(*(operand(imp, value, dtype) for value in node.args[:2]))

    return convert


def logical(op: Callable[..., Any]) -> Converter:
    """A logical operator on truth values."""

    def convert(imp: Any, node: fx.Node) -> Any:
        return op(*(operand(imp, value, torch.bool) for value in node.args))

    return convert


def bitwise(on_integers: Callable[..., Any], on_bools: Callable[..., Any]) -> Converter:
    """A bitwise operator; on bool it is the logical one."""

    def convert(imp: Any, node: fx.Node) -> Any:
        dtype = dtype_of(node)
        op = on_bools if dtype == torch.bool else on_integers
        return op(*(operand(imp, value, dtype) for value in node.args))

    return convert


def _is_nan(value: Any) -> Any:
    """TVM folds ``x != x`` to false, so the test must be the named one; integers are never NaN."""
    if "float" not in str(value.ty.dtype):
        return R.zeros(value.ty.shape, "bool")
    return R.isnan(value)


def larger(left: Any, right: Any) -> Any:
    """The larger of two; NaN when either is. TVM's maximum returns the other operand beside NaN."""
    return R.where(R.logical_or(R.greater(left, right), _is_nan(left)), left, right)


def smaller(left: Any, right: Any) -> Any:
    """The smaller of two; NaN when either is."""
    return R.where(R.logical_or(R.less(left, right), _is_nan(left)), left, right)


def _relu(imp: Any, node: fx.Node) -> Any:
    """TVM's own loses NaN."""
    value = imp.env[node.args[0]]
    zero = relax.const(0, str(value.ty.dtype))
    return R.where(R.less(value, zero), R.zeros_like(value), value)


def _clamp(imp: Any, node: fx.Node) -> Any:
    """TVM's own loses NaN, and takes no tensors as bounds."""
    dtype = dtype_of(node)
    value = operand(imp, node.args[0], dtype)
    for position, key, pick in ((1, "min", larger), (2, "max", smaller)):
        bound = argument(node, position, key)
        if bound is not None:
            value = imp.block_builder.emit(pick(value, operand(imp, bound, dtype)))
    return value


def _where(imp: Any, node: fx.Node) -> Any:
    """TVM's own does not promote the branches."""
    dtype = dtype_of(node)
    condition, yes, no = node.args
    return R.where(operand(imp, condition, torch.bool), operand(imp, yes, dtype), operand(imp, no, dtype))


def _pow(imp: Any, node: fx.Node) -> Any:
    """Small whole exponents are products: a shader's pow is exp(b·log(a)), inexact, and NaN for a < 0."""
    dtype = computing(dtype_of(node))
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


def _matmul(imp: Any, node: fx.Node) -> Any:
    """TVM's own accumulates and returns float32 whatever the type."""
    dtype = dtype_of(node)
    wide = computing(dtype)
    left, right = (operand(imp, value, wide) for value in node.args[:2])
    return cast(imp, imp.block_builder.emit(R.matmul(left, right, out_dtype=name(wide))), dtype)


def _dims(node: fx.Node, position: int = 1) -> list[int] | None:
    dims = argument(node, position, "dim")
    if dims is None:
        return None
    found = [dims] if isinstance(dims, int) else list(dims)
    return found or None


def _reduce(imp: Any, node: fx.Node, op: Callable[..., Any], value: Any, keepdim_at: int = 2) -> Any:
    """``op`` over ``dim`` (none: all). Reducing everything goes over one row: the schedules want an outer loop."""
    emit = imp.block_builder.emit
    rank = len(value.ty.shape)
    dims = _dims(node) or list(range(rank))
    shape = [int(size) for size in node.meta["val"].shape]
    if len({dim % rank for dim in dims} if rank else []) == rank:
        return reshaped(imp, emit(op(reshaped(imp, value, [1, node.args[0].meta["val"].numel()]), [1])), shape)  # pyright: ignore
    return emit(op(value, dims, keepdims=bool(argument(node, keepdim_at, "keepdim", False))))


def reduction(op: Callable[..., Any]) -> Converter:
    """A sum, mean or product. TVM's own accumulates 16-bit floats in 16 bits."""

    def convert(imp: Any, node: fx.Node) -> Any:
        dtype = dtype_of(node)
        return cast(imp, _reduce(imp, node, op, operand(imp, node.args[0], computing(dtype))), dtype)

    return convert


def extremum(op: Callable[..., Any], start: float) -> Converter:
    """The largest or smallest; NaN when one is there. TVM's own loses NaN, and begins at the largest finite value.

    ``start`` is the infinity that a line of nothing else gives. One more reduction classes the entries.
    """

    def convert(imp: Any, node: fx.Node) -> Any:
        dtype = dtype_of(node)
        value = operand(imp, node.args[0], torch.uint8 if dtype == torch.bool else computing(dtype))
        result = _reduce(imp, node, op, value)
        if dtype.is_floating_point:
            kind = str(value.ty.dtype)
            nan, infinite = relax.const(float("nan"), kind), relax.const(start, kind)
            finite = R.astype(R.not_equal(value, infinite), "int32")
            classes = imp.block_builder.emit(R.add(finite, R.astype(R.isnan(value), "int32")))
            highest = _reduce(imp, node, R.max, classes)
            result = R.where(R.equal(highest, relax.const(0, "int32")), infinite, result)
            result = R.where(R.equal(highest, relax.const(2, "int32")), nan, result)
        return cast(imp, imp.block_builder.emit(result), dtype)

    return convert


def _any(imp: Any, node: fx.Node) -> Any:
    """As a maximum of 0 and 1. TVM's own returns numbers for numbers."""
    value = cast(imp, operand(imp, node.args[0], torch.bool), torch.int32)
    return cast(imp, _reduce(imp, node, R.max, value), torch.bool)


def _to_copy(imp: Any, node: fx.Node) -> Any:
    """TVM's own has float to bool as truncation."""
    return cast(imp, imp.env[node.args[0]], dtype_of(node))


def _softmax(imp: Any, node: fx.Node) -> Any:
    """TVM's own computes 16-bit floats in 16 bits, and fails on a 0-d tensor."""
    dtype = dtype_of(node)
    value = operand(imp, node.args[0], computing(dtype))
    if not node.meta["val"].dim():
        value = R.nn.softmax(imp.block_builder.emit(R.reshape(value, [1])), 0)
        return cast(imp, imp.block_builder.emit(R.reshape(imp.block_builder.emit(value), [])), dtype)
    return cast(imp, imp.block_builder.emit(R.nn.softmax(value, node.args[1])), dtype)


def _safe_softmax(imp: Any, node: fx.Node) -> Any:
    """softmax, with rows that are −inf throughout giving 0, as eager's masked attention does. TVM has none."""
    dtype = dtype_of(node)
    value = operand(imp, node.args[0], computing(dtype))
    shape = [int(size) for size in value.ty.shape]
    value = reshaped(imp, value, shape or [1])
    dim = int(node.args[1])  # pyright: ignore
    emit = imp.block_builder.emit
    kind = name(computing(dtype))
    kept = emit(R.astype(R.not_equal(value, relax.const(float("-inf"), kind)), "int32"))
    masked = R.equal(emit(R.max(kept, [dim], keepdims=True)), relax.const(0, "int32"))
    result = R.where(masked, relax.const(0.0, kind), emit(R.nn.softmax(value, dim)))
    return cast(imp, reshaped(imp, emit(result), shape), dtype)


def _log_softmax(imp: Any, node: fx.Node) -> Any:
    """TVM's own computes 16-bit floats in 16 bits."""
    dtype = dtype_of(node)
    value = operand(imp, node.args[0], computing(dtype))
    return cast(imp, imp.block_builder.emit(R.nn.log_softmax(value, node.args[1])), dtype)


def _index_select(imp: Any, node: fx.Node) -> Any:
    """TVM's own reads out of bounds for an index that is."""
    value, dim, index = node.args
    return R.take(imp.env[value], imp.env[index], axis=dim, mode="clip")


def _gather(imp: Any, node: fx.Node) -> Any:
    """TVM's own reads out of bounds for an index that is."""
    value, dim, index = node.args[:3]
    found = imp.env[index]
    if not node.meta["val"].dim():
        source, found = reshaped(imp, imp.env[value], [value.meta["val"].numel()]), reshaped(imp, found, [1])  # pyright: ignore
        taken = R.take(source, found, axis=0, mode="clip")
        return reshaped(imp, imp.block_builder.emit(taken), [])
    size = value.meta["val"].shape[dim]  # pyright: ignore
    dtype = str(found.ty.dtype)
    bounded = R.maximum(R.minimum(found, relax.const(size - 1, dtype)), relax.const(0, dtype))
    return R.gather_elements(imp.env[value], imp.block_builder.emit(bounded), axis=dim)


def _reshape(imp: Any, node: fx.Node) -> Any:
    """To the shape of the result, whatever the operator: view, unsqueeze, squeeze …"""
    return reshaped(imp, imp.env[node.args[0]], node.meta["val"].shape)


def reshaped(imp: Any, value: Any, shape: Any) -> Any:
    """``value`` in another shape; itself when it has that shape already."""
    want = [int(size) for size in shape]
    if [int(size) for size in value.ty.shape] == want:
        return value
    return imp.block_builder.emit(R.reshape(value, want))


def _expand(imp: Any, node: fx.Node) -> Any:
    """TVM's own leaves −1 to shape inference."""
    value = imp.env[node.args[0]]
    shape = [int(size) for size in node.meta["val"].shape]
    return value if [int(size) for size in value.ty.shape] == shape else R.broadcast_to(value, shape)


def _permute(imp: Any, node: fx.Node) -> Any:
    rank = node.meta["val"].dim()
    return R.permute_dims(imp.env[node.args[0]], [dim % rank for dim in node.args[1]]) if rank else imp.env[node.args[0]]


def _slice(imp: Any, node: fx.Node) -> Any:
    """TVM's own passes the largest integer as the end."""
    value = imp.env[node.args[0]]
    dim = argument(node, 1, "dim", 0)
    size = int(value.ty.shape[dim])
    start, end, step = (argument(node, 2, "start"), argument(node, 3, "end"), argument(node, 4, "step", 1))
    start, end, step = slice(start, end, step).indices(size)
    if (start, end, step) == (0, size, 1):
        return value
    return R.strided_slice(value, [dim], [start], [max(start, end)], [step])


def _cat(imp: Any, node: fx.Node) -> Any:
    """TVM's own does not promote."""
    dtype = dtype_of(node)
    rank = node.meta["val"].dim()
    parts = [operand(imp, part, dtype) for part in node.args[0]]
    return R.concat(parts, argument(node, 1, "dim", 0) % rank)


def _filled(value_at: Callable[[fx.Node], Any]) -> Converter:
    def convert(imp: Any, node: fx.Node) -> Any:
        dtype = dtype_of(node)
        value = operand(imp, value_at(node), dtype)
        shape = [int(size) for size in node.meta["val"].shape]
        return R.full(shape, value, name(dtype)) if shape else value

    return convert


def _same(imp: Any, node: fx.Node) -> Any:
    return imp.env[node.args[0]]


def _divide_mode(imp: Any, node: fx.Node) -> Any:
    """Division with rounding. On integers TVM's own divides as floats."""
    dtype = computing(dtype_of(node))
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
        negative = R.less(floored, relax.const(0, name(dtype)))
        result = R.where(R.logical_and(inexact, negative), R.add(floored, relax.const(1, name(dtype))), floored)
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

    def convert(imp: Any, node: fx.Node) -> Any:
        dtype = dtype_of(node)
        return op(*(operand(imp, value, dtype) for value in node.args[:2]))

    return convert


_UNARY = {
    "abs": R.abs, "acos": R.acos, "acosh": R.acosh, "asin": R.asin, "asinh": R.asinh, "atan": R.atan,
    "atanh": R.atanh, "ceil": R.ceil, "cos": R.cos, "cosh": R.cosh, "erf": R.erf, "exp": R.exp,
    "exp2": lambda x: R.power(relax.const(2.0, str(x.ty.dtype)), x), "expm1": _expm1, "log1p": _log1p, "floor": R.floor,
    "log": R.log, "neg": R.negative, "rsqrt": R.rsqrt, "sigmoid": R.sigmoid, "sign": R.sign, "sin": R.sin,
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

CONVERTERS: dict[str, Converter] = {
    **{f"{key}.default": unary(op) for key, op in _UNARY.items()},
    **{f"{key}.{kind}": compare(op) for key, op in _COMPARE.items() for kind in ("Tensor", "Scalar")},
    **{f"add.{kind}": binary(R.add) for kind in ("Tensor", "Scalar")},
    **{f"sub.{kind}": binary(R.subtract) for kind in ("Tensor", "Scalar")},
    **{f"mul.{kind}": binary(R.multiply) for kind in ("Tensor", "Scalar")},
    **{f"div.{kind}": binary(R.divide) for kind in ("Tensor", "Scalar")},
    **{f"remainder.{kind}": binary(R.floor_mod) for kind in ("Tensor", "Scalar")},
    "atan2.default": binary(R.atan2),
    "maximum.default": binary(larger),
    "minimum.default": binary(smaller),
    "div.Tensor_mode": _divide_mode,
    "div.Scalar_mode": _divide_mode,
    "reciprocal.default": unary(lambda value: R.divide(relax.const(1.0, str(value.ty.dtype)), value)),
    "logical_and.default": logical(R.logical_and),
    "logical_or.default": logical(R.logical_or),
    "logical_xor.default": logical(R.logical_xor),
    "logical_not.default": logical(R.logical_not),
    **{f"bitwise_and.{kind}": bitwise(R.bitwise_and, R.logical_and) for kind in ("Tensor", "Scalar")},
    **{f"bitwise_or.{kind}": bitwise(R.bitwise_or, R.logical_or) for kind in ("Tensor", "Scalar")},
    **{f"bitwise_xor.{kind}": bitwise(R.bitwise_xor, R.logical_xor) for kind in ("Tensor", "Scalar")},
    "bitwise_not.default": bitwise(R.bitwise_not, R.logical_not),
    **{f"{key}.{kind}": _shift(R.left_shift) for key in ("bitwise_left_shift", "__lshift__") for kind in _SHIFTS[key]},
    **{f"{key}.{kind}": _shift(R.right_shift) for key in ("bitwise_right_shift", "__rshift__") for kind in _SHIFTS[key]},
    "isnan.default": predicate(R.isnan),
    "isinf.default": predicate(R.isinf),
    "relu.default": _relu,
    "clamp.default": _clamp,
    "clamp.Tensor": _clamp,
    "where.self": _where,
    "pow.Tensor_Scalar": _pow,
    "pow.Tensor_Tensor": _pow,
    "pow.Scalar": _pow,
    "mm.default": _matmul,
    "bmm.default": _matmul,
    "sum.dim_IntList": reduction(R.sum),
    "mean.dim": reduction(R.mean),
    "mean.default": reduction(R.mean),
    "amax.default": extremum(R.max, float("-inf")),
    "amin.default": extremum(R.min, float("inf")),
    "max.default": extremum(R.max, float("-inf")),
    "min.default": extremum(R.min, float("inf")),
    "prod.default": reduction(R.prod),
    "prod.dim_int": reduction(R.prod),
    "any.default": _any,
    "any.dim": _any,
    "any.dims": _any,
    "_to_copy.default": _to_copy,
    "_softmax.default": _softmax,
    "_safe_softmax.default": _safe_softmax,
    "_log_softmax.default": _log_softmax,
    "index_select.default": _index_select,
    "gather.default": _gather,
    "view.default": _reshape,
    "_unsafe_view.default": _reshape,
    "reshape.default": _reshape,
    "unsqueeze.default": _reshape,
    "squeeze.dims": _reshape,
    "expand.default": _expand,
    "permute.default": _permute,
    "slice.Tensor": _slice,
    "cat.default": _cat,
    "scalar_tensor.default": _filled(lambda node: node.args[0]),
    "full.default": _filled(lambda node: node.args[1]),
    "full_like.default": _filled(lambda node: node.args[1]),
    "fill.Scalar": _filled(lambda node: node.args[1]),
    "clone.default": _same,
    "alias.default": _same,
    "lift_fresh_copy.default": _same,
}
