"""ExecuTorch with the XNNPACK delegate as a backend for the processor.

An ExecuTorch program holds its weights, and XNNPACK folds and lays them out while it is lowered, so the loader lowers
when it is given them. Here the region is lowered with other values, so that what is refused is refused here; without
weights that program is the one that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from tapestry.backends.base import AnyOp, Availability, Backend, Options, Rule
from tapestry.backends.executorch.payload import ExecuTorchPayload
from tapestry.backends.host.declare import Body
from tapestry.backends.host.exported import contiguous, stand_ins
from tapestry.backends.host.options import HostOptions, Precision, check_options, offered
from tapestry.backends.host.packages import availability, versions
from tapestry.backends.host.supports import supports
from tapestry.backends.rules.whole import Whole
from tapestry.errors import UnsupportedError
from tapestry.program.graph import Graph
from tapestry.program.serial import dumps
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.drivers.host import processor_features
from tapestry.runtime.module import Compiled

#: Grows with every change to this package that changes what it compiles.
ADAPTER_VERSION = 2
_LOADER = "tapestry.backends.executorch.load:load"
_DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
})  # fmt: skip
_PRECISIONS: tuple[Precision, ...] = ("float32",)


class ExecuTorchOptions(HostOptions, frozen=True):
    """``precision``: ``float32``."""


class ExecuTorch(Backend):
    """Takes whole graphs: XNNPACK what it can, ExecuTorch's portable kernels the rest."""

    name: ClassVar[str] = "executorch"
    device_kinds: ClassVar[frozenset[str]] = frozenset({"host"})

    def availability(self) -> Availability:
        return availability("executorch", "executorch")

    def rules(self) -> Sequence[Rule]:
        ops = AnyOp(supports("ExecuTorch", _DTYPES))
        return (ops, Whole(ops))

    def options(self) -> Sequence[Options]:
        return tuple(ExecuTorchOptions(precision) for precision in offered(processor_features(), _PRECISIONS))

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        chosen = check_options(options, ExecuTorchOptions, info)
        if chosen.precision not in _PRECISIONS:
            raise UnsupportedError(f"ExecuTorch is not given {chosen.precision} here; it has {', '.join(_PRECISIONS)}")
        body = Body(graph)
        final = contiguous(body.graph)
        from tapestry.backends.executorch.lower import lower, open_method

        program = lower(final, stand_ins(final))
        open_method(program)
        kept = b"" if body.constants else program
        return body.compiled(self.name, _LOADER, ExecuTorchPayload(dumps(final), body.constants, chosen.threads, kept))

    def fingerprint(self) -> str:
        return f"{versions('executorch', 'torchao')} adapter {ADAPTER_VERSION} torch {torch.__version__}"
