"""The eager backend with faults: operators that are wrong, crash, hang, are unsupported or do not compile.

In this process a crash or a hang is simulated (EagerMockDevice turns it into a lost device); in a worker it is real.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, cast

import msgspec
import torch

from tapestry.backends.base import AnyOp, Availability, Backend, Options, Rule
from tapestry.backends.eager import Eager, tensor_of
from tapestry.backends.transfer import with_layout
from tapestry.errors import CompileError
from tapestry.program.graph import Call, Graph, Ref, operands
from tapestry.program.interpret import Values, run_calls
from tapestry.program.serial import dumps, loads, overload_name
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.drivers.host import register_loader_prefix
from tapestry.runtime.module import Artifact, Compiled

#: Whether a crash is an exception (True where the device is in this process).
simulate = False


class FaultError(Exception):
    """A simulated crash or hang; ``args[0]`` is ``abort`` or ``hang``."""


class Fault(msgspec.Struct, frozen=True):
    """One fault of one operator (``aten.gelu.default``).

    ``kind``: ``wrong``, ``abort``, ``hang``, ``raise``, ``unsupported`` or ``compile``. It shows itself only where
    all of these hold: ``after`` (an operator whose result this one reads) is in the same region; the largest
    operand is above ``above``; an operand sums to ``sums_to`` (a weight, and so a place); an operand holds NaN
    (``nan``).
    """

    kind: str
    op: str
    after: str = ""
    above: float | None = None
    sums_to: float | None = None
    nan: bool = False


class _Payload(msgspec.Struct):
    graph: bytes
    faults: list[Fault]


class FaultyBackend(Backend):
    """Eager with faults. ``version`` is part of the fingerprint of regions that hold an operator it names."""

    name: ClassVar[str] = "faulty"
    device_kinds: ClassVar[frozenset[str]] = frozenset({"host", "mock"})
    isolated: ClassVar[bool] = False

    def __init__(self, *faults: Fault, version: str = "1") -> None:
        self.faults = faults
        self.version = version
        self.compiled = 0
        self._eager = Eager()

    def availability(self) -> Availability:
        return Availability(True)

    def rules(self) -> Sequence[Rule]:
        return (AnyOp(self._when),)

    def _when(self, call: Call, info: DeviceInfo) -> str | None:
        for fault in self.faults:
            if fault.kind == "unsupported" and fault.op == overload_name(call.target):
                return f"faulty has no {fault.op}"
        return self._eager.refuses(call, info)

    def options(self) -> Sequence[Options]:
        return self._eager.options()

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        self.compiled += 1
        for fault in self.faults:
            if fault.kind == "compile" and any(_names(fault, call, graph) for call in graph.calls):
                raise CompileError(f"faulty cannot compile {fault.op}")
        compiled = self._eager.compile(graph, info, options)
        payload = msgspec.msgpack.encode(_Payload(dumps(graph), list(self.faults)))
        artifact = Artifact("support.faulty_backend:load", payload, native=False)
        return msgspec.structs.replace(compiled, backend=self.name, module=artifact)

    def fingerprint(self) -> str:
        return f"faulty {self.version} {[msgspec.to_builtins(fault) for fault in self.faults]}"


def allow_loader() -> None:
    """Let workers started from here load what this backend compiles."""
    register_loader_prefix("support.")


def _names(fault: Fault, call: Call, graph: Graph) -> bool:
    """Whether a fault is about this call, as far as the graph shows."""
    if overload_name(call.target) != fault.op:
        return False
    if not fault.after:
        return True
    read = {ref.name for ref in operands(call)}
    return any(overload_name(other.target) == fault.after for other in graph.calls if other.name in read)


def load(payload: bytes) -> Callable[[Sequence[memoryview], Sequence[memoryview]], None]:
    """The loader, in a worker or here."""
    stored = msgspec.msgpack.decode(payload, type=_Payload)
    graph = loads(stored.graph)

    def compute(call: Call, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        result = call.target(*args, **kwargs)
        for fault in stored.faults:
            if _names(fault, call, graph) and _shows(fault, args):
                result = _show(fault, result)
        return result

    def run(given: Sequence[memoryview], results: Sequence[memoryview]) -> None:
        values: Values = {}
        for entry, view in zip(graph.inputs, given, strict=True):
            values[Ref(entry.name)] = with_layout(tensor_of(view, entry.spec), entry.spec)
        with torch.no_grad():
            run_calls(graph.calls, values, frozenset(graph.outputs), compute)
        for ref, view in zip(graph.outputs, results, strict=True):
            spec = graph.spec(ref)
            if spec.numel:
                tensor_of(view, spec).copy_(cast("torch.Tensor", values[ref]))

    return run


def _shows(fault: Fault, args: tuple[object, ...]) -> bool:
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.numel() and arg.is_floating_point()]
    if fault.nan and not any(bool(tensor.isnan().any()) for tensor in tensors):
        return False
    if fault.above is not None and not any(float(tensor.max()) > fault.above for tensor in tensors):
        return False
    return fault.sums_to is None or any(abs(float(tensor.sum()) - fault.sums_to) < 1e-4 for tensor in tensors)


def _show(fault: Fault, result: object) -> object:
    if fault.kind == "raise":
        raise RuntimeError("this kernel always fails")
    if fault.kind in ("abort", "hang"):
        if simulate:
            raise FaultError(fault.kind)
        if fault.kind == "abort":
            os.abort()
        time.sleep(3600)
    if fault.kind != "wrong":
        return result
    if isinstance(result, torch.Tensor):
        if not result.is_floating_point():
            return result
        # Not by one factor: a normalisation would hide it.
        return result * (1 + 0.01 * (torch.arange(result.numel()) % 2).reshape(result.shape))
    return tuple(_show(fault, entry) for entry in cast("Sequence[object]", result))
