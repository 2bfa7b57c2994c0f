"""Arguments of ATen calls: canonical operator names, binding to the schema, mapping over nested tensors.

Not here: what an operator means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload


def names(words: str) -> frozenset[str]:
    """A table of operator names, written as words."""
    return frozenset(words.split())


@cache
def operator_name(target: OpOverload) -> str:
    """The packet's name: ``add`` for ``aten.add.Tensor`` and ``aten.add_.Tensor``; ``ns::name`` outside ATen."""
    namespace, _, name = target._schema.name.partition("::")
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return name if namespace == "aten" else f"{namespace}::{name}"


@cache
def argument_types(target: OpOverload) -> tuple[tuple[str, str], ...]:
    """Name and JIT type of every argument of the schema, positional ones first."""
    return tuple((argument.name, str(argument.type)) for argument in target._schema.arguments)


@cache
def _defaults(target: OpOverload) -> tuple[tuple[str, object], ...]:
    arguments = target._schema.arguments
    return tuple((argument.name, argument.default_value) for argument in arguments if argument.has_default_value())


def bind(target: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    """All arguments of a call by name, the schema's defaults filled in."""
    bound = dict(_defaults(target))
    bound.update(zip((name for name, _ in argument_types(target)), args, strict=False))
    bound.update(kwargs)
    return bound


def tensors_in(value: object) -> Iterator[Tensor]:
    """All tensors of an argument or a result, in order, through lists, tuples and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for entry in cast(Sequence[object], value):
            yield from tensors_in(entry)
    elif isinstance(value, Mapping):
        yield from tensors_in(list(cast(Mapping[str, object], value).values()))


def map_leaves(change: Callable[[object], object], value: object) -> object:
    """The same nesting of lists and tuples with every other value replaced by ``change(value)``."""
    if isinstance(value, list):
        return [map_leaves(change, entry) for entry in cast(list[object], value)]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return tuple(map_leaves(change, entry) for entry in cast(tuple[object, ...], value))
    return change(value)


def flatten_result(result: object) -> tuple[Tensor | None, ...]:
    """An operator's result as a flat tuple; what is neither a tensor nor a list of tensors becomes None."""
    if isinstance(result, Tensor):
        return (result,)
    if isinstance(result, list | tuple):
        return tuple(entry for part in cast(Sequence[object], result) for entry in flatten_result(part))
    if isinstance(result, bool | int | float):
        return (torch.tensor(result, dtype=torch.float64 if isinstance(result, float) else None),)
    return (None,)


def eager_results(
    target: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[Tensor | None, ...]:
    """What PyTorch itself gives, flat; operands that the operator would write are copied first."""

    def copied(leaf: object) -> object:
        return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf

    mutates = target._schema.is_mutable
    with torch.no_grad():
        if not mutates:
            return flatten_result(target(*args, **kwargs))
        changed = {name: map_leaves(copied, value) for name, value in kwargs.items()}
        return flatten_result(target(*(map_leaves(copied, value) for value in args), **changed))
