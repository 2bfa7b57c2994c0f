"""Freezes and runs graphs with Inductor in this process. Not here: choosing precision (backend)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from tapestry.backends.eager import tensor_of
from tapestry.backends.host.memory import same_views
from tapestry.backends.inductor.freeze import freeze
from tapestry.backends.inductor.payload import InductorPayload
from tapestry.backends.transfer import with_layout
from tapestry.errors import DeviceError
from tapestry.program.graph import TensorSpec
from tapestry.program.serial import loads
from tapestry.runtime.drivers.host import HostProgram, Unbound


def load(payload: bytes) -> Unbound:
    """The loader: Inductor compiles when the constants are there."""
    model = msgspec.msgpack.decode(payload, type=InductorPayload)

    def bind(constants: list[memoryview]) -> HostProgram:
        return _Frozen(model, constants)

    return Unbound(model.constants, bind)


class _Frozen:
    """A HostProgram: reads its inputs where they are; results are copied out, since they may share memory."""

    def __init__(self, model: InductorPayload, constants: Sequence[memoryview]) -> None:
        graph = loads(model.graph)
        self._threads = model.threads
        self._inputs = [entry.spec for entry in graph.inputs if not entry.constant]
        self._outputs = [graph.spec(ref) for ref in graph.outputs]
        specs = [entry.spec for entry in graph.inputs if entry.constant]
        weights = [_tensor(view, spec) for view, spec in zip(constants, specs, strict=True)]
        _use_threads(self._threads)
        try:
            self._run = freeze(graph, weights, model.threads)
        except Exception as error:
            raise DeviceError(f"Inductor does not load the region: {type(error).__name__}: {error}"[:800]) from error
        self._last: tuple[list[memoryview], list[memoryview]] = ([], [])
        self._tensors: tuple[list[torch.Tensor], list[torch.Tensor]] | None = None

    def __call__(self, inputs: list[memoryview], outputs: list[memoryview]) -> None:
        _use_threads(self._threads)
        if self._tensors is None or not same_views(inputs, self._last[0]) or not same_views(outputs, self._last[1]):
            self._tensors = (
                [tensor_of(view, spec) for view, spec in zip(inputs, self._inputs, strict=True)],
                [tensor_of(view, spec) for view, spec in zip(outputs, self._outputs, strict=True)],
            )
            self._last = (inputs, outputs)
        flat, results = self._tensors
        with torch.no_grad():
            # With the strides that the values had at capture, which the code was compiled for.
            given = [with_layout(tensor, spec) for tensor, spec in zip(flat, self._inputs, strict=True)]
            for target, result in zip(results, self._run(*given), strict=True):
                target.copy_(result)


def _tensor(view: memoryview, spec: TensorSpec) -> torch.Tensor:
    return with_layout(tensor_of(view, spec), spec)


def _use_threads(threads: int) -> None:
    """PyTorch's own kernels, which the compiled code calls too, take the number of threads from the process."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
