"""Runs ONNX models in this process: a session per set of weights, on memory that the host driver owns. No torch.

Inputs, outputs and weights are used where they are. Not here: making models (convert).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort

from tapestry.backends.host.memory import as_array, same_views
from tapestry.backends.host.value import Value
from tapestry.backends.onnxruntime.payload import OnnxPayload
from tapestry.errors import DeviceError, UnsupportedError
from tapestry.runtime.drivers.host import HostProgram, Unbound

#: ONNX's numbers of the types (TensorProto.DataType), by torch's names.
ONNX_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip


def load(payload: bytes) -> Unbound:
    """The loader: the session is made when the constants are there."""
    model = msgspec.msgpack.decode(payload, type=OnnxPayload)

    def bind(constants: list[memoryview]) -> HostProgram:
        return _Session(model, constants)

    return Unbound(model.constants, bind)


def session_options(threads: int) -> Any:
    """How every session runs: this many threads, which sleep between calls, nothing pinned, nothing logged."""
    options: Any = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 4
    return options


class _Session:
    """A HostProgram. The session refers to the weights' memory, so the arrays are kept as long as it."""

    def __init__(self, model: OnnxPayload, constants: Sequence[memoryview]) -> None:
        places = frozenset(model.constants)
        self._inputs = [value for place, value in enumerate(model.inputs) if place not in places]
        self._outputs = model.outputs
        values = [model.inputs[place] for place in model.constants]
        self._weights = {
            value.name: as_array(view, value.dtype, value.shape)
            for value, view in zip(values, constants, strict=True)
            if value.name not in model.unread
        }
        if model.precision == "int8":
            self._session: Any = _open_quantised(model, self._weights, self._inputs)
            self._weights = {}
        else:
            types = {value.name: ONNX_TYPES[value.dtype] for value in values}
            self._session = _open(model, self._weights, types)
        read = {entry.name for entry in self._session.get_inputs()}
        self._read = [value.name in read for value in self._inputs]
        self._last: tuple[list[memoryview], list[memoryview]] = ([], [])
        self._binding: Any = None
        self._arrays: list[Any] = []

    def __call__(self, inputs: list[memoryview], outputs: list[memoryview]) -> None:
        if self._binding is None or not (same_views(inputs, self._last[0]) and same_views(outputs, self._last[1])):
            self._attach(inputs, outputs)
        self._session.run_with_iobinding(self._binding)

    def _attach(self, inputs: list[memoryview], outputs: list[memoryview]) -> None:
        self._binding = None
        binding = self._session.io_binding()
        self._arrays = []
        for value, view, read in zip(self._inputs, inputs, self._read, strict=True):
            if read:
                binding.bind_input(*self._place(value, view))
        for value, view in zip(self._outputs, outputs, strict=True):
            binding.bind_output(*self._place(value, view))
        self._binding, self._last = binding, (inputs, outputs)

    def _place(self, value: Value, view: memoryview) -> tuple[str, str, int, int, list[int], int]:
        array = as_array(view, value.dtype, value.shape)
        self._arrays.append(array)
        return value.name, "cpu", 0, ONNX_TYPES[value.dtype], list(value.shape), array.ctypes.data


def _open(model: OnnxPayload, weights: dict[str, np.ndarray[Any, Any]], types: dict[str, int]) -> Any:
    options = session_options(model.threads)
    # Held by the options until the session has been made; the session itself refers to the arrays.
    held: list[Any] = [
        ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, types[name]) for name, array in weights.items()
    ]
    if held:
        options.add_external_initializers(list(weights), held)
    return _session(model.model, options)


def _open_quantised(model: OnnxPayload, weights: Mapping[str, np.ndarray[Any, Any]], inputs: Sequence[Value]) -> Any:
    from tapestry.backends.onnxruntime.quantise import quantised

    samples = [
        {
            value.name: as_array(memoryview(data), value.dtype, value.shape)
            for value, data in zip(inputs, sample, strict=True)
        }
        for sample in model.samples
    ]
    raw = {name: array.tobytes() for name, array in weights.items()}
    try:
        body = quantised(model.model, raw, samples)
    except Exception as error:
        raise UnsupportedError(f"onnxruntime.quantization refuses it: {type(error).__name__}: {error}"[:800]) from error
    return _session(body, session_options(model.threads))


def _session(body: bytes, options: Any) -> Any:
    try:
        return ort.InferenceSession(body, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        text = f"ONNX Runtime does not load the model: {' '.join(str(error).split())[:600]}"
        # A model whose operator does not exist for a type is what the exporter makes of a call that ONNX lacks.
        lacks = "NOT_IMPLEMENTED" in str(error) or ("INVALID_GRAPH" in str(error) and "Type Error" in str(error))
        if lacks or "NotImplemented" in type(error).__name__:
            raise UnsupportedError(text) from error
        raise DeviceError(text) from error
