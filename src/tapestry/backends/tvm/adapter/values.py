"""What all converters share: dtypes, operands, casts and shapes, from FX nodes to Relax values.

Not here: any operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from tvm import relax

#: TVM's operators, whose declared types do not match what they take.
R: Any = relax.op

#: An FX node: its arguments are as untyped as TVM.
Node = Any
#: From the importer and a node to the Relax value of the node's result.
Converter = Callable[[Any, Node], Any]


def dtype_of(node: Node) -> torch.dtype:
    """The dtype that eager gives the node's result."""
    return node.meta["val"].dtype


def name(imp: Any, dtype: torch.dtype) -> str:
    """TVM's name of the type that holds a torch dtype on the target."""
    return imp.type_name(dtype)


def argument(node: Node, position: int, key: str, default: Any = None) -> Any:
    """An argument given by position or by keyword."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(key, default)


def cast(imp: Any, value: Any, dtype: torch.dtype) -> Any:
    """``value`` as ``dtype``; bool from a number is "not zero", as in torch."""
    have = str(value.ty.dtype)
    if have == name(imp, dtype):
        return value
    if dtype == torch.bool:
        return imp.block_builder.emit(R.not_equal(value, relax.const(0, have)))
    emit = imp.block_builder.emit
    if have.startswith("float") and name(imp, dtype) == "int32" and name(imp, torch.int64) == "int32":
        # WGSL leaves open what a number out of range becomes. The least integer is what eager's processors make of it
        # and of NaN, and it wraps around to 0 in the narrower types, as there.
        fits = R.less(R.abs(value), relax.const(2.0**31, have))
        return emit(R.where(emit(fits), R.astype(value, "int32"), relax.const(-(2**31), "int32")))
    return emit(R.astype(value, name(imp, dtype)))


def operand(imp: Any, value: Any, dtype: torch.dtype) -> Any:
    """A tensor or Python number as a Relax value of ``dtype``."""
    if isinstance(value, fx.Node):
        return cast(imp, imp.env[value], dtype)
    if dtype.is_floating_point:
        return relax.const(float(value), name(imp, dtype))
    return relax.const(bool(value) if dtype == torch.bool else int(value), name(imp, dtype))


def reshaped(imp: Any, value: Any, shape: Any) -> Any:
    """``value`` in another shape; itself when it has that shape already."""
    want = [int(size) for size in shape]
    if [int(size) for size in value.ty.shape] == want:
        return value
    return imp.block_builder.emit(R.reshape(value, want))
