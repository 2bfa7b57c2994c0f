"""TorchInductor with frozen weights as a backend for the processor.

Freezing folds and packs the weights while it compiles, so the loader compiles when it is given them. What takes long,
the C++ compiler, is asked here: its results are kept by their source text, which does not depend on the weights, in
Inductor's own cache, and the loader finds them there. Dynamo has no part in it, so nothing can fall back to eager.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import ClassVar

import torch

from tapestry.backends.base import AnyOp, Availability, Backend, Options, Rule
from tapestry.backends.host.declare import Body
from tapestry.backends.host.exported import stand_ins
from tapestry.backends.host.options import HostOptions, Precision, check_options, offered
from tapestry.backends.host.packages import availability, versions
from tapestry.backends.host.reduced import in_precision
from tapestry.backends.host.refusal import refused
from tapestry.backends.host.supports import supports
from tapestry.backends.inductor.payload import InductorPayload
from tapestry.backends.rules.whole import Whole
from tapestry.errors import UnsupportedError
from tapestry.program.graph import Graph
from tapestry.program.serial import dtype_named, dumps
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.drivers.host import processor_features
from tapestry.runtime.module import Compiled

#: Grows with every change to this package that changes what it compiles.
ADAPTER_VERSION = 1
_LOADER = "tapestry.backends.inductor.load:load"
_DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
})  # fmt: skip
_PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "float16")


class InductorOptions(HostOptions, frozen=True):
    """``precision``: that of matrix products, convolutions and attention; everything else stays as it is."""


class Inductor(Backend):
    """Takes whole graphs; what it has no lowering for runs as PyTorch's own kernel inside its wrapper."""

    name: ClassVar[str] = "inductor"
    device_kinds: ClassVar[frozenset[str]] = frozenset({"host"})

    def availability(self) -> Availability:
        state = availability("bringup", "torch")
        if state.ready and compiler() is None:
            return Availability(False, "it needs a C++ compiler: install g++ or clang, or name one in CXX")
        return state

    def rules(self) -> Sequence[Rule]:
        ops = AnyOp(supports("Inductor", _DTYPES))
        return (ops, Whole(ops))

    def options(self) -> Sequence[Options]:
        return tuple(InductorOptions(precision) for precision in offered(processor_features(), _PRECISIONS))

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        chosen = check_options(options, InductorOptions, info)
        if chosen.precision not in _PRECISIONS:
            raise UnsupportedError(f"Inductor is not given {chosen.precision} here; it has {', '.join(_PRECISIONS)}")
        body = Body(graph)
        final = body.graph
        if chosen.precision != "float32":
            final = in_precision(final, dtype_named(chosen.precision))
        from tapestry.backends.inductor.freeze import freeze

        try:
            freeze(final, stand_ins(final), chosen.threads)
        except Exception as error:
            raise refused("Inductor", error) from error
        return body.compiled(self.name, _LOADER, InductorPayload(dumps(final), body.constants, chosen.threads))

    def fingerprint(self) -> str:
        return f"inductor {versions('torch')} {torch.__version__} {compiler()} adapter {ADAPTER_VERSION}"


def compiler() -> str | None:
    """The C++ compiler that Inductor will use, or None."""
    named = os.environ.get("CXX", "")
    return next((found for name in (named, "g++", "clang++") if name and (found := shutil.which(name))), None)
