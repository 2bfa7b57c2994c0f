"""Which inputs a search may look at, and which are held out for the last check of its result."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils import _pytree as pytree

from tapestry.program.inputs import CallArgs, InputSet

#: One input set in so many is held out.
EVERY = 4
#: How far a neighbour's floating-point values are from the original's, relative to their root mean square.
_STEP = 1e-2
_SEED = 20_000


def split(inputs: Sequence[InputSet]) -> tuple[tuple[InputSet, ...], tuple[InputSet, ...]]:
    """The input sets to search with, and those held out: every fourth. With fewer than four, neighbours of all of them.

    The same inputs are always split alike.
    """
    if len(inputs) < EVERY:
        return tuple(inputs), tuple(neighbour(entry, place) for place, entry in enumerate(inputs))
    held_out = tuple(entry for place, entry in enumerate(inputs) if place % EVERY == EVERY - 1)
    return tuple(entry for place, entry in enumerate(inputs) if place % EVERY != EVERY - 1), held_out


def neighbour(entry: InputSet, place: int = 0) -> InputSet:
    """An input set like another: floating-point values moved a little, at random; finite ones stay finite.

    Integers and booleans keep their places, except that rows of token ids (two dimensions or more of integers) are
    rolled by one: every value stays one that the model has seen.
    """
    generator = torch.Generator().manual_seed(_SEED + place)

    def moved(value: object) -> object:
        if not isinstance(value, torch.Tensor) or not value.numel():
            return value
        if value.is_floating_point():
            wide = value.to(torch.float64)
            finite = torch.isfinite(wide)
            size = torch.where(finite, wide, 0.0).square().mean().sqrt()
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            near = (wide + _STEP * size * noise).to(value.dtype)
            return torch.where(finite & torch.isfinite(near), near, value)
        if value.dtype in (torch.int32, torch.int64) and value.dim() > 1:
            return value.roll(1, -1)
        return value

    calls = tuple(
        CallArgs(*pytree.tree_map(moved, (call.args, dict(call.kwargs))))  # pyright: ignore[reportArgumentType]
        for call in entry.calls
    )
    return InputSet(calls)
