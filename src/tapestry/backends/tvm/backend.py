"""Apache TVM as a backend: regions become kernel source that our runtime launches. Imports TVM only to compile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import ClassVar

import torch

from tapestry.backends.base import AnyOp, Availability, Backend, Options, Rule
from tapestry.backends.tvm.compile import NAME, compile_graph
from tapestry.backends.tvm.options import TvmOptions
from tapestry.backends.tvm.supports import supports
from tapestry.backends.tvm.targets import TARGETS
from tapestry.errors import UsageError
from tapestry.program.graph import Graph
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Compiled

#: Grows with every change to this package that changes what it compiles.
ADAPTER_VERSION = 9
#: The only TVM that the adapter was written against: its Python API is renamed between minor releases.
TVM_VERSION = "0.27.0.post1"


class Tvm(Backend):
    """Compiles maximal regions; fuses inside them."""

    name: ClassVar[str] = NAME
    device_kinds: ClassVar[frozenset[str]] = frozenset(TARGETS)

    def availability(self) -> Availability:
        found = _tvm_version()
        if found is None or find_spec("tvm") is None:
            return Availability(False, "pip install 'tapestry-ml[tvm]'")
        if found != TVM_VERSION:
            return Availability(
                False, f"expected apache-tvm {TVM_VERSION}, got {found}; pip install 'tapestry-ml[tvm]'"
            )
        return Availability(True)

    def rules(self) -> Sequence[Rule]:
        return (AnyOp(supports),)

    def options(self) -> Sequence[Options]:
        return (TvmOptions(), TvmOptions(schedule="fallback"))

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        if not isinstance(options, TvmOptions):
            raise UsageError(f"expected TvmOptions, got {type(options).__name__}")
        return compile_graph(graph, info, options)

    def fingerprint(self) -> str:
        return f"tvm {_tvm_version()} adapter {ADAPTER_VERSION} torch {torch.__version__}"


@cache
def _tvm_version() -> str | None:
    try:
        return version("apache-tvm")
    except PackageNotFoundError:
        return None
