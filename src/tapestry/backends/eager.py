"""The reference backend: PyTorch's own operators, on the host. Also the loader that a host device runs it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import ClassVar

import torch

from tapestry.backends.base import AnyOp, Availability, Backend, Options, Rule
from tapestry.backends.transfer import with_layout
from tapestry.program import traits
from tapestry.program.graph import Call, Graph, TensorSpec
from tapestry.program.interpret import run_graph
from tapestry.program.serial import dtype_name, dumps, loads
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Artifact, Compiled, ConstantDecl, TensorDecl

_LOADER = "tapestry.backends.eager:load"


def _placeable(call: Call, info: DeviceInfo) -> str | None:
    return traits.place_reason(call)


class Eager(Backend):
    """Runs any region as it is, operator by operator."""

    name: ClassVar[str] = "eager"
    device_kinds: ClassVar[frozenset[str]] = frozenset({"host", "mock"})
    isolated: ClassVar[bool] = False

    def availability(self) -> Availability:
        if find_spec("torch") is None:
            return Availability(False, "pip install 'tapestry-ml[bringup]'")
        return Availability(True)

    def rules(self) -> Sequence[Rule]:
        return (AnyOp(_placeable),)

    def options(self) -> Sequence[Options]:
        return (Options(),)

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        specs = [*(entry.spec for entry in graph.inputs), *(graph.spec(ref) for ref in graph.outputs)]
        count = len(graph.inputs)
        return Compiled(
            backend=self.name,
            module=Artifact(_LOADER, dumps(graph), native=False),
            tensors=tuple(_declared(spec) for spec in specs),
            inputs=tuple(range(count)),
            outputs=tuple(range(count, len(specs))),
            constants=tuple(
                ConstantDecl(place, "input", place) for place, entry in enumerate(graph.inputs) if entry.constant
            ),
        )

    def fingerprint(self) -> str:
        return f"eager torch {torch.__version__}"


def _declared(spec: TensorSpec) -> TensorDecl:
    return TensorDecl(spec.shape, dtype_name(spec.dtype), dtype_name(spec.dtype))


def load(payload: bytes) -> Callable[[Sequence[memoryview], Sequence[memoryview]], None]:
    """Make a stored graph callable on raw memory: inputs and outputs hold contiguous elements in graph order."""
    graph = loads(payload)
    inputs = [entry.spec for entry in graph.inputs]
    outputs = [graph.spec(ref) for ref in graph.outputs]

    def call(given: Sequence[memoryview], results: Sequence[memoryview]) -> None:
        # With the strides that the values had at capture: a view that was legal then is legal now.
        tensors = [with_layout(tensor_of(view, spec), spec) for view, spec in zip(given, inputs, strict=True)]
        for result, view, spec in zip(run_graph(graph, tensors), results, outputs, strict=True):
            if spec.numel:
                tensor_of(view, spec).copy_(result)

    return call


def tensor_of(view: memoryview, spec: TensorSpec) -> torch.Tensor:
    """The memory as a contiguous tensor, without a copy."""
    if spec.numel == 0:
        return torch.empty(spec.shape, dtype=spec.dtype)
    return torch.frombuffer(view, dtype=spec.dtype, count=spec.numel).reshape(spec.shape)
