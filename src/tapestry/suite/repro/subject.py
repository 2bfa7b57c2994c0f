"""What is reduced: a closed graph with its real inputs, and graphs made anew after a change to inputs or calls.

Not here: which changes to try (shapes, values, calls), and running a subject on a device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from tapestry.program.graph import Argument, Call, Graph, GraphInput, Ref, TensorSpec, operands
from tapestry.program.interpret import Values, run_calls
from tapestry.program.program import tensor_digest
from tapestry.program.serial import dumps
from tapestry.suite.one_call import call_of, graph_of
from tapestry.suite.variants.call import OpCall

#: What eager PyTorch raises for arguments that it does not take (NotImplementedError is a RuntimeError).
_REFUSALS = (RuntimeError, ValueError, IndexError, TypeError, ArithmeticError)


@dataclass(frozen=True, eq=False)
class Subject:
    """A closed graph and its inputs, in the graph's order, with the strides that the graph says."""

    graph: Graph
    inputs: tuple[Tensor, ...]

    @property
    def single(self) -> bool:
        """Whether the graph is one call."""
        return len(self.graph.calls) == 1

    @property
    def elements(self) -> int:
        """The elements of all inputs; one that is expanded counts as what it shows."""
        return sum(tensor.numel() for tensor in self.inputs)

    @property
    def constant_elements(self) -> int:
        """The elements of those inputs that are parameters or other constants of the model."""
        pairs = zip(self.graph.inputs, self.inputs, strict=True)
        return sum(tensor.numel() for entry, tensor in pairs if entry.constant)

    @property
    def call(self) -> OpCall:
        """The only call, with real arguments."""
        return call_of(self.graph, self.inputs)

    @property
    def digest(self) -> str:
        """A hash of the graph and the values."""
        total = hashlib.sha256(dumps(self.graph))
        for tensor in self.inputs:
            total.update(tensor_digest(tensor).encode())
        return total.hexdigest()


def with_call(subject: Subject, call: OpCall) -> Subject | None:
    """The subject with another call in place of its only one; None where eager refuses it."""
    try:
        with torch.no_grad():
            given = _copied(call) if call.target._schema.is_mutable else call
            results = given.target(*given.args, **given.kwargs)
    except _REFUSALS:
        return None
    graph, inputs = graph_of(call, results, subject.graph)
    return Subject(graph, inputs) if graph.outputs else None


def with_inputs(subject: Subject, inputs: Sequence[Tensor]) -> Subject | None:
    """The subject on other inputs, of whatever shape; None where eager refuses them."""
    return remade(subject.graph.inputs, inputs, subject.graph.calls, subject.graph.outputs)


def remade(
    entries: Sequence[GraphInput], inputs: Sequence[Tensor], calls: Sequence[Call], outputs: Sequence[Ref]
) -> Subject | None:
    """The calls as a graph on these inputs, with the specs that eager gives; None where it refuses or gives nothing.

    Names may be any; those of the result go by position. Outputs that no longer exist are left out.
    """
    values: Values = {Ref(entry.name): tensor for entry, tensor in zip(entries, inputs, strict=True)}
    found = results_of(calls, values)
    if found is None:
        return None
    names = {entry.name: f"i{place}" for place, entry in enumerate(entries)}
    names |= {call.name: f"n{place}" for place, call in enumerate(calls)}
    specs = {call.name: tuple(_spec(entry) for entry in found[call.name]) for call in calls}
    made = tuple(_renamed(call, names, specs[call.name]) for call in calls)
    kept = tuple(
        Ref(names[ref.name], ref.item)
        for ref in outputs
        if ref.name not in specs or (ref.item < len(specs[ref.name]) and specs[ref.name][ref.item] is not None)
    )
    if not kept or not made:
        return None
    fresh = tuple(
        GraphInput(names[entry.name], TensorSpec.of(tensor), entry.constant)
        for entry, tensor in zip(entries, inputs, strict=True)
    )
    return Subject(Graph(fresh, made, kept), tuple(inputs))


def results_of(calls: Sequence[Call], values: Mapping[Ref, object]) -> dict[str, tuple[object, ...]] | None:
    """The results of each call in eager, by its name; None where eager refuses one."""
    found: dict[str, tuple[object, ...]] = {}

    def note(call: Call, args: object, kwargs: object, results: tuple[object, ...]) -> None:
        found[call.name] = results

    try:
        with torch.no_grad():
            run_calls(calls, dict(values), set(), observe=note)
    except (*_REFUSALS, LookupError):
        return None
    return found


def without_unread(subject: Subject) -> Subject:
    """The subject without inputs that nothing reads."""
    read = {ref.name for call in subject.graph.calls for ref in operands(call)} | {
        ref.name for ref in subject.graph.outputs
    }
    pairs = [
        (entry, tensor)
        for entry, tensor in zip(subject.graph.inputs, subject.inputs, strict=True)
        if entry.name in read
    ]
    if len(pairs) == len(subject.inputs):
        return subject
    entries, inputs = zip(*pairs, strict=True) if pairs else ((), ())
    return remade(entries, inputs, subject.graph.calls, subject.graph.outputs) or subject


def _copied(call: OpCall) -> OpCall:
    return call.with_tensors(tuple(tensor.detach().clone() for tensor in call.tensors))


def _spec(value: object) -> TensorSpec | None:
    return TensorSpec.of(value) if isinstance(value, Tensor) else None


def _renamed(call: Call, names: Mapping[str, str], specs: tuple[TensorSpec | None, ...]) -> Call:
    def swap(value: object) -> Argument:
        if isinstance(value, Ref):
            return Ref(names[value.name], value.item)
        if isinstance(value, tuple):
            return tuple(swap(entry) for entry in cast("tuple[object, ...]", value))
        return cast("Argument", value)

    args = tuple(swap(value) for value in call.args)
    kwargs = tuple((name, swap(value)) for name, value in call.kwargs)
    return Call(names[call.name], call.target, args, kwargs, specs, call.is_tuple)
