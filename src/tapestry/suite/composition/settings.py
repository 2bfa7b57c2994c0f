"""Settings of an operator: calls of it that differ in what is not a tensor, or in which tensors are given at all.

Those of the examples come first, then further ones made by changing one argument by its type and name: other
dimensions, kept or not, factors, ends of ranges, orders of dimensions, numbers in place of tensors, arguments left out.
All of them run. Not here: which settings stand together in a chain (patterns).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from tapestry.suite.composition.linking import ExampleCall, as_step, tensors_of
from tapestry.suite.composition.spines import awkwardness, in_turn
from tapestry.suite.composition.steps import leaves
from tapestry.suite.composition.trial import is_random_op, results_of

#: Settings of one operator, those from examples, calls (of other ranks) kept of one setting, and new settings of one
#: argument.
_SETTINGS, _GIVEN, _CALLS, _EACH = 18, 7, 3, 4
#: Ranks of the calls whose arguments are changed.
_RANKS = (2, 3, 4)
#: Types to which a call may be told to convert.
_DTYPES = (torch.float16, torch.float64, torch.int64, torch.float32)

#: For each operator its settings, the most usual first; for each setting calls on different tensors.
Menu = Mapping[str, Sequence[Sequence[ExampleCall]]]


@dataclass(frozen=True, eq=False)
class Changed:
    """A call with one argument changed."""

    target: OpOverload
    args: tuple[object, ...]
    kwargs: dict[str, object]


def menu_of(calls: Mapping[str, Sequence[ExampleCall]]) -> dict[str, list[list[ExampleCall]]]:
    """The settings of each operator that draws no random numbers."""
    found = {op: _settings(given) for op, given in calls.items() if not is_random_op(op)}
    return {op: settings for op, settings in found.items() if settings}


def _settings(given: Sequence[ExampleCall]) -> list[list[ExampleCall]]:
    ranked = sorted((call for call in given if _handy(call)), key=awkwardness)
    found: dict[object, list[ExampleCall]] = {}
    for call in ranked:
        _add(found, call, _GIVEN)
    for other in in_turn([_changes(call) for call in _changeable(ranked)]):
        if len(found) >= _SETTINGS:
            break
        if results_of((as_step(other),)) is not None:
            _add(found, other, _SETTINGS)
    return [sorted(calls, key=awkwardness) for calls in found.values()]


def _changeable(ranked: Sequence[ExampleCall]) -> list[ExampleCall]:
    """The first call of each rank, as it is and with its first flag (keepdim) turned over."""
    firsts = [next((call for call in ranked if _rank(call) == rank), None) for rank in _RANKS]
    found: list[ExampleCall] = [call for call in firsts if call is not None] or list(ranked[:1])
    return [*found, *(turned for call in found for turned in islice(_flags(call), 1))]


def _flags(call: ExampleCall) -> Iterator[Changed]:
    for place, entry in enumerate(call.target._schema.arguments):
        value = call.args[place] if place < len(call.args) else call.kwargs.get(entry.name, entry.default_value)
        made = _with(call, place, entry.name, not value) if isinstance(value, bool) else None
        if made is not None:
            yield made


def _handy(call: ExampleCall) -> bool:
    sizes = [tensor.numel() for tensor in tensors_of(call)]
    return bool(sizes) and min(sizes) > 0 and max(sizes) <= 4096


def _add(found: dict[object, list[ExampleCall]], call: ExampleCall, limit: int) -> None:
    key = _key(call)
    if key in found:
        if len(found[key]) < _CALLS and _ranks(call) not in [_ranks(other) for other in found[key]]:
            found[key].append(call)
    elif len(found) < limit:
        found[key] = [call]


def _ranks(call: ExampleCall) -> list[int]:
    return [tensor.dim() for tensor in tensors_of(call)]


def _key(call: ExampleCall) -> object:
    """What makes calls alike: every argument; tensors by their presence, and by how they are broadcast to the first."""
    names = [entry.name for entry in call.target._schema.arguments]
    named = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    first = tuple(tensors_of(call)[0].shape)
    return tuple(sorted((name, _presence(value, first)) for name, value in named.items()))


def _presence(value: object, first: tuple[int, ...]) -> str:
    tensors = [leaf for leaf in leaves(value) if isinstance(leaf, Tensor)]
    if not tensors:
        return repr(value)
    return f"{len(tensors)} tensors, {[_stretched(tuple(tensor.shape), first) for tensor in tensors]}"


def _stretched(shape: tuple[int, ...], first: tuple[int, ...]) -> str:
    """How a smaller operand goes with the first one: by missing dimensions or by a last one of 1."""
    tail = first[len(first) - len(shape) :] if len(shape) <= len(first) else ()
    if shape == first or len(shape) != len(tail) or any(a not in (1, b) for a, b in zip(shape, tail, strict=True)):
        return ""
    return f"{len(first) - len(shape)} fewer" if shape == tail else "ones"


def _changes(call: ExampleCall) -> Iterator[Changed]:
    """The call with one argument changed, the first change of each argument before the second of any."""
    arguments = call.target._schema.arguments
    ways: list[list[Changed]] = []
    for place, entry in enumerate(arguments):
        present = place < len(call.args) or entry.name in call.kwargs
        value = call.args[place] if place < len(call.args) else call.kwargs.get(entry.name, entry.default_value)
        others = _values(entry.name, str(entry.type), value, call) if place else []
        made = [_with(call, place, entry.name, other) for other in others[:_EACH]]
        if present and entry.has_default_value():
            made.append(_without(call, place, entry.name))
        ways.append([change for change in made if change is not None])
    for turn in range(_EACH + 1):
        for way in ways:
            yield from way[turn : turn + 1]


def _values(name: str, kind: str, value: object, call: ExampleCall) -> list[object]:
    """Other values of an argument, by its type and its name."""
    if "Tensor" in kind and isinstance(value, Tensor):
        smaller = [value[0].clone(), value[..., :1].clone()] if value.dim() > 1 and value.numel() else []
        return [2.0 if value.is_floating_point() else 2, *smaller]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, list | tuple):
        return _lists(name, cast("Sequence[object]", value), _rank(call))
    if "dtype" in name or "ScalarType" in kind or isinstance(value, torch.dtype):
        return [dtype for dtype in _DTYPES if dtype != value]
    if "int[]" in kind and "dim" in name:
        return [[0], [-1], [0, 1]]
    if "int" in kind or isinstance(value, int):
        return _integers(name, value)
    if isinstance(value, float):
        return [value * 2 + 0.5, -value]
    return [0.5, -1.0] if "Scalar" in kind or "float" in kind else []


def _integers(name: str, value: object) -> list[object]:
    if "dim" in name:
        tried = [0, 1, -1, -2]
    elif name in ("alpha", "beta"):
        tried = [2, -0.5]
    else:
        known = value if isinstance(value, int) else 1
        tried = [known + 1, known - 1, 2, -1]
    return [other for other in tried if other != value]


def _lists(name: str, value: Sequence[object], rank: int) -> list[object]:
    numbers = [entry for entry in value if isinstance(entry, int)]
    if len(numbers) != len(value):
        return []
    if len(numbers) > 1 and sorted(number % max(rank, 1) for number in numbers) == list(range(rank)):
        turned = [[*numbers[1:], numbers[0]], list(reversed(numbers)), [numbers[-1], *numbers[:-1]]]
        return [other for other in turned if other != numbers]
    if "dim" in name:
        return [other for other in ([0], [-1], [0, 1], [-2]) if other != numbers]
    return [[number + 1 for number in numbers], [max(number - 1, 0) for number in numbers]]


def _rank(call: ExampleCall) -> int:
    return max(tensor.dim() for tensor in tensors_of(call))


def _with(call: ExampleCall, place: int, name: str, value: object) -> Changed | None:
    arguments = call.target._schema.arguments
    if arguments[place].kwarg_only or name in call.kwargs:
        return Changed(call.target, call.args, {**call.kwargs, name: value})
    filling = arguments[len(call.args) : place]
    if any(not entry.has_default_value() or entry.name in call.kwargs for entry in filling):
        return None
    args = (*call.args[:place], *(cast(object, entry.default_value) for entry in filling), value)
    return Changed(call.target, (*args, *call.args[place + 1 :]), dict(call.kwargs))


def _without(call: ExampleCall, place: int, name: str) -> Changed | None:
    """The call without an argument that has a default, and without the ones behind it."""
    if name in call.kwargs:
        return Changed(call.target, call.args, {key: value for key, value in call.kwargs.items() if key != name})
    return Changed(call.target, call.args[:place], dict(call.kwargs))
