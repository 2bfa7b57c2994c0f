"""Calls borrowed from overloads of the same operator: ``add.Scalar`` from ``add.Tensor``, ``add_`` from ``add``.

Not here: what to give arguments that the sibling lacks (meanings).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice

import torch
from torch._ops import OpOverload

from tapestry.suite.schema import index
from tapestry.suite.schema.kinds import Argument, arguments, converted
from tapestry.suite.schema.overloads import find
from tapestry.suite.schema.samples import Proposal, sampled

#: Overloads borrowed from, and calls of each.
SIBLINGS = 3
CALLS = 90

#: Beginnings and ends of names that say how an operator is run, not what it computes.
_PREFIXES = ("special_", "linalg_", "native_", "unsafe_", "mkldnn_", "slow_", "thnn_", "sym_")
_SUFFIXES = ("_copy", "_functional", "_override", "_for_cpu")
#: Python's operators.
_DUNDERS = {
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip


def root(name: str) -> str:
    """The name of an operator without what tells its in-place, internal, copying and special forms apart."""
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        return _DUNDERS.get(name, _DUNDERS.get(name.removeprefix("i"), name))
    name = name.strip("_")
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


@cache
def _by_root() -> dict[str, tuple[OpOverload, ...]]:
    found: dict[str, list[OpOverload]] = {}
    for name in index.load():
        target = find(name)
        if target is not None:
            found.setdefault(root(name.split(".")[1]), []).append(target)
    return {key: tuple(targets) for key, targets in found.items()}


def siblings(target: OpOverload) -> tuple[OpOverload, ...]:
    """Overloads of the same operator that PyTorch's samples call, those with the most arguments in common first."""
    names = {argument.name for argument in arguments(target)}

    def likeness(other: OpOverload) -> tuple[bool, int, int, str]:
        theirs = {argument.name for argument in arguments(other)}
        return target._overloadname != other._overloadname, -len(names & theirs), len(theirs - names), str(other)

    others = [
        other for other in _by_root().get(root(target._schema.name.partition("::")[2]), ()) if other is not target
    ]
    return tuple(sorted(others, key=likeness))


def borrowed(target: OpOverload, means: Callable[[Argument, torch.Tensor | None], object]) -> Iterator[Proposal]:
    """The siblings' calls with their arguments turned into the target's.

    ``means`` gives a value for an argument that a sibling lacks, by its meaning beside the call's first tensor, or
    NotImplemented.
    """
    for other in siblings(target)[:SIBLINGS]:
        for call in islice(sampled(other), CALLS):
            adapted = _adapted(target, other, call, means)
            if adapted is not None:
                yield adapted


def _adapted(
    target: OpOverload,
    other: OpOverload,
    call: Proposal,
    means: Callable[[Argument, torch.Tensor | None], object],
) -> Proposal | None:
    given = dict(zip((argument.name for argument in arguments(other)), call.args, strict=False)) | call.kwargs
    first = next((value for value in given.values() if isinstance(value, torch.Tensor)), None)
    values: dict[str, object] = {}
    for argument in arguments(target):
        if argument.name in given:
            value = converted(given[argument.name], argument)
        elif argument.required:
            value = means(argument, first)
        else:
            continue
        if value is NotImplemented:
            return None
        values[argument.name] = value
    args, kwargs = arranged(target, values)
    return Proposal(args, kwargs, f"{call.source} of {other}")


def arranged(target: OpOverload, values: dict[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    """Values by name as positional and keyword arguments: positional until the first that is left out."""
    args: list[object] = []
    kwargs: dict[str, object] = {}
    open_end = True
    for argument in arguments(target):
        open_end = open_end and not argument.keyword_only and argument.name in values
        if open_end:
            args.append(values[argument.name])
        elif argument.name in values:
            kwargs[argument.name] = values[argument.name]
    return tuple(args), kwargs
