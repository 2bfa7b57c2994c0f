"""Operators by name, and arguments by the names of their schemas: how a pattern's call meets a graph's call.

Not here: matching.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from functools import cache
from typing import cast

import torch

from tapestry.backends.rules.rule import RuleError
from tapestry.program import traits
from tapestry.program.graph import Argument, Call

#: Operators whose first two operands may change places (for add and eq too: with alpha = 1, see the matcher).
COMMUTATIVE = frozenset(
    {
        "add", "mul", "maximum", "minimum", "fmax", "fmin", "eq", "ne", "logical_and", "logical_or", "logical_xor",
        "bitwise_and", "bitwise_or", "bitwise_xor",
    }
)  # fmt: skip


@cache
def overloads(name: str) -> tuple[torch._ops.OpOverload, ...]:
    """The overloads that ``aten.add`` (all of them) or ``aten.add.Tensor`` (that one) names; RuleError when none."""
    parts = name.split(".")
    if len(parts) not in {2, 3}:
        raise RuleError(f"expected an operator as aten.add or aten.add.Tensor, got {name!r}")
    packet: object = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        raise RuleError(f"no operator {'.'.join(parts[:2])} in torch {torch.__version__}{_hint(parts)}")
    known: list[str] = packet.overloads()
    if len(parts) == 3 and parts[2] not in known:
        raise RuleError(f"operator {'.'.join(parts[:2])} has no overload {parts[2]!r}, only {', '.join(known)}")
    chosen = parts[2:] or known
    return tuple(cast("torch._ops.OpOverload", getattr(packet, overload)) for overload in chosen)


def _hint(parts: Sequence[str]) -> str:
    prefix = f"{parts[0]}::"
    schemas = torch._C._jit_get_all_schemas()  # noqa: SLF001 - torch has no public list of its operators
    names = {schema.name.removeprefix(prefix) for schema in schemas if schema.name.startswith(prefix)}
    close = difflib.get_close_matches(parts[1], sorted(names), n=1)
    return f"; did you mean {parts[0]}.{close[0]}?" if close else ""


def placed(target: torch._ops.OpOverload, given: Sequence[object], named: Sequence[str]) -> tuple[str, ...] | str:
    """The schema names of ``given`` positional arguments; a string says why they and ``named`` do not fit."""
    entries = target._schema.arguments
    positional = [entry.name for entry in entries if not entry.kwarg_only]
    if len(given) > len(positional):
        return f"{target} takes {len(positional)} positional arguments, got {len(given)}"
    names = tuple(positional[: len(given)])
    unknown = sorted(set(named) - {entry.name for entry in entries})
    if unknown:
        return f"{target} has no argument {unknown[0]!r}, only {', '.join(entry.name for entry in entries)}"
    twice = sorted(set(named) & set(names))
    if twice:
        return f"{target}: argument {twice[0]!r} is given twice"
    return names


def required(target: torch._ops.OpOverload) -> tuple[str, ...]:
    """The arguments of an operator that have no default."""
    return tuple(entry.name for entry in target._schema.arguments if not entry.has_default_value())


def argument(call: Call, name: str) -> Argument:
    """An argument by its schema name or its default, with lists as tuples and ``int[2]`` always of two entries."""
    return widened(call.target, name, traits.argument(call, name))


def default(target: torch._ops.OpOverload, name: str) -> Argument:
    """The default of an argument, as ``argument`` gives it."""
    return widened(target, name, _entry(target, name).default_value)


def widened(target: torch._ops.OpOverload, name: str, value: object) -> Argument:
    """A value as the operator reads it: one number for a list of N sizes stands for N equal ones."""
    entry = _entry(target, name)
    value = plain(value)
    count = cast("int | None", getattr(entry, "N", None))
    if count is None or value is None:
        return value
    if isinstance(value, tuple):
        return value * count if len(value) == 1 else value
    return (value,) * count


@cache
def _entry(target: torch._ops.OpOverload, name: str) -> torch._C.Argument:
    return next(entry for entry in target._schema.arguments if entry.name == name)


def plain(value: object) -> Argument:
    """A value with its lists as tuples."""
    if isinstance(value, list | tuple):
        return tuple(plain(entry) for entry in cast("Sequence[object]", value))
    return cast("Argument", value)


def same(a: Argument, b: Argument) -> bool:
    """Whether two arguments are the same value or the same constant: 1 is 1.0 but not True, and NaN is NaN."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, bool) is not isinstance(b, bool):
        return False
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    return a == b
