"""Compiled regions on a device, without a program around them: constants prepared, inputs uploaded, results as tensors.

Not here: which backend compiles, and what is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from tapestry.backends.transfer import from_storage, to_storage
from tapestry.program.graph import Call, Graph, GraphInput, Ref, TensorSpec
from tapestry.program.interpret import run_graph
from tapestry.program.serial import loads
from tapestry.runtime.bind import BoundRegion, ConstantBytes
from tapestry.runtime.device import Buffer, Command, Device, DeviceInfo
from tapestry.runtime.module import Compiled
from tapestry.runtime.resident import Resident

Overload = torch._ops.OpOverload


@dataclass
class Built:
    """A graph under construction, with the values of its inputs."""

    inputs: list[GraphInput] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)

    def argument(self, value: Any, constant: bool) -> Any:
        if isinstance(value, torch.Tensor):
            name = f"i{len(self.inputs)}"
            self.inputs.append(GraphInput(name, TensorSpec.of(value), constant))
            self.values.append(value)
            return Ref(name)
        if isinstance(value, list | tuple):
            return tuple(self.argument(entry, constant) for entry in value)
        return value


def single_call(
    op: Overload, args: Sequence[Any], kwargs: dict[str, Any], constants: Sequence[int] = ()
) -> tuple[Graph, list[torch.Tensor], list[torch.Tensor]]:
    """The graph of one call, the values of its inputs, and eager's results. ``constants``: positions of arguments."""
    built = Built()
    given = tuple(built.argument(value, place in constants) for place, value in enumerate(args))
    named = tuple((key, built.argument(value, False)) for key, value in kwargs.items())
    with torch.no_grad():
        result = op(*args, **kwargs)
    is_tuple = isinstance(result, tuple | list)
    results = list(result) if is_tuple else [result]
    outputs = tuple(TensorSpec.of(entry) if isinstance(entry, torch.Tensor) else None for entry in results)
    refs = tuple(Ref("n0", place) for place, spec in enumerate(outputs) if spec is not None)
    call = Call("n0", op, given, named, outputs, is_tuple)
    wanted = [entry for entry in results if isinstance(entry, torch.Tensor)]
    return Graph(tuple(built.inputs), (call,), refs), built.values, wanted


#: From a graph, the device and options, if any, to the compiled region.
Compile = Callable[[Graph, DeviceInfo, Any], Compiled]


class Bench:
    """Runs compiled regions on one device."""

    def __init__(self, device: Device, compiler: Compile) -> None:
        self.device = device
        self.resident = Resident(device)
        self._compiler = compiler

    def compile(self, graph: Graph, options: Any = None) -> Compiled:
        return self._compiler(graph, self.device.info, options)

    @contextmanager
    def placed(
        self, graph: Graph, compiled: Compiled, values: Sequence[torch.Tensor]
    ) -> Generator[tuple[list[Command], list[Buffer]]]:
        """The commands that run a compiled region, whose inputs lie on the device meanwhile, and its outputs there."""
        fixed = [value for value, entry in zip(values, graph.inputs, strict=True) if entry.constant]
        prepared = run_graph(loads(compiled.preparation), fixed) if compiled.preparation else ()

        def constant(position: int) -> ConstantBytes:
            decl = compiled.constants[position]
            source = values[decl.index] if decl.source == "input" else prepared[decl.index]
            return ConstantBytes.of(bytes(to_storage(source, compiled.tensors[decl.tensor], "a constant")))

        bound = BoundRegion(compiled, self.resident, constant)
        made = []
        try:
            inputs = []
            for value, entry, tensor in zip(values, graph.inputs, compiled.inputs, strict=True):
                if entry.constant or tensor < 0:
                    inputs.append(None)
                    continue
                inputs.append(self.device.alloc(max(1, compiled.tensors[tensor].nbytes)))
                made.append(inputs[-1])
                data = to_storage(value.contiguous(), compiled.tensors[tensor], entry.name)
                if len(data):
                    self.device.write(inputs[-1], data)
            outputs = [self.device.alloc(max(1, compiled.tensors[tensor].nbytes)) for tensor in compiled.outputs]
            made += outputs
            yield list(bound.commands(inputs, outputs)), outputs
        finally:
            for buffer in made:
                self.device.free(buffer)
            bound.close()

    def run(self, graph: Graph, compiled: Compiled, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with self.placed(graph, compiled, values) as (commands, outputs):
            self.device.submit(commands)
            return [
                from_storage(
                    self.device.read(buffer, compiled.tensors[tensor].nbytes), compiled.tensors[tensor], graph.spec(ref)
                )
                for buffer, tensor, ref in zip(outputs, compiled.outputs, graph.outputs, strict=True)
            ]

    def call(
        self, op: Overload, *args: Any, constants: Sequence[int] = (), **kwargs: Any
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The device's results and eager's for one call."""
        graph, values, want = single_call(op, args, kwargs, constants)
        return self.run(graph, self.compile(graph), values), want
