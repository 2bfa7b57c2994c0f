"""The one table of what differs between devices: TVM's target, the source language, and how dtypes are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tapestry.errors import UnsupportedError
from tapestry.program.graph import Graph, TensorSpec
from tapestry.program.serial import dtype_name
from tapestry.runtime.device import DeviceInfo


@dataclass(frozen=True)
class DeviceTarget:
    """How TVM makes kernels for one kind of device.

    ``kind`` is TVM's target kind, ``language`` that of KernelModule. ``storage`` maps a dtype of the program to
    what the buffer holds where the two differ; dtypes not in ``dtypes`` are unsupported whatever the device says.
    ``one_entry`` says that a source text can hold one kernel only.
    """

    kind: str
    language: str
    dtypes: frozenset[str]
    storage: Mapping[str, str] = field(default_factory=dict[str, str])
    one_entry: bool = False

    def stored(self, dtype: str) -> str:
        """The dtype of the buffer that holds a tensor of ``dtype``."""
        return self.storage.get(dtype, dtype)


_COMMON = frozenset({"float32", "int32", "uint32", "bool"})
_WIDE = frozenset({"float64", "float16", "bfloat16", "int64", "uint64", "int16", "uint16", "int8", "uint8"})
#: A bool is one byte, 0 or 1, as in torch. 16-bit floats are bits that kernels decode to float32 and encode again.
_BYTES = {"bool": "uint8", "float16": "uint16", "bfloat16": "uint16"}

_WIDENED = frozenset({"int8", "uint8", "int16", "uint16"})
_WORDS = {
    **dict.fromkeys(("bool", "int64", *sorted(_WIDENED)), "int32"),
    **dict.fromkeys(("float16", "bfloat16"), "float32"),
}

TARGETS: Mapping[str, DeviceTarget] = {
    "opencl": DeviceTarget("opencl", "opencl", _COMMON | _WIDE, _BYTES),
    "cuda": DeviceTarget("cuda", "cuda", _COMMON | _WIDE, _BYTES),
    # WGSL addresses 32-bit words only. int64 is range-checked at each upload by the executor; narrower integers wrap
    # around in the kernels; 16-bit floats are float32 values that the kernels round.
    "webgpu": DeviceTarget(
        "webgpu", "wgsl", _COMMON | _WIDENED | {"int64", "float16", "bfloat16"}, _WORDS, one_entry=True
    ),
}


def target_for(info: DeviceInfo) -> DeviceTarget:
    """The target of a device; UnsupportedError when TVM makes no source for its kind."""
    target = TARGETS.get(info.kind)
    if target is None:
        raise UnsupportedError(f"tvm makes kernels for {', '.join(sorted(TARGETS))}; got a device of kind {info.kind}")
    return target


def dtype_reason(spec: TensorSpec, info: DeviceInfo) -> str | None:
    """Why a tensor of this dtype cannot be computed with on the device, or None when it can."""
    target = target_for(info)
    dtype = dtype_name(spec.dtype)
    if dtype not in target.dtypes:
        return f"tvm has no {dtype} for {info.kind}"
    needed = target.stored(dtype)
    if info.dtypes and needed not in info.dtypes:
        return f"{info.name} has no {needed}"
    return None


def graph_dtype_reason(graph: Graph, info: DeviceInfo) -> str | None:
    """The first dtype of the graph that the device cannot do, as a reason; None when it can do them all."""
    specs = [entry.spec for entry in graph.inputs if not entry.constant]
    specs += [spec for call in graph.calls for spec in call.outputs if spec is not None]
    return next((reason for reason in (dtype_reason(spec, info) for spec in specs) if reason), None)
