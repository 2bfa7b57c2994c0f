"""Runs OpenVINO models in this process: compiled once per set of weights, on memory the host driver owns. No torch.

Not here: converting models (convert).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import openvino as ov

from tapestry.backends.host.memory import as_array, same_views
from tapestry.backends.host.value import Value
from tapestry.backends.openvino.payload import OpenVinoPayload
from tapestry.errors import DeviceError, UnsupportedError
from tapestry.runtime.drivers.host import HostProgram, Unbound

#: OpenVINO's types by torch's names.
TYPES: dict[str, Any] = {
    "bool": ov.Type.boolean, "uint8": ov.Type.u8, "int8": ov.Type.i8, "int16": ov.Type.i16, "int32": ov.Type.i32,
    "int64": ov.Type.i64, "float16": ov.Type.f16, "bfloat16": ov.Type.bf16, "float32": ov.Type.f32,
    "float64": ov.Type.f64, "uint16": ov.Type.u16, "uint32": ov.Type.u32, "uint64": ov.Type.u64,
}  # fmt: skip
#: The plugin's inference precision for each of ours: what is not quantised in an int8 model stays float32.
_HINTS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "int8": "f32"}


def load(payload: bytes) -> Unbound:
    """The loader: the plugin compiles when the constants are there."""
    model = msgspec.msgpack.decode(payload, type=OpenVinoPayload)

    def bind(constants: list[memoryview]) -> HostProgram:
        return _Request(model, constants)

    return Unbound(model.constants, bind)


def settings(threads: int, precision: str) -> dict[str, Any]:
    """How every model is compiled: precision by name, one stream of this many threads, nothing pinned or reserved."""
    return {
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "EXECUTION_MODE_HINT": "PERFORMANCE",
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
        "ENABLE_CPU_PINNING": False,
        "ENABLE_CPU_RESERVATION": False,
        "ENABLE_HYPER_THREADING": True,
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32" if precision == "int8" else "0",
    }


@cache
def _core() -> Any:
    return ov.Core()


class _Request:
    """A HostProgram. The model refers to the weights' memory, so the arrays are kept as long as it."""

    def __init__(self, model: OpenVinoPayload, constants: Sequence[memoryview]) -> None:
        places = frozenset(model.constants)
        self._inputs = [value for place, value in enumerate(model.inputs) if place not in places]
        self._outputs = model.outputs
        self._weights = [
            _tensor(model.inputs[place], view) for place, view in zip(model.constants, constants, strict=True)
        ]
        compiled, self._passed = _compile(model, self._weights)
        #: By input that is not constant, the place among the compiled model's; None for one that it does not read.
        self._places = _places(compiled, self._inputs)
        self._request: Any = compiled.create_infer_request()
        self._last: tuple[list[memoryview], list[memoryview]] | None = None

    def __call__(self, inputs: list[memoryview], outputs: list[memoryview]) -> None:
        if self._last is None or not (same_views(inputs, self._last[0]) and same_views(outputs, self._last[1])):
            self._attach(inputs, outputs)
        self._request.infer(share_outputs=True)
        for place, origin in self._passed.items():
            outputs[place].cast("B")[:] = inputs[origin].cast("B")

    def _attach(self, inputs: list[memoryview], outputs: list[memoryview]) -> None:
        self._last = None
        for place, value, view in zip(self._places, self._inputs, inputs, strict=True):
            if place is not None:
                self._request.set_input_tensor(place, _tensor(value, view))
        for place, (value, view) in enumerate(zip(self._outputs, outputs, strict=True)):
            if place in self._passed:
                continue
            self._request.set_output_tensor(place, _tensor(value, view))
        self._last = (inputs, outputs)


def _tensor(value: Value, view: memoryview) -> Any:
    """A tensor on this memory, which it keeps alive."""
    array = as_array(view, value.dtype, value.shape)
    return ov.Tensor(array.reshape(-1), ov.Shape(list(value.shape)), TYPES[value.dtype])


def _compile(model: OpenVinoPayload, weights: Sequence[Any]) -> tuple[Any, dict[int, int]]:
    """The compiled model, and which outputs hold the same bytes as which input."""
    try:
        read: Any = _core().read_model(model.xml, ov.Tensor(_bytes_array(model.data)))
        _fill(read, model, weights)
        if model.precision == "int8":
            from tapestry.backends.openvino.quantise import quantised

            read = quantised(read, _samples(model))
        compiled = _core().compile_model(read, "CPU", settings(model.threads, model.precision))
        places = frozenset(model.constants)
        varying = [value.name for place, value in enumerate(model.inputs) if place not in places]
        return compiled, _passed(read, varying)
    except Exception as error:
        text = f"OpenVINO does not load the model: {' '.join(str(error).split())[:600]}"
        if "not supported" in str(error) or "not implemented" in str(error).lower():
            raise UnsupportedError(text) from error
        raise DeviceError(text) from error


def _places(compiled: Any, inputs: Sequence[Value]) -> list[int | None]:
    found = {name: place for place, entry in enumerate(compiled.inputs) for name in entry.get_names()}
    return [found.get(value.name) for value in inputs]


def _passed(read: Any, varying: Sequence[str]) -> dict[int, int]:
    """Outputs that are inputs, perhaps in another shape. OpenVINO writes nothing to the memory set for those."""
    inputs = {name: place for place, name in enumerate(varying)}
    found: dict[int, int] = {}
    for place, result in enumerate(read.get_results()):
        node = result.input_value(0).get_node()
        while _keeps_bytes(node):
            node = node.input_value(0).get_node()
        if node.get_type_name() == "Parameter":
            found[place] = inputs[node.get_friendly_name()]
    return found


def _keeps_bytes(node: Any) -> bool:
    kind = node.get_type_name()
    same = kind == "Convert" and node.get_element_type() == node.input_value(0).get_element_type()
    return same or kind in ("Reshape", "Squeeze", "Unsqueeze")


def _samples(model: OpenVinoPayload) -> list[list[Any]]:
    places = frozenset(model.constants)
    values = [value for place, value in enumerate(model.inputs) if place not in places]
    return [
        [as_array(memoryview(data), value.dtype, value.shape) for value, data in zip(values, sample, strict=True)]
        for sample in model.samples
    ]


def _bytes_array(data: bytes) -> Any:
    return as_array(memoryview(bytearray(data)), "uint8", (len(data),))


def _fill(read: Any, model: OpenVinoPayload, weights: Sequence[Any]) -> None:
    """Put constants where the parameters of the weights are."""
    parameters = {node.get_friendly_name(): node for node in read.get_parameters()}
    for place, tensor in zip(model.constants, weights, strict=True):
        name = model.inputs[place].name
        if name not in parameters:
            continue
        constant = ov.op.Constant(tensor, True)
        constant.set_friendly_name(name)
        parameters[name].output(0).replace(constant.output(0))
        read.remove_parameter(parameters[name])
    read.validate_nodes_and_infer_types()
