"""The eager backend with results that are bent: scaled, with a NaN, or other ones each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, cast

import msgspec
import torch

from tapestry.backends.base import AnyOp, Availability, Backend, Options, Rule
from tapestry.backends.eager import Eager, tensor_of
from tapestry.backends.eager import load as load_eager
from tapestry.program.graph import Graph
from tapestry.program.serial import dumps, loads, overload_name
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.drivers.host import register_loader_prefix
from tapestry.runtime.module import Artifact, Compiled

How = Literal["exact", "scaled", "nan", "remembers"]
Memory = Sequence[memoryview]


class Bend(Options, frozen=True):
    """How results are bent; ``by`` is the factor of ``scaled``, less 1."""

    how: How = "exact"
    by: float = 0.0


class _Payload(msgspec.Struct):
    graph: bytes
    how: How
    by: float


class Bent(Backend):
    """Regions that hold the operator ``op`` give bent results, as the options say; others eager's."""

    name: ClassVar[str] = "bent"
    device_kinds: ClassVar[frozenset[str]] = Eager.device_kinds
    isolated: ClassVar[bool] = False

    def __init__(self, op: str, *options: Bend) -> None:
        self.op = op
        self._options = options or (Bend(),)
        register_loader_prefix("support.")

    def availability(self) -> Availability:
        return Availability(True)

    def rules(self) -> Sequence[Rule]:
        return (AnyOp(Eager().refuses),)

    def options(self) -> Sequence[Options]:
        return self._options

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        compiled = Eager().compile(graph, info, options)
        bend = cast(Bend, options)
        holds = any(overload_name(call.target) == self.op for call in graph.calls)
        payload = _Payload(dumps(graph), bend.how if holds else "exact", bend.by)
        module = Artifact(f"{__name__}:load", msgspec.msgpack.encode(payload), native=False)
        return msgspec.structs.replace(compiled, module=module)

    def fingerprint(self) -> str:
        return f"bent {self.op} 1"


def load(payload: bytes) -> Callable[[Memory, Memory], None]:
    """The region as a callable on raw memory."""
    asked = msgspec.msgpack.decode(payload, type=_Payload)
    graph = loads(asked.graph)
    eager = load_eager(asked.graph)
    runs = 0

    def call(given: Memory, results: Memory) -> None:
        nonlocal runs
        eager(given, results)
        runs += 1
        for view, ref in zip(results, graph.outputs, strict=True):
            tensor = tensor_of(view, graph.spec(ref)).reshape(-1)
            if asked.how == "scaled":
                tensor *= 1 + asked.by
            elif asked.how == "remembers" and runs > 1:
                tensor += 0.5
            elif asked.how == "nan":
                tensor[0] = torch.nan

    return call
