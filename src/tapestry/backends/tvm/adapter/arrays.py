"""Operators over whole arrays in Relax: products, reductions, softmax, shapes, gathering, filling.

Each converter says what TVM's own does wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tvm import relax

from tapestry.backends.tvm.adapter.values import (
    Converter,
    Node,
    R,
    argument,
    cast,
    dtype_of,
    name,
    operand,
    reshaped,
)


def _matmul(imp: Any, node: Node) -> Any:
    """TVM's own accumulates and returns float32 whatever the type."""
    dtype = dtype_of(node)
    wide = dtype
    left, right = (operand(imp, value, wide) for value in node.args[:2])
    return cast(imp, imp.block_builder.emit(R.matmul(left, right, out_dtype=name(imp, wide))), dtype)


def _dims(node: Node, position: int = 1) -> list[int] | None:
    dims = argument(node, position, "dim")
    if dims is None:
        return None
    found = [dims] if isinstance(dims, int) else list(dims)
    return found or None


def _reduce(imp: Any, node: Node, op: Callable[..., Any], value: Any, keepdim_at: int = 2) -> Any:
    """``op`` over ``dim`` (none: all). Reducing everything goes over one row: the schedules want an outer loop."""
    emit = imp.block_builder.emit
    rank = len(value.ty.shape)
    dims = _dims(node) or list(range(rank))
    shape = [int(size) for size in node.meta["val"].shape]
    if len({dim % rank for dim in dims} if rank else []) == rank:
        return reshaped(imp, emit(op(reshaped(imp, value, [1, node.args[0].meta["val"].numel()]), [1])), shape)
    return emit(op(value, dims, keepdims=bool(argument(node, keepdim_at, "keepdim", False))))


def reduction(op: Callable[..., Any]) -> Converter:
    """A sum, mean or product. TVM's own accumulates 16-bit floats in 16 bits."""

    def convert(imp: Any, node: Node) -> Any:
        dtype = dtype_of(node)
        return cast(imp, _reduce(imp, node, op, operand(imp, node.args[0], dtype)), dtype)

    return convert


def extremum(op: Callable[..., Any], start: float) -> Converter:
    """The largest or smallest; NaN when one is there. TVM's own loses NaN, and begins at the largest finite value.

    ``start`` is the infinity that a line of nothing else gives. One more reduction classes the entries.
    """

    def convert(imp: Any, node: Node) -> Any:
        dtype = dtype_of(node)
        value = operand(imp, node.args[0], torch.uint8 if dtype == torch.bool else dtype)
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


def _any(imp: Any, node: Node) -> Any:
    """As a maximum of 0 and 1. TVM's own returns numbers for numbers."""
    value = cast(imp, operand(imp, node.args[0], torch.bool), torch.int32)
    return cast(imp, _reduce(imp, node, R.max, value), dtype_of(node))  # of uint8 it is uint8


def _softmax(imp: Any, node: Node) -> Any:
    """TVM's own computes 16-bit floats in 16 bits, and fails on a 0-d tensor."""
    dtype = dtype_of(node)
    value = operand(imp, node.args[0], dtype)
    if not node.meta["val"].dim():
        value = R.nn.softmax(imp.block_builder.emit(R.reshape(value, [1])), 0)
        return cast(imp, imp.block_builder.emit(R.reshape(imp.block_builder.emit(value), [])), dtype)
    return cast(imp, imp.block_builder.emit(R.nn.softmax(value, node.args[1])), dtype)


def _safe_softmax(imp: Any, node: Node) -> Any:
    """softmax, with rows that are −inf throughout giving 0, as eager's masked attention does. TVM has none."""
    dtype = dtype_of(node)
    value = operand(imp, node.args[0], dtype)
    shape = [int(size) for size in value.ty.shape]
    value = reshaped(imp, value, shape or [1])
    dim = int(node.args[1])
    emit = imp.block_builder.emit
    kind = name(imp, dtype)
    kept = emit(R.astype(R.not_equal(value, relax.const(float("-inf"), kind)), "int32"))
    masked = R.equal(emit(R.max(kept, [dim], keepdims=True)), relax.const(0, "int32"))
    result = R.where(masked, relax.const(0.0, kind), emit(R.nn.softmax(value, dim)))
    return cast(imp, reshaped(imp, emit(result), shape), dtype)


def _log_softmax(imp: Any, node: Node) -> Any:
    """TVM's own computes 16-bit floats in 16 bits."""
    dtype = dtype_of(node)
    value = operand(imp, node.args[0], dtype)
    shape = node.meta["val"].shape
    if not shape or shape[node.args[1]] == 1:  # a kernel that TVM takes for one without a result
        return cast(imp, imp.block_builder.emit(R.subtract(value, value)), dtype)
    return cast(imp, imp.block_builder.emit(R.nn.log_softmax(value, node.args[1])), dtype)


def _index_select(imp: Any, node: Node) -> Any:
    """TVM's own reads out of bounds for an index that is, and drops the dimension for a 0-d index."""
    source, dim, index = node.args
    value = reshaped(imp, imp.env[source], source.meta["val"].shape or [1])
    places = reshaped(imp, imp.env[index], [index.meta["val"].numel()])
    taken = imp.block_builder.emit(R.take(value, places, axis=dim, mode="clip"))
    return reshaped(imp, taken, node.meta["val"].shape)


def _gather(imp: Any, node: Node) -> Any:
    """TVM's own reads out of bounds for an index that is."""
    value, dim, index = node.args[:3]
    found = imp.env[index]
    if not node.meta["val"].dim():
        source, found = reshaped(imp, imp.env[value], [value.meta["val"].numel()]), reshaped(imp, found, [1])
        taken = R.take(source, found, axis=0, mode="clip")
        return reshaped(imp, imp.block_builder.emit(taken), [])
    size = value.meta["val"].shape[dim]
    dtype = str(found.ty.dtype)
    bounded = R.maximum(R.minimum(found, relax.const(size - 1, dtype)), relax.const(0, dtype))
    return R.gather_elements(imp.env[value], imp.block_builder.emit(bounded), axis=dim)


def _reshape(imp: Any, node: Node) -> Any:
    """To the shape of the result, whatever the operator: view, unsqueeze, squeeze …"""
    return reshaped(imp, imp.env[node.args[0]], node.meta["val"].shape)


def _expand(imp: Any, node: Node) -> Any:
    """TVM's own leaves −1 to shape inference."""
    value = imp.env[node.args[0]]
    shape = [int(size) for size in node.meta["val"].shape]
    return value if [int(size) for size in value.ty.shape] == shape else R.broadcast_to(value, shape)


def _permute(imp: Any, node: Node) -> Any:
    rank = node.meta["val"].dim()
    return (
        R.permute_dims(imp.env[node.args[0]], [dim % rank for dim in node.args[1]]) if rank else imp.env[node.args[0]]
    )


def _slice(imp: Any, node: Node) -> Any:
    """TVM's own passes the largest integer as the end."""
    value = imp.env[node.args[0]]
    dim = argument(node, 1, "dim", 0)
    size = int(value.ty.shape[dim])
    start, end, step = (argument(node, 2, "start"), argument(node, 3, "end"), argument(node, 4, "step", 1))
    start, end, step = slice(start, end, step).indices(size)
    if (start, end, step) == (0, size, 1):
        return value
    return R.strided_slice(value, [dim], [start], [max(start, end)], [step])


def _cat(imp: Any, node: Node) -> Any:
    """TVM's own does not promote."""
    dtype = dtype_of(node)
    rank = node.meta["val"].dim()
    parts = [operand(imp, part, dtype) for part in node.args[0]]
    return R.concat(parts, argument(node, 1, "dim", 0) % rank)


def _filled(value_at: Callable[[Node], Any]) -> Converter:
    def convert(imp: Any, node: Node) -> Any:
        dtype = dtype_of(node)
        value = operand(imp, value_at(node), dtype)
        shape = [int(size) for size in node.meta["val"].shape]
        return R.full(shape, value, name(imp, dtype)) if shape else value

    return convert


def _same(imp: Any, node: Node) -> Any:
    return imp.env[node.args[0]]


#: By the name that TVM's importer uses.
ARRAYS: dict[str, Converter] = {
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
