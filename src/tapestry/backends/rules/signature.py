"""Operators by name, and which overloads some arguments fit.

Not here: the values of arguments (arguments).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cache
from typing import cast

import torch

from tapestry.backends.rules.rule import RuleError

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
