"""The arguments of calls as values that can be compared: by schema name, with defaults and sizes filled in.

Not here: expressions and matching.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import cast

import torch

from tapestry.program import traits
from tapestry.program.graph import Argument, Call


def argument(call: Call, name: str) -> Argument:
    """An argument by its schema name or its default, with lists as tuples and ``int[2]`` always of two entries."""
    return widened(call.target, name, traits.argument(call, name))


@cache
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
