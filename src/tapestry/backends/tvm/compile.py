"""compile_graph: a closed ATen graph to a Compiled, by way of TVM. The pipeline, without TVM's own API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from tapestry.backends.tvm.decompose import decompose
from tapestry.backends.tvm.options import TvmOptions
from tapestry.backends.tvm.partition import Constant, Parts, partition
from tapestry.backends.tvm.plan import Literal, Plan, Step
from tapestry.backends.tvm.supports import graph_refusal
from tapestry.backends.tvm.targets import DeviceTarget, target_for
from tapestry.errors import CompileError
from tapestry.program.graph import Call, Graph, Ref, TensorSpec
from tapestry.program.serial import dtype_name, dtype_named, dumps
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Compiled, ConstantDecl, KernelDecl, KernelModule, LaunchDecl, Scalar, TensorDecl

NAME = "tvm"


def compile_graph(graph: Graph, info: DeviceInfo, options: TvmOptions) -> Compiled:
    """Compile a graph for a device kind; the same graph and options give equal bytes.

    Raises UnsupportedError (an operator, dtype or shape that this backend does not take, with the reason) or
    CompileError (the compiler's own reason, or a result whose shape or dtype is not eager's).
    """
    graph_refusal(graph, info)
    target = target_for(info)
    parts = partition(graph, decompose(graph))
    plan = _empty_plan()
    if parts.device_results:
        from tapestry.backends.tvm.adapter.lower import build

        plan = build(parts.device, target, options, info.limits)
    return _Assembly(graph, parts, plan, target).compiled()


#: Workgroups along one dimension that every WebGPU adapter takes (the specification's default limit).
_MOST_GROUPS = 65_535


def _split(step: Step) -> tuple[int, int, int]:
    """The grid of a WGSL kernel of TVM's: groups along x beyond the limit go on along z.

    TVM's text counts ``blockIdx.z * gridDim.x + blockIdx.x``, and leaves at once where that is over the scalar.
    """
    x, y, z = step.grid
    if z != 1:
        raise CompileError(f"TVM launches {step.kernel} with {z} groups along z, which its WGSL needs for x")
    layers = -(-x // _MOST_GROUPS)
    return -(-x // layers), y, layers


def _empty_plan() -> Plan:
    return Plan((), (), (), (), (), (), "")


class _Assembly:
    """Puts the plan's slots, the constants and the region's inputs and outputs into one list of tensors."""

    def __init__(self, graph: Graph, parts: Parts, plan: Plan, target: DeviceTarget) -> None:
        self._graph = graph
        self._parts = parts
        self._plan = plan
        self._target = target
        # TVM's types are those of the storage, but for bool.
        self._tensors = [
            TensorDecl(slot.shape, slot.dtype, target.stored(slot.dtype), slot.alias) for slot in plan.slots
        ]
        self._constants: list[ConstantDecl] = []
        self._inputs = [-1] * len(graph.inputs)
        self._prepared: dict[int, int] = {}

    def compiled(self) -> Compiled:
        placeholders = iter(self._plan.inputs)
        for number, slot in zip(self._parts.inputs, placeholders, strict=False):
            self._inputs[number] = slot
            self._declare(slot, self._graph.inputs[number].spec)
        for constant, slot in zip(self._parts.constants, placeholders, strict=True):
            self._fill(slot, constant)
        outputs = tuple(self._output(place) for place in self._parts.outputs)
        preparation = self._with_literals(self._parts.preparation, self._plan.literals)
        self._verify(outputs)
        return Compiled(
            NAME,
            self._module(),
            tuple(self._tensors),
            tuple(self._inputs),
            outputs,
            tuple(self._launches()),
            tuple(sorted(self._constants, key=lambda entry: entry.tensor)),
            dumps(preparation) if preparation.outputs else b"",
        )

    def _fill(self, slot: int, constant: Constant) -> None:
        self._constants.append(ConstantDecl(slot, constant.source, constant.index))
        if constant.source == "input":
            self._inputs[constant.index] = slot
            self._declare(slot, self._graph.inputs[constant.index].spec)
        else:
            self._prepared[constant.index] = slot
            self._declare(slot, self._prepared_spec(constant.index))

    def _declare(self, slot: int, spec: TensorSpec) -> None:
        """Give a slot the program's dtype; CompileError when the lowering holds it in another shape or type."""
        have, dtype = self._tensors[slot], dtype_name(spec.dtype)
        if have.shape != spec.shape or have.storage != self._target.stored(dtype):
            raise CompileError(
                f"the lowering holds a value as {have.storage}{list(have.shape)}, "
                f"expected {dtype}{list(spec.shape)} as {self._target.stored(dtype)}"
            )
        self._tensors[slot] = TensorDecl(have.shape, dtype, have.storage, have.alias)

    def _tensor(self, spec: TensorSpec) -> int:
        dtype = dtype_name(spec.dtype)
        self._tensors.append(TensorDecl(spec.shape, dtype, self._target.stored(dtype)))
        return len(self._tensors) - 1

    def _output(self, place: int | Constant) -> int:
        if isinstance(place, int):
            return self._plan.outputs[place]
        if place.source == "prepared":
            if place.index not in self._prepared:
                self._fill(self._tensor(self._prepared_spec(place.index)), place)
            return self._prepared[place.index]
        entry = self._graph.inputs[place.index]
        if self._inputs[place.index] < 0:
            slot = self._tensor(entry.spec)
            self._inputs[place.index] = slot
            if entry.constant:
                self._fill(slot, place)
        return self._inputs[place.index]

    def _prepared_spec(self, index: int) -> TensorSpec:
        return self._parts.preparation.spec(self._parts.preparation.outputs[index])

    def _with_literals(self, graph: Graph, literals: Sequence[Literal]) -> Graph:
        """The preparation, which also makes the single values that TVM left outside of its kernels."""
        calls, outputs = list(graph.calls), list(graph.outputs)
        for literal in literals:
            slot = self._plan.slots[literal.slot]
            spec = TensorSpec(slot.shape, torch.empty(slot.shape, device="meta").stride(), dtype_named(slot.dtype))
            name = f"n{len(calls)}"
            args = (slot.shape, literal.value)
            calls.append(Call(name, torch.ops.aten.full.default, args, (("dtype", spec.dtype),), (spec,)))
            self._constants.append(ConstantDecl(literal.slot, "prepared", len(outputs)))
            outputs.append(Ref(name))
        return Graph(graph.inputs, tuple(calls), tuple(outputs))

    def _module(self) -> KernelModule:
        kernels = tuple(KernelDecl(kernel.name, kernel.access, kernel.source) for kernel in self._plan.kernels)
        return KernelModule(self._target.language, self._plan.source, kernels)

    def _launches(self) -> Iterable[LaunchDecl]:
        for step in self._plan.steps:
            args: tuple[int | Scalar, ...] = step.args
            grid = step.grid
            if self._target.one_entry:
                args = (*args, Scalar("uint32", grid[0] - 1))
                grid = _split(step)
            yield LaunchDecl(step.kernel, args, grid, step.block)

    def _verify(self, outputs: tuple[int, ...]) -> None:
        """Eager's shapes and dtypes, or CompileError: a lowering that drops or changes a result is never run."""
        if len(outputs) != len(self._graph.outputs):
            raise CompileError(f"the lowering gives {len(outputs)} results, expected {len(self._graph.outputs)}")
        for place, ref in zip(outputs, self._graph.outputs, strict=True):
            self._declare(place, self._graph.spec(ref))
