"""Linking a call to a value made before: at one of its tensors, with its other operands fitted to it.

Whether a fitted call runs is tried by the caller. Not here: which calls to link (spines).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from random import Random
from typing import Protocol, cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from tapestry.program.serial import overload_name
from tapestry.suite.composition.editing import shaped
from tapestry.suite.composition.steps import Step, leaves, mapped

#: Elements of an operand that is made to fit, at most.
_LARGEST = 1 << 15
#: Integer lists of a call that follow the sizes of its operands.
_SIZES = frozenset({"normalized_shape", "size", "shape", "output_size"})


class ExampleCall(Protocol):
    """A valid call of an overload, with real tensors."""

    @property
    def target(self) -> OpOverload: ...
    @property
    def args(self) -> tuple[object, ...]: ...
    @property
    def kwargs(self) -> dict[str, object]: ...


def tensors_of(call: ExampleCall) -> list[Tensor]:
    """The tensors of a call in order, those in lists included."""
    return [leaf for leaf in (*leaves(call.args), *leaves(call.kwargs)) if isinstance(leaf, Tensor)]


def as_step(call: ExampleCall) -> Step:
    """The call as a step of its own."""
    return Step(overload_name(call.target), call.args, dict(call.kwargs))


def linked(call: ExampleCall, place: int, value: object, like: Tensor, rng: Random) -> Iterator[Step]:
    """Steps of the call with tensor ``place`` replaced by ``value``, which is shaped as ``like``: likeliest first."""
    tensors = tensors_of(call)
    old = tensors[place]
    if old.shape == like.shape and old.dtype == like.dtype:
        yield _step(call, {place: value}, {})
    sizes = _mapping(old.shape, like.shape)
    whole = tuple(like.shape)

    def fit(choose: Mapping[int, tuple[int, ...]], attributes: Mapping[int, int]) -> Step:
        new: dict[int, object] = {place: value}
        for number, tensor in enumerate(tensors):
            if number != place:
                dtype = like.dtype if _follows(tensor.dtype, old.dtype, like.dtype) else tensor.dtype
                new[number] = shaped(tensor, choose[number], dtype, rng)
        return _step(call, new, attributes)

    others = {number: tuple(tensor.shape) for number, tensor in enumerate(tensors) if number != place}
    by_size = {number: tuple(sizes.get(size, size) for size in shape) for number, shape in others.items()}
    alike = {number: whole if shape == tuple(old.shape) else by_size[number] for number, shape in others.items()}
    rows = {number: whole[-len(shape) :] if shape else () for number, shape in others.items()}
    ways = [(alike, sizes), (by_size, sizes), (alike, {}), (others, {})]
    ways += [(dict.fromkeys(others, whole), {}), (rows, sizes)] if others else []
    for choose, attributes in ways:
        if all(prod(shape) <= _LARGEST for shape in choose.values()):
            yield fit(choose, attributes)


def _follows(dtype: torch.dtype, old: torch.dtype, new: torch.dtype) -> bool:
    """Whether an operand of ``dtype`` changes along when its neighbour changes from ``old`` to ``new``."""
    return dtype == old and dtype.is_floating_point and new.is_floating_point


def _mapping(old: Sequence[int], new: Sequence[int]) -> dict[int, int]:
    """Old size → new size, aligned from the right; the rightmost wins where one size stands for two."""
    found: dict[int, int] = {}
    for before, after in zip(reversed(old), reversed(new), strict=False):
        found.setdefault(before, after)
    return found


def _step(call: ExampleCall, new: Mapping[int, object], sizes: Mapping[int, int]) -> Step:
    number = -1

    def leaf(value: object) -> object:
        nonlocal number
        if not isinstance(value, Tensor):
            return value
        number += 1
        return new.get(number, value)

    names = [entry.name for entry in call.target._schema.arguments]
    args = [mapped(value, leaf) for value in call.args]
    kwargs = {name: mapped(value, leaf) for name, value in call.kwargs.items()}
    if sizes:
        args = [_resized(name, value, sizes) for name, value in zip(names, args, strict=False)]
        kwargs = {name: _resized(name, value, sizes) for name, value in kwargs.items()}
    return Step(overload_name(call.target), tuple(args), kwargs)


def _resized(name: str, value: object, sizes: Mapping[int, int]) -> object:
    if name not in _SIZES or not isinstance(value, list | tuple):
        return value
    return [sizes.get(cast(int, entry), entry) for entry in cast("Sequence[object]", value)]
