"""Running graphs and programs with PyTorch, one ATen call at a time.

Not here: placements and devices. This is the source platform, the oracle's engine, and where carving looks on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import torch

from tapestry.program.graph import Call, Graph, Ref, operands
from tapestry.program.program import Program

#: Sees every call: the call, its arguments and its results, in order.
Observer = Callable[[Call, tuple[object, ...], Mapping[str, object], tuple[object, ...]], None]
#: Computes one call; by default the operator itself.
Compute = Callable[[Call, tuple[object, ...], Mapping[str, object]], object]

Values = dict[Ref, object]


def resolve(argument: object, values: Mapping[Ref, object]) -> object:
    """An argument with every Ref replaced by its value; tuples become lists, which is what ATen takes."""
    if isinstance(argument, Ref):
        return values[argument]
    if isinstance(argument, tuple):
        return [resolve(entry, values) for entry in cast("tuple[object, ...]", argument)]
    return argument


def call_operator(call: Call, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    """The operator itself, in eager PyTorch."""
    return call.target(*args, **kwargs)


def run_calls(
    calls: Iterable[Call],
    values: Values,
    keep: frozenset[Ref] | set[Ref],
    compute: Compute = call_operator,
    observe: Observer | None = None,
) -> None:
    """Run calls in order, putting every result in ``values``; a value is dropped after its last reader.

    Only results of these calls are dropped, and none in ``keep``.
    """
    ordered = tuple(calls)
    dying = _dying(ordered, keep)
    for call, last in zip(ordered, dying, strict=True):
        args = tuple(resolve(value, values) for value in call.args)
        kwargs = {key: resolve(value, values) for key, value in call.kwargs}
        result = compute(call, args, kwargs)
        results = tuple(cast("Sequence[object]", result)) if call.is_tuple else (result,)
        if observe is not None:
            observe(call, args, kwargs, results)
        for item, value in enumerate(results[: len(call.outputs)]):
            values[Ref(call.name, item)] = value
        for ref in last:
            values.pop(ref, None)


def _dying(calls: Sequence[Call], keep: frozenset[Ref] | set[Ref]) -> list[tuple[Ref, ...]]:
    """For each call the values made here that nothing reads after it."""
    last: dict[Ref, int] = {}
    for place, call in enumerate(calls):
        for item in range(len(call.outputs)):
            last[Ref(call.name, item)] = place
        for ref in operands(call):
            if ref in last:
                last[ref] = place
    dying: list[list[Ref]] = [[] for _ in calls]
    for ref, place in last.items():
        if ref not in keep:
            dying[place].append(ref)
    return [tuple(refs) for refs in dying]


def run_graph(graph: Graph, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Run a closed graph on tensors in the order of its inputs."""
    values: Values = {Ref(entry.name): tensor for entry, tensor in zip(graph.inputs, inputs, strict=True)}
    with torch.no_grad():
        run_calls(graph.calls, values, frozenset(graph.outputs))
    return tuple(cast("torch.Tensor", values[ref]) for ref in graph.outputs)


def fold(program: Program) -> dict[Ref, torch.Tensor]:
    """The results of the program's folded nodes that something outside of them reads."""
    values: Values = {Ref(name): tensor for name, tensor in program.tensors.items()}
    calls = [node.call for node in program.nodes if node.id in program.folded]
    wanted = {
        ref for node in program.nodes if node.id not in program.folded for ref in operands(node.call)
    } | program.results
    keep = {ref for ref in wanted if ref.name in program.folded}
    with torch.no_grad():
        run_calls(calls, values, keep)
    return {ref: cast("torch.Tensor", values[ref]) for ref in keep}


def start_values(program: Program, bound: Mapping[str, object], state: Mapping[str, torch.Tensor]) -> Values:
    """Values before the first call: tensors, state and the caller's inputs (Program.bind)."""
    values: Values = {Ref(name): tensor for name, tensor in program.tensors.items()}
    values.update({Ref(name): tensor for name, tensor in state.items()})
    values.update({Ref(name): value for name, value in bound.items()})
    return values


def run_program(
    program: Program,
    values: Values,
    compute: Compute = call_operator,
    observe: Observer | None = None,
) -> Values:
    """Run the whole program on ``values`` (start_values); what stays in it are inputs and Program.results."""
    with torch.no_grad():
        run_calls((node.call for node in program.nodes), values, program.results, compute, observe)
    return values
