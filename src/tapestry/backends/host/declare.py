"""The Compiled around an artifact of the host driver: tensors as the program has them, constants bound once.

Not here: what is in the artifact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec

from tapestry.backends.host.value import Value
from tapestry.program.graph import Graph, Ref, TensorSpec
from tapestry.program.serial import dtype_name
from tapestry.runtime.module import Artifact, Compiled, ConstantDecl, TensorDecl


@dataclass(frozen=True)
class Body:
    """The part of a graph that a runtime computes: all of it but the outputs that are inputs handed through."""

    whole: Graph

    @cached_property
    def graph(self) -> Graph:
        """The graph with the outputs that it computes."""
        return Graph(self.whole.inputs, self.whole.calls, self.computed)

    @property
    def computed(self) -> tuple[Ref, ...]:
        names = {entry.name for entry in self.whole.inputs}
        return tuple(dict.fromkeys(ref for ref in self.whole.outputs if ref.name not in names))

    @property
    def constants(self) -> tuple[int, ...]:
        """The places of the constants among the inputs."""
        return tuple(place for place, entry in enumerate(self.whole.inputs) if entry.constant)

    def inputs(self) -> tuple[Value, ...]:
        """The inputs under the graph's names."""
        return tuple(_value(entry.name, entry.spec) for entry in self.whole.inputs)

    def varying(self) -> tuple[Value, ...]:
        """The inputs that are not constant."""
        return tuple(_value(entry.name, entry.spec) for entry in self.whole.inputs if not entry.constant)

    def outputs(self) -> tuple[Value, ...]:
        """The computed outputs, named ``out0``, ``out1`` …"""
        return tuple(_value(f"out{place}", self.whole.spec(ref)) for place, ref in enumerate(self.computed))

    def compiled(self, backend: str, loader: str, payload: msgspec.Struct) -> Compiled:
        """The Compiled whose artifact is this payload. Its loader's program is given the constants once."""
        graph = self.whole
        places = {Ref(entry.name): place for place, entry in enumerate(graph.inputs)}
        specs = [entry.spec for entry in graph.inputs]
        for ref in self.computed:
            places[ref] = len(specs)
            specs.append(graph.spec(ref))
        return Compiled(
            backend=backend,
            module=Artifact(loader, msgspec.msgpack.encode(payload), native=True, binds=True),
            tensors=tuple(TensorDecl(spec.shape, dtype_name(spec.dtype), dtype_name(spec.dtype)) for spec in specs),
            inputs=tuple(range(len(graph.inputs))),
            outputs=tuple(places[ref] for ref in graph.outputs),
            constants=tuple(ConstantDecl(place, "input", place) for place in self.constants),
        )


def _value(name: str, spec: TensorSpec) -> Value:
    return Value(name, spec.shape, dtype_name(spec.dtype))
