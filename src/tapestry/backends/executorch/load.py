"""Lowers and runs ExecuTorch programs in this process. Not here: the lowering itself (lower)."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import memmove
from functools import cache
from typing import Any

import msgspec
import torch

from tapestry.backends.eager import tensor_of
from tapestry.backends.executorch.lower import lower, open_method, quiet
from tapestry.backends.executorch.payload import ExecuTorchPayload
from tapestry.backends.host.memory import same_views
from tapestry.program.serial import loads
from tapestry.runtime.drivers.host import HostProgram, Unbound

#: The size that the pool was given last.
_pool: list[int] = []


def load(payload: bytes) -> Unbound:
    """The loader: a program with constants is made when they are there."""
    model = msgspec.msgpack.decode(payload, type=ExecuTorchPayload)

    def bind(constants: list[memoryview]) -> HostProgram:
        return _Method(model, constants)

    return Unbound(model.constants, bind)


class _Method:
    """A HostProgram. A method crashes when its program or the program's bytes are gone: both are kept."""

    def __init__(self, model: ExecuTorchPayload, constants: Sequence[memoryview]) -> None:
        graph = loads(model.graph)
        self._inputs = [entry.spec for entry in graph.inputs if not entry.constant]
        self._outputs = [graph.spec(ref) for ref in graph.outputs]
        specs = [entry.spec for entry in graph.inputs if entry.constant]
        weights = [tensor_of(view, spec) for view, spec in zip(constants, specs, strict=True)]
        self._threads = model.threads
        _use_threads(model.threads)
        self._bytes = model.program or lower(graph, weights)
        method, self._program = open_method(self._bytes)
        self._method: Any = method
        self._last: tuple[list[memoryview], list[memoryview]] = ([], [])
        self._tensors: tuple[list[torch.Tensor], list[torch.Tensor]] | None = None

    def __call__(self, inputs: list[memoryview], outputs: list[memoryview]) -> None:
        _use_threads(self._threads)
        if self._tensors is None or not (same_views(inputs, self._last[0]) and same_views(outputs, self._last[1])):
            self._tensors = (
                [tensor_of(view, spec) for view, spec in zip(inputs, self._inputs, strict=True)],
                [tensor_of(view, spec) for view, spec in zip(outputs, self._outputs, strict=True)],
            )
            self._last = (inputs, outputs)
        given, results = self._tensors
        for target, result in zip(results, self._method.execute(given), strict=True):
            if (target.dtype, target.shape, target.stride()) == (result.dtype, result.shape, result.stride()):
                memmove(target.data_ptr(), result.data_ptr(), target.nbytes)  # the dispatcher costs more than the bytes
            else:
                target.copy_(result)


def _use_threads(threads: int) -> None:
    """The delegate's pool is one for the process; it is made anew only when its size changes.

    What was asked for last is remembered: asking the library costs a good part of what a call spends outside of it.
    """
    if _pool == [threads]:
        return
    library = _library()
    # There is no public name for either.
    if library._threadpool_get_thread_count() != threads:  # noqa: SLF001
        library._unsafe_reset_threadpool(threads)  # noqa: SLF001
    _pool[:] = [threads]


@cache
def _library() -> Any:
    """The runtime's bindings. Looked up once: quieting an import clears the caches of all loggers, in every call."""
    with quiet():
        from executorch.extension.pybindings import portable_lib

    return portable_lib
