"""OpenVINO's CPU plugin as a backend: regions become its intermediate representation by way of convert_model.

Weights are not in the compiled region: the loader puts them into the model before the plugin compiles it (load).
The precision is always set: the plugin's own default on processors with AMX is bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from tapestry.backends.base import AnyOp, Availability, Backend, Options, Rule
from tapestry.backends.host.calibration import read as read_samples
from tapestry.backends.host.declare import Body
from tapestry.backends.host.options import HostOptions, Precision, check_options, offered
from tapestry.backends.host.packages import availability, package_version, versions
from tapestry.backends.host.supports import supports
from tapestry.backends.openvino.payload import OpenVinoPayload
from tapestry.backends.rules.whole import Whole
from tapestry.program.graph import Graph
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.drivers.host import processor_features
from tapestry.runtime.module import Compiled

#: Grows with every change to this package that changes what it compiles.
ADAPTER_VERSION = 4
_LOADER = "tapestry.backends.openvino.load:load"
_DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
})  # fmt: skip
_PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "float16", "int8")


class OpenVinoOptions(HostOptions, frozen=True):
    """``precision``: the plugin's inference precision; ``int8`` quantises with NNCF.

    Without a calibration only weights are stored in int8, and the plugin quantises the activations of matrix products
    as it runs.
    """


class OpenVino(Backend):
    """Takes whole graphs; what its front end cannot convert is refused in its own words."""

    name: ClassVar[str] = "openvino"
    device_kinds: ClassVar[frozenset[str]] = frozenset({"host"})

    def availability(self) -> Availability:
        return availability("openvino", "openvino")

    def rules(self) -> Sequence[Rule]:
        ops = AnyOp(supports("OpenVINO", _DTYPES))
        return (ops, Whole(ops))

    def options(self) -> Sequence[Options]:
        found = offered(processor_features(), _PRECISIONS)
        return tuple(
            OpenVinoOptions(precision) for precision in found if precision != "int8" or package_version("nncf")
        )

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        chosen = check_options(options, OpenVinoOptions, info)
        body = Body(graph)
        from tapestry.backends.openvino.convert import to_ir

        xml, data = to_ir(body.graph)
        payload = OpenVinoPayload(
            xml, data, body.inputs(), body.outputs(), body.constants, chosen.threads, chosen.precision,
            read_samples(chosen.calibration, body),
        )  # fmt: skip
        return body.compiled(self.name, _LOADER, payload)

    def fingerprint(self) -> str:
        return f"{versions('openvino', 'nncf')} adapter {ADAPTER_VERSION} torch {torch.__version__}"
