"""What an operator is, read from its schema and tags: a view, random, a reader of strides.

Not here: whether a backend supports it, and tolerances.
"""

from __future__ import annotations

from functools import cache
from typing import cast

import torch

from tapestry.program.graph import Argument, Call

#: Operators whose result depends on the strides of an input (or promises strides of its own).
_READS_STRIDES = frozenset(
    {"as_strided", "as_strided_copy", "as_strided_scatter", "empty_strided", "new_empty_strided", "set_", "resize_"}
)
#: Operators whose result is whatever the memory held.
_UNINITIALISED = frozenset({"empty", "empty_like", "empty_permuted", "new_empty", "empty_quantized"})


def base_name(target: torch._ops.OpOverload) -> str:
    """``linear`` for ``aten.linear.default``."""
    return target._schema.name.split("::")[-1]


@cache
def is_view(target: torch._ops.OpOverload) -> bool:
    """Whether the result shares memory with an input and nothing is computed: transpose, expand, slice …"""
    returns = target._schema.returns
    if base_name(target) == "_unsafe_view":
        return True
    return bool(returns) and all(entry.alias_info is not None and not entry.alias_info.is_write for entry in returns)


def argument(call: Call, name: str) -> Argument:
    """The argument called ``name`` in the operator's schema, or its default; KeyError when there is none."""
    for place, entry in enumerate(call.target._schema.arguments):
        if entry.name != name:
            continue
        given = dict(call.kwargs)
        if name in given:
            return given[name]
        if place < len(call.args):
            return call.args[place]
        return cast("Argument", entry.default_value)
    raise KeyError(name)


def is_random(call: Call) -> bool:
    """Whether the result comes from a random generator.

    Attention, dropout and recurrent layers draw only in training and with a probability above 0.
    """
    if torch.Tag.nondeterministic_seeded not in call.target.tags:
        return False
    names = {entry.name for entry in call.target._schema.arguments}
    if any(argument(call, name) is False for name in names & {"train", "training"}):
        return False
    probabilities = names & {"dropout_p", "dropout"}
    if "dropout" in base_name(call.target):
        probabilities |= names & {"p"}
    return not any(argument(call, name) == 0 for name in probabilities)


@cache
def reads_strides(target: torch._ops.OpOverload) -> bool:
    """Whether the values of the result depend on the strides of an input."""
    return base_name(target) in _READS_STRIDES


@cache
def is_uninitialised(target: torch._ops.OpOverload) -> bool:
    """Whether the result is memory that nothing wrote."""
    return base_name(target) in _UNINITIALISED


@cache
def has_no_result(target: torch._ops.OpOverload) -> bool:
    """Whether the call is made for its effect only: an assertion."""
    return not target._schema.returns


def keeps_its_place(call: Call) -> bool:
    """Whether a node must stay on the source, in order."""
    return place_reason(call) is not None


def place_reason(call: Call) -> str | None:
    """Why a node must stay on the source, or None when it may move."""
    target = call.target
    if is_random(call):
        return "random: its numbers come from the source's generator, in order"
    if reads_strides(target):
        return "reads the strides of its input, which exist on the source only"
    if is_uninitialised(target):
        return "returns uninitialised memory"
    if has_no_result(target):
        return "has no result, only an effect"
    return None
