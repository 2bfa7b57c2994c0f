"""A call with real tensors as a closed graph of one call, and back. Not here: variants of it, and running it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch

from tapestry.program.graph import Argument, Call, Graph, GraphInput, Ref, TensorSpec, operands, refs_in
from tapestry.program.interpret import resolve
from tapestry.suite.variants.call import OpCall, tensors_in


def call_of(graph: Graph, inputs: Sequence[torch.Tensor]) -> OpCall:
    """The only call of a graph on real tensors, given in the order of the graph's inputs."""
    (call,) = graph.calls
    values: dict[Ref, object] = {Ref(entry.name): tensor for entry, tensor in zip(graph.inputs, inputs, strict=True)}
    args = tuple(resolve(value, values) for value in call.args)
    kwargs = {name: resolve(value, values) for name, value in call.kwargs}
    constant = {entry.name for entry in graph.inputs if entry.constant}
    read = tuple(operands(call))
    return OpCall(call.target, args, kwargs, frozenset(place for place, ref in enumerate(read) if ref.name in constant))


def inputs_of(graph: Graph, call: OpCall) -> tuple[torch.Tensor, ...]:
    """The tensors of a call in the order of a graph's inputs; of an input that is read twice, the first."""
    first: dict[str, torch.Tensor] = {}
    for ref, tensor in zip(operands(graph.calls[0]), call.tensors, strict=True):
        first.setdefault(ref.name, tensor)
    return tuple(first[entry.name] for entry in graph.inputs)


def graph_of(call: OpCall, results: object, like: Graph) -> tuple[Graph, tuple[torch.Tensor, ...]]:
    """A call as a graph, with its tensors in the graph's order.

    ``results`` is what the operator gives, ``like`` the graph of the call that this one was derived from: tensors at
    arguments that are constants there are constants here.
    """
    inputs = distinct_tensors(call)
    names = {id(tensor): f"i{place}" for place, tensor in enumerate(inputs)}
    constant: set[str] = set()
    fixed = frozenset(_constant_arguments(like))

    def swap(value: object, place: str) -> Argument:
        if isinstance(value, torch.Tensor):
            if place in fixed:
                constant.add(names[id(value)])
            return Ref(names[id(value)])
        if isinstance(value, tuple | list):
            return tuple(swap(entry, place) for entry in cast("Sequence[object]", value))
        return cast("Argument", value)

    schema = [argument.name for argument in call.target._schema.arguments]
    args = tuple(swap(value, schema[place]) for place, value in enumerate(call.args))
    kwargs = tuple((name, swap(value, name)) for name, value in sorted(call.kwargs.items()))
    is_tuple = isinstance(results, tuple | list)
    made = tuple(cast("Sequence[object]", results)) if is_tuple else (results,)
    specs = tuple(TensorSpec.of(entry) if isinstance(entry, torch.Tensor) else None for entry in made)
    entries = tuple(
        GraphInput(names[id(tensor)], TensorSpec.of(tensor), names[id(tensor)] in constant) for tensor in inputs
    )
    outputs = tuple(Ref("n0", item) for item in read_items(like, specs))
    graph = Graph(entries, (Call("n0", call.target, args, kwargs, specs, is_tuple),), outputs)
    return graph, inputs


def distinct_tensors(call: OpCall) -> tuple[torch.Tensor, ...]:
    """The tensors of a call, each once, in the order in which `graph_of` makes them inputs."""
    named = tuple(call.kwargs[name] for name in sorted(call.kwargs))
    return tuple({id(tensor): tensor for tensor in (*tensors_in(call.args), *tensors_in(named))}.values())


def read_items(like: Graph, specs: Sequence[TensorSpec | None]) -> Iterator[int]:
    """The results that a derived call hands out: those that the graph it was derived from does, where they exist."""
    wanted = {ref.item for ref in like.outputs}
    for item, spec in enumerate(specs):
        if spec is not None and (item in wanted or len(specs) != len(like.calls[0].outputs)):
            yield item


def _constant_arguments(graph: Graph) -> Iterator[str]:
    """The names of the arguments that hold constants, and nothing else, in a graph's call."""
    (call,) = graph.calls
    constant = {entry.name: entry.constant for entry in graph.inputs}
    schema = [argument.name for argument in call.target._schema.arguments]
    for name, value in (*zip(schema, call.args, strict=False), *call.kwargs):
        read = [ref.name for ref in refs_in(value)]
        if read and all(constant[entry] for entry in read):
            yield name
