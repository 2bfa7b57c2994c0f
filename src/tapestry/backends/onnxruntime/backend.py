"""ONNX Runtime's CPU provider as a backend: regions become ONNX models by way of torch.onnx's exporter.

Weights are not in the compiled region: the loader hands them to the session once (load).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from tapestry.backends.base import AnyOp, Availability, Backend, Options, Rule
from tapestry.backends.host.calibration import read as read_samples
from tapestry.backends.host.declare import Body
from tapestry.backends.host.options import HostOptions, Precision, check_options, offered
from tapestry.backends.host.packages import availability, versions
from tapestry.backends.host.supports import supports
from tapestry.backends.onnxruntime.payload import OnnxPayload
from tapestry.backends.rules.whole import Whole
from tapestry.errors import UnsupportedError
from tapestry.program.graph import Graph
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.drivers.host import processor_features
from tapestry.runtime.module import Compiled

#: Grows with every change to this package that changes what it compiles.
ADAPTER_VERSION = 2
_LOADER = "tapestry.backends.onnxruntime.load:load"
_PACKAGES = ("onnxruntime", "onnx", "onnxscript")
_DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
})  # fmt: skip
#: Its CPU provider has no 16-bit arithmetic worth the name: it would cast around each operator.
_PRECISIONS: tuple[Precision, ...] = ("float32", "int8")


class OnnxRuntimeOptions(HostOptions, frozen=True):
    """``precision``: ``float32``, or ``int8`` for matrix products and, calibrated, convolutions."""


class OnnxRuntime(Backend):
    """Takes whole graphs; what its exporter has no translation for is refused in the exporter's words."""

    name: ClassVar[str] = "onnxruntime"
    device_kinds: ClassVar[frozenset[str]] = frozenset({"host"})

    def availability(self) -> Availability:
        return availability("onnxruntime", *_PACKAGES)

    def rules(self) -> Sequence[Rule]:
        ops = AnyOp(supports("ONNX Runtime", _DTYPES))
        return (ops, Whole(ops))

    def options(self) -> Sequence[Options]:
        return tuple(OnnxRuntimeOptions(precision) for precision in offered(processor_features(), _PRECISIONS))

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        chosen = check_options(options, OnnxRuntimeOptions, info)
        if chosen.precision not in _PRECISIONS:
            raise UnsupportedError(f"ONNX Runtime's CPU provider has no {chosen.precision} arithmetic")
        body = Body(graph)
        from tapestry.backends.onnxruntime.convert import to_onnx

        names = tuple(graph.inputs[place].name for place in body.constants)
        model, read = to_onnx(body.graph, [value.name for value in body.outputs()], names)
        payload = OnnxPayload(
            model, body.inputs(), body.outputs(), body.constants, frozenset(names) - read, chosen.threads,
            chosen.precision, read_samples(chosen.calibration, body),
        )  # fmt: skip
        return body.compiled(self.name, _LOADER, payload)

    def fingerprint(self) -> str:
        return f"{versions(*_PACKAGES)} adapter {ADAPTER_VERSION} torch {torch.__version__}"
