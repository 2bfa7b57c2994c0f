"""Editing lists of steps: inserting with references shifted, following links, and new values for tensors.

Not here: which edits make a telling chain (spines, readers, states).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import cast

import torch
from torch import Tensor

from tapestry.suite.composition.steps import Copies, Ref, Step, changed, step_leaves

Steps = tuple[Step, ...]


def shifted(step: Step, start: int, by: int) -> Step:
    """The step with references to steps from ``start`` on moved by ``by``."""

    def leaf(value: object) -> object:
        return Ref(value.index + by, value.item) if isinstance(value, Ref) and value.index >= start else value

    return changed(step, leaf)


def inserted(steps: Steps, at: int, new: Sequence[Step]) -> Steps:
    """The steps with new ones before place ``at``; the references of the later ones follow what they named."""
    return (*steps[:at], *new, *(shifted(step, at, len(new)) for step in steps[at:]))


def redirected(steps: Steps, start: int, old: Ref, new: Ref) -> Steps:
    """The steps with ``new`` read in place of ``old`` from place ``start`` on."""
    return (*steps[:start], *(changed(step, lambda leaf: new if leaf == old else leaf) for step in steps[start:]))


def replaced(step: Step, old: object, new: object, times: int = 1 << 30) -> Step:
    """The step with a leaf (the same object, or an equal Ref) replaced, at most ``times``."""
    left = times

    def leaf(value: object) -> object:
        nonlocal left
        same = value == old if isinstance(old, Ref) and isinstance(value, Ref) else value is old
        if not same or left <= 0:
            return value
        left -= 1
        return new

    return changed(step, leaf)


def refs_of(step: Step) -> list[Ref]:
    """The references that a step reads, in order."""
    return [leaf for leaf in step_leaves(step) if isinstance(leaf, Ref)]


def externals_of(step: Step) -> list[Tensor]:
    """The tensors from outside that a step reads, in order."""
    return [leaf for leaf in step_leaves(step) if isinstance(leaf, Tensor)]


def links(steps: Steps) -> list[Ref]:
    """Every result that another step reads, once, in order of its making."""
    found = {ref for step in steps for ref in refs_of(step)}
    return sorted(found, key=lambda ref: (ref.index, ref.item or 0))


def last_reader(steps: Steps, ref: Ref) -> int:
    """The place of the last step that reads a result."""
    return max((place for place, step in enumerate(steps) if ref in refs_of(step)), default=len(steps) - 1)


def first_reader(steps: Steps, ref: Ref) -> int:
    """The place of the first step that reads a result."""
    return min((place for place, step in enumerate(steps) if ref in refs_of(step)), default=len(steps) - 1)


def redrawn(
    calls: Sequence[Steps], draw: Callable[[Tensor], Tensor], fixed: frozenset[int] = frozenset()
) -> list[Steps]:
    """The calls on other tensors: ``draw`` gives a storage's new content from the flat old one (the dtype may change).

    Memory stays shared as it is. ``fixed`` are ids of tensors that keep their content and stay the same objects.
    """
    copies = Copies(draw)

    def leaf(value: object) -> object:
        return copies.of(value) if isinstance(value, Tensor) and id(value) not in fixed else value

    return [tuple(changed(step, leaf) for step in steps) for steps in calls]


def fresh(flat: Tensor, rng: Random, scale: float = 2.0) -> Tensor:
    """Other content like that of a tensor: floats from N(0, scale²) (positive where all were), the rest shuffled."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    if flat.dtype.is_floating_point:
        drawn = torch.randn(flat.shape, generator=generator) * scale
        positive = flat.numel() > 0 and bool((flat >= 0).all()) and bool((flat > 0).any())
        return (drawn.abs() + 0.1 if positive else drawn).to(flat.dtype)
    if flat.numel() == 0 or flat.dtype.is_complex:
        return flat.clone()
    return flat[torch.randperm(flat.numel(), generator=generator)]


def shaped(tensor: Tensor, shape: Sequence[int], dtype: torch.dtype, rng: Random) -> Tensor:
    """The tensor itself where shape and dtype fit, else one like it: floats drawn anew, others from its values."""
    if tuple(tensor.shape) == tuple(shape):
        return tensor if tensor.dtype == dtype else tensor.to(dtype)
    count = 1
    for size in shape:
        count *= size
    if tensor.dtype.is_floating_point or tensor.numel() == 0:
        sample = torch.ones(count, dtype=dtype) if _positive(tensor) else -torch.ones(count, dtype=dtype)
        return fresh(sample, rng).reshape(tuple(shape))
    flat = tensor.reshape(-1)
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    picks = torch.randint(0, flat.numel(), (count,), generator=generator)
    return flat[picks].to(dtype).reshape(tuple(shape))


def _positive(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and tensor.dtype.is_floating_point and bool((tensor >= 0).all())


def tensor_of(results: Sequence[object], ref: Ref) -> Tensor | None:
    """The tensor that a reference names among results."""
    value = results[ref.index]
    if ref.item is not None:
        value = cast("Sequence[object]", value)[ref.item]
    return value if isinstance(value, Tensor) else None


def bases_of(steps: Steps, value: object) -> list[object]:
    """What a value may be a view of: the value itself, then its first operand's, and so on to a tensor from outside."""
    found = [value]
    while isinstance(value, Ref):
        step = steps[value.index]
        value = step.args[0] if step.args else None
        if isinstance(value, Ref | Tensor):
            found.append(value)
    return found
