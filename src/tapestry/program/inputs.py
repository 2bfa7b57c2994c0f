"""Input sets: what a program is run on. One input set is one or more consecutive calls, so that state carries over.

Not here: checking a call against a program (placement.executable does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from tapestry.errors import UsageError


@dataclass(frozen=True)
class CallArgs:
    """The arguments of one call."""

    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True)
class InputSet:
    """Consecutive calls on one state."""

    calls: tuple[CallArgs, ...]


def as_input_sets(inputs: Sequence[object]) -> tuple[InputSet, ...]:
    """Input sets from what a user writes.

    Each entry is a tuple of arguments, a dict of keyword arguments, a CallArgs, an InputSet, or a list of such
    calls: consecutive ones. UsageError for anything else or for none at all.
    """
    if not isinstance(inputs, list | tuple):
        raise UsageError(f"expected a list of input sets, one tuple of arguments each, got {type(inputs).__name__}")
    if not inputs:
        raise UsageError("expected at least one set of inputs, got none")
    return tuple(_input_set(entry) for entry in inputs)


def _input_set(entry: object) -> InputSet:
    if isinstance(entry, InputSet):
        return entry
    if isinstance(entry, list):
        calls = tuple(_call(call) for call in cast("list[object]", entry))
        if not calls:
            raise UsageError("expected at least one call in a set of inputs, got an empty list")
        return InputSet(calls)
    return InputSet((_call(entry),))


def _call(entry: object) -> CallArgs:
    if isinstance(entry, CallArgs):
        return entry
    if isinstance(entry, tuple):
        return CallArgs(cast("tuple[object, ...]", entry))
    if isinstance(entry, dict):
        return CallArgs((), cast("dict[str, object]", entry))
    raise UsageError(f"expected the arguments of a call as a tuple (or a dict by keyword), got {type(entry).__name__}")
