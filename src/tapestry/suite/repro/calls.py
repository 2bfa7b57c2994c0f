"""Graphs of several calls made smaller: calls dropped at the ends, sizes that are equal wherever they stand halved.

Not here: single calls, whose sizes are known better (shapes).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from tapestry.program.graph import Argument, Call, GraphInput, Ref, TensorSpec, operands
from tapestry.suite.repro.search import Search, minimal
from tapestry.suite.repro.subject import Subject, remade, results_of, without_unread

_FIRST = (1, 3)


def fewer_calls(search: Search) -> None:
    """Drop calls at the end, then at the beginning: their results become inputs."""
    for part, what in ((_first_calls, "calls at the end left out"), (_last_calls, "calls at the beginning left out")):
        for count in _counts(len(search.current.graph.calls)):
            if count < len(search.current.graph.calls) and search.offer(part(search.current, count), what):
                break


def smaller_sizes(search: Search) -> None:
    """Each size in all inputs and arguments at once, the largest first."""
    sizes = sorted({size for tensor in search.current.inputs for size in tensor.shape if size > 1}, reverse=True)
    for size in sizes:
        start = search.current

        def fails(kept: list[int], start: Subject = start, size: int = size) -> bool:
            return any(
                search.offer(_picked(start, size, kept, arguments), "smaller shapes") for arguments in (True, False)
            )

        blocks = size
        for count in _FIRST:
            if count < size and fails(list(range(count))):
                blocks = count
                break
        minimal(list(range(blocks)), fails)
        if search.exhausted:
            return


def _counts(calls: int) -> list[int]:
    """How many calls to keep, the fewest first; of many, not every number is tried."""
    few = list(range(1, min(calls, 5)))
    return sorted({*few, calls // 4, calls // 2, 3 * calls // 4, calls - 2, calls - 1} - {0})


def _first_calls(subject: Subject, count: int) -> Subject | None:
    graph = subject.graph
    kept = graph.calls[:count]
    read = {ref for call in kept for ref in operands(call)}
    made = [Ref(call.name, item) for call in kept for item, spec in enumerate(call.outputs) if spec is not None]
    outputs = [ref for ref in made if ref not in read or ref in graph.outputs]
    found = remade(graph.inputs, subject.inputs, kept, outputs)
    return None if found is None else without_unread(found)


def _last_calls(subject: Subject, count: int) -> Subject | None:
    graph = subject.graph
    dropped, kept = graph.calls[:-count], graph.calls[-count:]
    values: dict[Ref, object] = {
        Ref(entry.name): tensor for entry, tensor in zip(graph.inputs, subject.inputs, strict=True)
    }
    results = results_of(dropped, values)
    if results is None:
        return None
    names = {call.name for call in dropped}
    outside = dict.fromkeys(ref for call in kept for ref in operands(call) if ref.name in names)
    entries, inputs = list(graph.inputs), list(subject.inputs)
    renamed: dict[Ref, Ref] = {}
    for ref in outside:
        tensor = results[ref.name][ref.item]
        if not isinstance(tensor, Tensor):
            return None
        renamed[ref] = Ref(f"{ref.name}_{ref.item}")
        entries.append(GraphInput(renamed[ref].name, TensorSpec.of(tensor)))
        inputs.append(tensor)
    outputs = [ref for ref in graph.outputs if ref.name not in names]
    found = remade(entries, inputs, [_swapped(call, renamed) for call in kept], outputs)
    return None if found is None else without_unread(found)


def _swapped(call: Call, renamed: dict[Ref, Ref]) -> Call:
    def swap(value: object) -> Argument:
        if isinstance(value, Ref):
            return renamed.get(value, value)
        if isinstance(value, tuple):
            return tuple(swap(entry) for entry in cast("tuple[object, ...]", value))
        return cast("Argument", value)

    args = tuple(swap(value) for value in call.args)
    return Call(
        call.name, call.target, args, tuple((name, swap(value)) for name, value in call.kwargs), call.outputs,
        call.is_tuple,
    )  # fmt: skip


def _picked(subject: Subject, size: int, kept: list[int], arguments: bool) -> Subject | None:
    """Some indices along every axis of a size; with ``arguments``, whole numbers equal to it change, too."""
    index = torch.tensor(kept)
    inputs: list[Tensor] = []
    for tensor in subject.inputs:
        for dim in range(tensor.dim()):
            if tensor.shape[dim] == size:
                tensor = tensor.index_select(dim, index)
        inputs.append(tensor)
    calls = [_sized(call, size, len(kept)) for call in subject.graph.calls] if arguments else subject.graph.calls
    return remade(subject.graph.inputs, inputs, calls, subject.graph.outputs)


def _sized(call: Call, size: int, now: int) -> Call:
    def swap(value: object) -> Argument:
        if isinstance(value, tuple):
            return tuple(swap(entry) for entry in cast("tuple[object, ...]", value))
        return now if type(value) is int and value == size else cast("Argument", value)

    args = tuple(swap(value) for value in call.args)
    return Call(
        call.name, call.target, args, tuple((name, swap(value)) for name, value in call.kwargs), call.outputs,
        call.is_tuple,
    )  # fmt: skip
