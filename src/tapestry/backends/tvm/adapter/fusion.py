"""A limit on fusion: TVM inlines what it fuses, once per use, so that a chain of n relus costs it 2^n.

Not here: fusion itself, which is TVM's.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te

#: Reads of one kernel's expression, when everything below is inlined, after which a value is stored. TVM simplifies
#: nested selections in exponential time: twelve relus in one kernel took it minutes, with this limit under a second.
MOST_READS = 16

#: Operators whose result is stored, or whose own loop reads each input once.
_STORED = frozenset(
    f"relax.{name}"
    for name in (
        "matmul", "sum", "max", "min", "mean", "prod", "take", "nn.softmax", "nn.log_softmax", "nn.conv1d", "nn.conv2d",
        "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose", "nn.avg_pool2d", "nn.max_pool2d",
    )
)  # fmt: skip


class FusionLimit:
    """Counts what inlining would read, and stores a value where that grows over the limit."""

    def __init__(self) -> None:
        self._reads: dict[Any, int] = {}

    def limited(self, builder: Any, value: Any) -> Any:
        """The value, or the value stored once in between. Anything but a tensor variable passes as it is."""
        if not isinstance(value, tvm.ir.Var) or not isinstance(value.ty, relax.TensorType):
            return value
        if self._count(builder, value) <= MOST_READS:
            return value
        stored = builder.emit_te(_copied, value, primfunc_name_hint="stored", primfunc_attrs={"op_pattern": _OPAQUE})
        self._reads[stored] = 1
        return stored

    def _count(self, builder: Any, root: Any) -> int:
        """Reads of inputs that ``root`` costs when all below it is inlined. Without recursion: chains are long."""
        waiting = [root]
        while waiting:
            variable = waiting[-1]
            stored, operands = _binding(builder, variable) if variable not in self._reads else (False, [])
            if stored:
                # What such an operator reads is fused into it alone, or stored because another reads it too.
                self._reads.update(dict.fromkeys([variable, *operands], 1))
            unknown = [operand for operand in operands if operand not in self._reads]
            if unknown:
                waiting += unknown
                continue
            waiting.pop()
            if variable not in self._reads:
                self._reads[variable] = max(1, sum(self._reads[operand] for operand in operands))
        return self._reads[root]


#: TVM's OpPatternKind for a function that takes part in no fusion.
_OPAQUE = 8


def _copied(tensor: Any) -> Any:
    return te.compute(tensor.shape, tensor, name="stored")


def _binding(builder: Any, variable: Any) -> tuple[bool, list[Any]]:
    """Whether the value of ``variable`` is stored, and the variables that its binding reads, with repeats."""
    bound = builder.lookup_binding(variable)
    if bound is None:
        return False, []
    found: list[Any] = []
    values = [*getattr(bound, "args", []), *getattr(bound, "fields", [])]
    if hasattr(bound, "tuple_value"):
        values.append(bound.tuple_value)
    while values:
        value = values.pop()
        if isinstance(value, tvm.ir.Var):
            found.append(value)
        elif isinstance(value, relax.Tuple):
            values += list(value.fields)
    stored = getattr(getattr(bound, "op", None), "name", "") in _STORED
    return stored, [value for value in found if isinstance(value.ty, relax.TensorType | relax.TupleType)]
