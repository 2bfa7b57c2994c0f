"""One call with real arguments, and a variant of it that is built when it is asked for. Not here: deriving them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch._ops import OpOverload


class Kind(StrEnum):
    """What a variant changes. ``VALUES`` keeps every input finite, ``NONFINITE`` does not; both keep the shapes,
    dtypes, strides and attributes of the call, and so its key. The others change them.
    """

    VALUES = "values"
    NONFINITE = "nonfinite"
    SHAPE = "shape"
    LAYOUT = "layout"
    ATTRIBUTES = "attributes"


@dataclass(frozen=True)
class OpCall:
    """An overload with real tensors (possibly in lists) and plain values. Tensors are never written to.

    ``constants`` are the positions, among the tensors in the order of `tensors`, of those that are the same in every
    run of the program (parameters).
    """

    target: OpOverload
    args: tuple[object, ...]
    kwargs: dict[str, object] = field(default_factory=dict[str, object])
    constants: frozenset[int] = frozenset()

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors in the order of the arguments, those in lists included, with repeats."""
        return (*tensors_in(self.args), *tensors_in(tuple(self.kwargs.values())))

    def with_tensors(self, tensors: tuple[torch.Tensor, ...]) -> OpCall:
        """The same call on other tensors, given in the order of `tensors`."""
        rest = iter(tensors)
        args = tuple(_replaced(value, rest) for value in self.args)
        kwargs = {name: _replaced(value, rest) for name, value in self.kwargs.items()}
        return OpCall(self.target, args, kwargs, self.constants)


@dataclass(frozen=True)
class Variant:
    """A call to be derived. ``name`` is unique among the variants of one call and stable between releases.

    ``rank`` orders them: the most telling first, from 0. ``build`` makes the call: the same one every time, and never
    one that shares memory with the call it was derived from unless the tensor is unchanged.
    """

    name: str
    kind: Kind
    rank: int
    build: Callable[[], OpCall]


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """All tensors in a value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for entry in value:  # pyright: ignore[reportUnknownVariableType]
            yield from tensors_in(entry)


def _replaced(value: object, rest: Iterator[torch.Tensor]) -> object:
    if isinstance(value, torch.Tensor):
        return next(rest)
    if isinstance(value, tuple | list):
        return type(value)(_replaced(entry, rest) for entry in value)  # pyright: ignore
    return value
