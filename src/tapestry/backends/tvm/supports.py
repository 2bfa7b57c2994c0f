"""What this backend takes, told from one call, fast and without TVM: dtypes, and operators that have a way to kernels.

Not a promise that the result is right (cases tell), nor that TVM compiles it (compile_graph tells).
"""

from __future__ import annotations

from functools import cache

import torch

from tapestry.backends.tvm.decompose import has_formula
from tapestry.backends.tvm.leaves import LEAVES
from tapestry.backends.tvm.targets import dtype_reason, graph_dtype_reason, target_for
from tapestry.backends.tvm.words import unbounded
from tapestry.errors import UnsupportedError
from tapestry.program.graph import Call, Graph, operands
from tapestry.program.serial import overload_name
from tapestry.program.traits import place_reason
from tapestry.runtime.device import DeviceInfo


def supports(call: Call, info: DeviceInfo) -> str | None:
    """None when the backend takes the call on this device, else why not."""
    reason = place_reason(call) or _operator_reason(call.target)
    if reason is not None:
        return reason
    for spec in call.outputs:
        reason = dtype_reason(spec, info) if spec is not None else None
        if reason is not None:
            return reason
    return unbounded(call, None, 0) if _narrows(info) else None


def _narrows(info: DeviceInfo) -> bool:
    """Whether the device keeps int64 in 32 bits."""
    return target_for(info).stored("int64") != "int64"


@cache
def _operator_reason(target: torch._ops.OpOverload) -> str | None:
    """Why an operator has no way to kernels: neither a formula over others, nor a converter."""
    name = overload_name(target)
    if target.namespace != "aten":
        return f"{name} is not an operator of ATen"
    if name.removeprefix("aten.") in LEAVES or has_formula(target):
        return None
    return f"neither torch's formulas nor TVM's importer know {name}"


def graph_refusal(graph: Graph, info: DeviceInfo) -> None:
    """UnsupportedError, naming the call and the reason, when the graph holds something not taken."""
    target_for(info)
    reason = graph_dtype_reason(graph, info)
    if reason is not None:
        raise UnsupportedError(reason)
    for call in graph.calls:
        reason = supports(call, info) or (_out_of_words(graph, call) if _narrows(info) else None)
        if reason is not None:
            raise UnsupportedError(f"{overload_name(call.target)}: {reason}")


def _out_of_words(graph: Graph, call: Call) -> str | None:
    """Why an int64 result may not fit 32 bits, where the first operand's type and size tell."""
    first = next(operands(call), None)
    if first is None:
        return unbounded(call, None, 0)
    spec = graph.spec(first)
    return unbounded(call, spec.dtype, spec.numel)
