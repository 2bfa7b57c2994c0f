"""Trying steps in PyTorch: whether they run, what they give, and what of it leaves the part. Not here: making steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from tapestry.program.serial import overload_named
from tapestry.suite.composition.steps import Chain, Copies, Ref, Step, filled, mapped, run_steps, step_leaves

#: What eager PyTorch raises for arguments that it does not take.
_REFUSALS = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError)
#: Elements of one result beyond which a chain is not worth its time.
_LARGEST = 1 << 16


def results_of(steps: Sequence[Step]) -> list[object] | None:
    """The results of steps on copies of their tensors; None when PyTorch refuses them."""
    copies = Copies()
    try:
        return run_steps([copies.step(step) for step in steps])
    except _REFUSALS:
        return None


def behind(results: Sequence[object], step: Step) -> object | None:
    """What a step gives behind steps with these results, which stay as they are; None when PyTorch refuses it."""
    copies = Copies()
    held = [_copied(result, copies) for result in results] if writes(step.op) else results
    own = copies.step(step) if writes(step.op) else step
    args = [filled(value, held) for value in own.args]
    kwargs = {name: filled(value, held) for name, value in own.kwargs.items()}
    try:
        with torch.no_grad():
            return cast(object, overload_named(step.op)(*args, **kwargs))
    except _REFUSALS:
        return None


def _copied(result: object, copies: Copies) -> object:
    return mapped(result, lambda leaf: copies.of(leaf) if isinstance(leaf, Tensor) else leaf)


def chain_of(name: str, *calls: Sequence[Step]) -> Chain | None:
    """The chain of these calls, its outputs and states as a run shows them; None when it does not run or gives nothing.

    What leaves a call is every result that no later step of it reads, but those of steps that write (the state tells)
    and those that share memory with what is written (whether a later write shows in them is not a platform's matter).
    """
    copies = Copies()
    externals = _externals(calls)
    before = [_writes_seen(copies.of(tensor)) for tensor in externals]
    found: list[list[object]] = []
    try:
        for steps in calls:
            found.append(run_steps([copies.step(step) for step in steps]))
    except _REFUSALS:
        return None
    states = tuple(
        tensor for tensor, version in zip(externals, before, strict=True) if _writes_seen(copies.of(tensor)) != version
    )
    written = {copies.of(state).untyped_storage().data_ptr() for state in states}
    outputs = tuple(_outputs(steps, results, written) for steps, results in zip(calls, found, strict=True))
    values = [entry for results in found for result in results for entry in _tensors(result)]
    if any(entry.numel() > _LARGEST for entry in values) or not (states or any(outputs)):
        return None
    return Chain(name, tuple(tuple(steps) for steps in calls), outputs, states)


def writes(op: str) -> bool:
    """Whether an operator writes to an argument."""
    return overload_named(op)._schema.is_mutable


def _writes_seen(tensor: Tensor) -> int:
    """How often the memory behind a tensor has been written: views count with their base."""
    return tensor._version  # noqa: SLF001 - autograd's counter, which is what FX passes use, too


def _externals(calls: Sequence[Sequence[Step]]) -> list[Tensor]:
    found: dict[int, Tensor] = {}
    for steps in calls:
        for step in steps:
            found.update((id(leaf), leaf) for leaf in step_leaves(step) if isinstance(leaf, Tensor))
    return list(found.values())


def _outputs(steps: Sequence[Step], results: Sequence[object], written: set[int]) -> tuple[Ref, ...]:
    read = {leaf.index for step in steps for leaf in step_leaves(step) if isinstance(leaf, Ref)}
    found: list[Ref] = []
    for index, (step, result) in enumerate(zip(steps, results, strict=True)):
        if index in read or writes(step.op):
            continue
        if isinstance(result, Tensor):
            found += [Ref(index)] if _apart(result, written) else []
        elif isinstance(result, tuple | list):
            items = enumerate(cast("Sequence[object]", result))
            found += [Ref(index, item) for item, entry in items if isinstance(entry, Tensor) and _apart(entry, written)]
    return tuple(found)


def _apart(tensor: Tensor, written: set[int]) -> bool:
    return tensor.untyped_storage().data_ptr() not in written or tensor.numel() == 0


def _tensors(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, tuple | list):
        return [entry for entry in cast("Sequence[object]", result) if isinstance(entry, Tensor)]
    return []


def first_tensor(result: object) -> tuple[Tensor, int | None] | None:
    """The tensor that a reader of a result takes (the first floating one of several), and its item."""
    if isinstance(result, Tensor):
        return result, None
    if not isinstance(result, tuple | list):
        return None
    items = [(entry, item) for item, entry in enumerate(cast("Sequence[object]", result)) if isinstance(entry, Tensor)]
    floating = [pair for pair in items if pair[0].is_floating_point()]
    return (floating or items or [None])[0]


def is_random_op(op: str) -> bool:
    """Whether an operator may draw random numbers."""
    return torch.Tag.nondeterministic_seeded in overload_named(op).tags
