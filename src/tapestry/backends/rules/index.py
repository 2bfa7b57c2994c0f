"""The graph that rules look at, program or region, indexed for matching: producers, readers, operators, constants.

Not here: the rules, and any choice between regions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from tapestry.backends.rules.arguments import argument
from tapestry.errors import UsageError
from tapestry.program import traits
from tapestry.program.graph import Argument, Call, Graph, Ref, TensorSpec, operands
from tapestry.program.program import Program

#: Operators that hand on the content of their first operand, and those that are filled with one number.
_SAME_CONTENT = frozenset({"lift_fresh_copy", "clone", "detach", "alias"})
_FILLED = {"full": "fill_value", "scalar_tensor": "s"}


@dataclass(frozen=True, eq=False)
class GraphIndex:
    """A Program or a Graph as the rules see it. Make one with ``GraphIndex.of`` and use it for many rules.

    ``constants`` are the names whose values are the same in every run (parameters, unwritten buffers, folded calls),
    ``folded`` the calls among them, ``results`` the values that leave the graph, ``tensors`` the constants whose
    content is known. ``order_before`` names the random call that a random call must follow.
    """

    calls: tuple[Call, ...]
    inputs: Mapping[str, TensorSpec]
    constants: frozenset[str]
    folded: frozenset[str]
    results: frozenset[Ref]
    tensors: Mapping[str, torch.Tensor] = field(repr=False)
    order_before: Mapping[str, str]
    _arguments: dict[str, Mapping[str, Argument]] = field(default_factory=dict[str, Mapping[str, Argument]], repr=False)

    @staticmethod
    def of(graph: Program | Graph | GraphIndex) -> GraphIndex:
        """The index of a graph; one that is an index already is returned as it is."""
        if isinstance(graph, GraphIndex):
            return graph
        return _of_program(graph) if isinstance(graph, Program) else _of_graph(graph)

    @cached_property
    def by_name(self) -> dict[str, Call]:
        return {call.name: call for call in self.calls}

    @cached_property
    def position(self) -> dict[str, int]:
        """Call name → place in execution order."""
        return {call.name: place for place, call in enumerate(self.calls)}

    @cached_property
    def by_target(self) -> dict[torch._ops.OpOverload, tuple[Call, ...]]:
        """The calls of each operator, in order."""
        found: dict[torch._ops.OpOverload, list[Call]] = {}
        for call in self.calls:
            found.setdefault(call.target, []).append(call)
        return {target: tuple(calls) for target, calls in found.items()}

    @cached_property
    def readers(self) -> dict[Ref, tuple[str, ...]]:
        """Value → names of the calls that read it, in order. Results of the graph are not counted."""
        found: dict[Ref, dict[str, None]] = {}
        for call in self.calls:
            for ref in operands(call):
                found.setdefault(ref, {})[call.name] = None
        return {ref: tuple(names) for ref, names in found.items()}

    @cached_property
    def before(self) -> dict[str, tuple[str, ...]]:
        """Call name → the calls that must run before it: those it reads from, and the last random one."""
        found: dict[str, tuple[str, ...]] = {}
        for call in self.calls:
            needed = {ref.name: None for ref in operands(call) if ref.name in self.position}
            if call.name in self.order_before:
                needed[self.order_before[call.name]] = None
            found[call.name] = tuple(needed)
        return found

    @cached_property
    def after(self) -> dict[str, tuple[str, ...]]:
        """Call name → the calls that must run after it: the inverse of ``before``."""
        found: dict[str, list[str]] = {call.name: [] for call in self.calls}
        for name, needed in self.before.items():
            for source in needed:
                found[source].append(name)
        return {name: tuple(names) for name, names in found.items()}

    @cached_property
    def data_after(self) -> dict[str, tuple[str, ...]]:
        """Call name → the calls that read one of its results, in order."""
        found: dict[str, dict[str, None]] = {call.name: {} for call in self.calls}
        for call in self.calls:
            for ref in operands(call):
                if ref.name in found:
                    found[ref.name][call.name] = None
        return {name: tuple(readers) for name, readers in found.items()}

    @cached_property
    def keep_reasons(self) -> dict[str, str]:
        """Why a call can be in no region, by name; calls that can be are not listed."""
        found: dict[str, str] = {}
        for call in self.calls:
            reason = traits.place_reason(call)
            if call.name in self.folded:
                found[call.name] = f"{call.name} is folded into a constant: a pattern takes it as param()"
            elif reason is not None:
                found[call.name] = f"{call.name} stays on the source: {reason}"
        return found

    @cached_property
    def leaving_calls(self) -> frozenset[str]:
        """The calls that have a result among the graph's."""
        return frozenset(ref.name for ref in self.results if ref.name in self.position)

    def arguments(self, call: Call) -> Mapping[str, Argument]:
        """All arguments of a call by their schema names, as ``arguments.argument`` gives them; kept for all rules."""
        found = self._arguments.get(call.name)
        if found is None:
            found = {entry.name: argument(call, entry.name) for entry in call.target._schema.arguments}
            self._arguments[call.name] = found
        return found

    def call(self, name: str) -> Call:
        """The call of this name; UsageError when there is none."""
        if name not in self.by_name:
            raise UsageError(f"expected the name of a node of the graph, got {name!r}")
        return self.by_name[name]

    def spec(self, ref: Ref) -> TensorSpec:
        """The spec of a value; KeyError for one the graph does not have."""
        call = self.by_name.get(ref.name)
        spec = self.inputs[ref.name] if call is None else call.outputs[ref.item]
        if spec is None:
            raise KeyError(ref)
        return spec

    def is_constant(self, ref: Ref) -> bool:
        """Whether a value is the same in every run."""
        return ref.name in self.constants

    def ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names in execution order, each once."""
        return tuple(sorted(set(names), key=self.position.__getitem__))

    def number(self, ref: Ref) -> bool | int | float | complex | None:
        """The content of a constant of one element, as far as the graph holds it; else None."""
        call = self.by_name.get(ref.name)
        if call is not None:
            return self._folded_number(call)
        tensor = self.tensors.get(ref.name)
        if tensor is None or tensor.numel() != 1 or not self.is_constant(ref):
            return None
        return tensor.item()

    def _folded_number(self, call: Call) -> bool | int | float | complex | None:
        if call.name not in self.folded:
            return None
        base = traits.base_name(call.target)
        if base in _SAME_CONTENT:
            return self.number(next(iter(operands(call))))
        spec = call.outputs[0]
        value = traits.argument(call, _FILLED[base]) if base in _FILLED else None
        if spec is None or spec.numel != 1 or not isinstance(value, bool | int | float | complex):
            return None
        return torch.tensor(value, dtype=spec.dtype).item()


def _of_program(program: Program) -> GraphIndex:
    inputs = {entry.name: entry.spec for entry in program.inputs if entry.spec is not None}
    inputs |= {name: TensorSpec.of(tensor) for name, tensor in program.tensors.items()}
    unwritten = program.tensors.keys() - program.state_names
    return GraphIndex(
        calls=tuple(node.call for node in program.nodes),
        inputs=inputs,
        constants=frozenset(unwritten) | program.folded,
        folded=program.folded,
        results=program.results,
        tensors=program.tensors,
        order_before=program.random_before,
    )


def _of_graph(graph: Graph) -> GraphIndex:
    constants = {entry.name for entry in graph.inputs if entry.constant}
    folded: set[str] = set()
    for call in graph.calls:
        fixed = all(ref.name in constants or ref.name in folded for ref in operands(call))
        if fixed and call.outputs and not traits.keeps_its_place(call):
            folded.add(call.name)
    random = [call.name for call in graph.calls if traits.is_random(call)]
    return GraphIndex(
        calls=graph.calls,
        inputs={entry.name: entry.spec for entry in graph.inputs},
        constants=frozenset(constants | folded),
        folded=frozenset(folded),
        results=frozenset(graph.outputs),
        tensors={},
        order_before=dict(zip(random[1:], random[:-1], strict=True)),
    )
