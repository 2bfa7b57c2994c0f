"""Integers of 8 and 16 bits: results wrap around as the program's type does, also where nothing is stored between.

WGSL has 32 bits only, and C computes in 32: ``(a + a) < 0`` is false for 100 of int8 unless the sum is cut in between.

Not here: int64 in 32 bits, which cannot be told from a wrong result afterwards (supports.py refuses it beforehand).
"""

from __future__ import annotations

from typing import Any

import torch
from tvm import relax

from tapestry.backends.tvm.adapter.values import Node, R, name

#: Bits, and whether the sign is among them.
_NARROW = {torch.int8: (8, True), torch.uint8: (8, False), torch.int16: (16, True), torch.uint16: (16, False)}

#: Operators that move or choose elements: their results are in range because their operands are.
_MOVING_TABLE = """
view _unsafe_view reshape unsqueeze squeeze expand permute slice cat clone alias lift_fresh_copy index_select gather
where maximum minimum amax amin max min flip repeat diagonal constant_pad_nd scalar_tensor full full_like
slice_scatter getitem
"""
_MOVING = frozenset(_MOVING_TABLE.split())


def wrapped(imp: Any, node: Node, value: Any) -> Any:
    """``value``, the result of ``node``, as the program's narrow integer type holds it; itself for other types."""
    result = node.meta.get("val")
    dtype = getattr(result, "dtype", None)
    if dtype not in _NARROW or _operator(node) in _MOVING:
        return value
    bits, signed = _NARROW[dtype]
    emit = imp.block_builder.emit
    wide = value if name(imp, dtype) == "int32" else emit(R.astype(value, "int32"))
    high = relax.const(32 - bits, "int32")
    if signed:
        cut = R.right_shift(emit(R.left_shift(wide, high)), high)
    else:
        cut = R.bitwise_and(wide, relax.const((1 << bits) - 1, "int32"))
    return cut if name(imp, dtype) == "int32" else R.astype(emit(cut), name(imp, dtype))


def _operator(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0]
