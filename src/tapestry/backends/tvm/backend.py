"""The ``tvm`` backend: Apache TVM compiles regions to kernel source, which our own runtime launches.

Not here: the compilation (compile), and anything that imports TVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import ClassVar

import torch

from tapestry.backends.base import AnyOp, Availability, Backend, Options, Rule
from tapestry.backends.tvm.compile import compile_graph
from tapestry.backends.tvm.options import TvmOptions
from tapestry.backends.tvm.supports import supports
from tapestry.errors import UsageError
from tapestry.program.graph import Graph
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Compiled

#: Raised whenever this adapter gives other results for the same graph.
ADAPTER = 1


class Tvm(Backend):
    """Takes what TVM's importer takes after our decompositions; on OpenCL now."""

    name: ClassVar[str] = "tvm"
    device_kinds: ClassVar[frozenset[str]] = frozenset({"opencl"})

    def availability(self) -> Availability:
        if find_spec("tvm") is None:
            return Availability(False, "pip install 'tapestry-ml[tvm]'")
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
        try:
            tvm = version("apache-tvm")
        except PackageNotFoundError:
            tvm = "missing"
        return f"tvm {tvm} torch {torch.__version__} adapter {ADAPTER}"
