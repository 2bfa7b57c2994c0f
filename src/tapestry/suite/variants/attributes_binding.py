"""The arguments of a call by the names of its schema, and the call again after changes to some. Not here: which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch._ops import OpOverload

from tapestry.suite.variants.call import OpCall, tensors_in


@dataclass(frozen=True)
class Parameter:
    """One argument of a schema. ``kind`` is its type without ``Optional``: ``Tensor``, ``int``, ``List[int]`` …"""

    name: str
    kind: str
    optional: bool
    keyword_only: bool
    has_default: bool
    default: object


def parameters(target: OpOverload) -> tuple[Parameter, ...]:
    """The arguments of an overload in the order of its schema."""
    found: list[Parameter] = []
    for argument in target._schema.arguments:
        kind = str(argument.real_type)
        optional = kind.startswith("Optional[")
        plain = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
        has_default = argument.has_default_value()
        default = argument.default_value if has_default else None
        found.append(Parameter(argument.name, plain, optional, argument.kwarg_only, has_default, default))
    return tuple(found)


def given(call: OpCall) -> dict[str, object]:
    """The arguments that a call gives, by name; those left to their defaults are missing."""
    positional = [parameter.name for parameter in parameters(call.target) if not parameter.keyword_only]
    return {**dict(zip(positional, call.args, strict=False)), **call.kwargs}


def changed(call: OpCall, changes: Mapping[str, object], left_out: Iterable[str] = ()) -> OpCall:
    """The call with some arguments set and some left to their defaults, in the form that an exported graph has.

    A positional argument that is left out before one that is given gets its default written out. Raises ``ValueError``
    for a name that the schema lacks, and for an argument without a default that is left out.
    """
    rows = parameters(call.target)
    unknown = set(changes) - {row.name for row in rows}
    if unknown:
        raise ValueError(f"{call.target} has no argument {sorted(unknown)}; it has {[row.name for row in rows]}")
    values = {**given(call), **changes}
    for name in left_out:
        values.pop(name, None)
    positional = [row for row in rows if not row.keyword_only]
    last = max((place for place, row in enumerate(positional) if row.name in values), default=-1)
    args = tuple(_value(row, values) for row in positional[: last + 1])
    for row in (*positional[last + 1 :], *(row for row in rows if row.keyword_only)):
        if row.name not in values and not row.has_default:
            raise ValueError(f"{call.target}: the argument {row.name} has no default and cannot be left out")
    kwargs = {row.name: values[row.name] for row in rows if row.keyword_only and row.name in values}
    return OpCall(call.target, args, kwargs, _constants(call, args, kwargs))


def main_tensor(call: OpCall) -> torch.Tensor | None:
    """The tensor that the call is about: its first one."""
    return next(iter(call.tensors), None)


def as_ints(value: object) -> list[int] | None:
    """A list of whole numbers as one, or None for anything else."""
    if not isinstance(value, list | tuple):
        return None
    entries = cast("Sequence[object]", value)
    if all(isinstance(entry, int) and not isinstance(entry, bool) for entry in entries):
        return [cast("int", entry) for entry in entries]
    return None


def _value(row: Parameter, values: Mapping[str, object]) -> object:
    if row.name in values:
        return values[row.name]
    if not row.has_default:
        raise ValueError(f"the argument {row.name} has no default and cannot be left out")
    return row.default


def _constants(call: OpCall, args: tuple[object, ...], kwargs: Mapping[str, object]) -> frozenset[int]:
    """Where the constants of ``call`` are among the tensors of the new arguments: the same names, the same places."""
    names = [row.name for row in parameters(call.target) if not row.keyword_only]
    old = _paths(names, call.args, call.kwargs)
    constant = {old[position] for position in call.constants if position < len(old)}
    return frozenset(place for place, path in enumerate(_paths(names, args, kwargs)) if path in constant)


def _paths(names: Sequence[str], args: Sequence[object], kwargs: Mapping[str, object]) -> list[tuple[str, int]]:
    values = [*zip(names, args, strict=False), *kwargs.items()]
    return [(name, place) for name, value in values for place, _ in enumerate(tensors_in(value))]
