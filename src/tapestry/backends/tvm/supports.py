"""What this backend takes, told from one call, fast and without TVM: dtypes, and operators known to be missing.

Not a promise that the result is right (cases tell), nor that TVM compiles it (compile_graph tells).
"""

from __future__ import annotations

from tapestry.backends.tvm.targets import dtype_reason, graph_dtype_reason, target_for
from tapestry.errors import UnsupportedError
from tapestry.program.graph import Call, Graph
from tapestry.program.serial import overload_name
from tapestry.program.traits import place_reason
from tapestry.runtime.device import DeviceInfo


def supports(call: Call, info: DeviceInfo) -> str | None:
    """None when the backend takes the call on this device, else why not."""
    reason = place_reason(call)
    if reason is not None:
        return reason
    for spec in call.outputs:
        reason = dtype_reason(spec, info) if spec is not None else None
        if reason is not None:
            return reason
    return None


def graph_refusal(graph: Graph, info: DeviceInfo) -> None:
    """UnsupportedError, naming the call and the reason, when the graph holds something not taken."""
    target_for(info)
    reason = graph_dtype_reason(graph, info)
    if reason is not None:
        raise UnsupportedError(reason)
    for call in graph.calls:
        reason = supports(call, info)
        if reason is not None:
            raise UnsupportedError(f"{overload_name(call.target)}: {reason}")
