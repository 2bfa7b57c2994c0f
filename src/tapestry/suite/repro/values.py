"""Plainer values, each kept only if the subject still fails in the same way: elements set to 0 or 1, numbers rounded.

What is not free to choose stays: lengths, pivots, indices that must differ, sorted bounds. Not here: shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from tapestry.program.graph import Ref
from tapestry.program.interpret import resolve
from tapestry.suite.repro.search import Search, minimal
from tapestry.suite.repro.subject import Subject, results_of, with_inputs
from tapestry.suite.variants.call import OpCall
from tapestry.suite.variants.meaning import Role, tensor_meanings
from tapestry.suite.variants.memory import collapsed, free_shape, laid_like

#: Numbers that are made plainer one by one; of more, only all together.
_SINGLY = 12
#: Significant digits that are tried, the fewest first.
_DIGITS = (1, 2, 3)
_LOCKED = (Role.LENGTHS, Role.FIXED, Role.SORTED)
_WHAT_SET = "values set to 0 or 1"
_WHAT_ROUNDED = "values rounded"

_Round = Callable[[float], float]


def blank_values(search: Search) -> None:
    """All values 0 at once: for failures that do not look at values (a compiler's, a rule's)."""
    free = _free(search.current)
    inputs = [
        _like(tensor, torch.zeros(free_shape(tensor), dtype=tensor.dtype)) if place in free else tensor
        for place, tensor in enumerate(search.current.inputs)
    ]
    search.offer(with_inputs(search.current, inputs), _WHAT_SET)


def plainer_values(search: Search) -> None:
    """Every input in turn: most elements 0 or 1, then few digits."""
    for place in sorted(_free(search.current), key=lambda place: -search.current.inputs[place].numel()):
        if search.exhausted:
            return
        _set(search, place)
    for place in sorted(_free(search.current)):
        if search.exhausted:
            return
        _round_all(search, place)
        _round_singly(search, place)


def _free(subject: Subject) -> frozenset[int]:
    """The inputs whose values can be chosen: plain, not empty, and to no call something that is locked."""
    locked: set[int] = set()
    values: dict[Ref, object] = {
        Ref(entry.name): tensor for entry, tensor in zip(subject.graph.inputs, subject.inputs, strict=True)
    }
    results = results_of(subject.graph.calls, values) or {}
    for call in subject.graph.calls:
        args = tuple(resolve(value, values) for value in call.args)
        kwargs = {name: resolve(value, values) for name, value in call.kwargs}
        locked |= _locked(OpCall(call.target, args, kwargs))
        for item, value in enumerate(results.get(call.name, ())):
            values[Ref(call.name, item)] = value
    return frozenset(
        place
        for place, tensor in enumerate(subject.inputs)
        if id(tensor) not in locked and tensor.numel() and not tensor.is_complex() and not tensor.is_quantized
    )


def _locked(call: OpCall) -> set[int]:
    tensors = call.tensors
    return {
        id(tensors[meaning.place])
        for meaning in tensor_meanings(call)
        if meaning.role in _LOCKED or meaning.distinct or meaning.reaches_high
    }


def _offer(search: Search, place: int, flat: Tensor, what: str) -> bool:
    tensor = search.current.inputs[place]
    inputs = list(search.current.inputs)
    inputs[place] = _like(tensor, flat.reshape(free_shape(tensor)))
    return search.offer(with_inputs(search.current, inputs), what)


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    return laid_like(values, tensor)


def _flat(search: Search, place: int) -> Tensor:
    """The elements of an input that can be chosen, one after the other."""
    return collapsed(search.current.inputs[place]).reshape(-1).clone()


def _set(search: Search, place: int) -> None:
    for fill in (0, 1):
        values = _flat(search, place)
        filler = torch.full_like(values, fill)
        other = [position for position, same in enumerate((values == filler).tolist()) if not same]
        if not other:
            return

        def fails(kept: list[int], values: Tensor = values, filler: Tensor = filler) -> bool:
            mixed = filler.clone()
            index = torch.tensor(kept, dtype=torch.int64)
            mixed[index] = values[index]
            return _offer(search, place, mixed, _WHAT_SET)

        if fails([]) or len(minimal(other, fails)) < len(other):
            return


def _round_all(search: Search, place: int) -> None:
    values = _flat(search, place)
    kept = values.tolist()
    if all(_plain(value) for value in kept):
        return
    for rounded in _roundings(values):
        if _offer(search, place, _filled(values, [rounded(value) for value in kept]), _WHAT_ROUNDED):
            return


def _round_singly(search: Search, place: int) -> None:
    values = _flat(search, place)
    positions = [position for position, value in enumerate(values.tolist()) if not _plain(value)]
    if len(positions) > _SINGLY:
        return
    for position in positions:
        values = _flat(search, place)
        before = values.tolist()
        for plainer in _plainer(values, before[position]):
            if search.exhausted:
                return
            changed = [*before[:position], plainer, *before[position + 1 :]]
            if plainer != before[position] and _offer(search, place, _filled(values, changed), _WHAT_ROUNDED):
                break


def _filled(like: Tensor, values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64 if like.is_floating_point() else torch.int64).to(like.dtype)


def _plain(value: float) -> bool:
    """Whether a number cannot be made plainer: 0 and 1, NaN and the infinities."""
    return isinstance(value, bool) or value in (0, 1) or not math.isfinite(value)


def _roundings(values: Tensor) -> Iterator[_Round]:
    if not values.is_floating_point():
        return
    yield lambda value: value if not math.isfinite(value) else float(round(value))
    for digits in _DIGITS:
        yield lambda value, digits=digits: _digits(value, digits)


def _plainer(values: Tensor, value: float) -> Iterator[float]:
    """Plainer numbers in place of one, the plainest first."""
    yield 1
    if not values.is_floating_point():
        sign, size = (1, -1)[value < 0], abs(int(value))
        yield from (sign * number for number in (1, 2, 10) if number < size)
        yield from (sign * 2**power for power in (size.bit_length() - 1,) if power > 1)
        return
    yield -1.0
    yield float(round(value))
    yield from (_digits(value, digits) for digits in _DIGITS)


def _digits(value: float, digits: int) -> float:
    return value if not math.isfinite(value) else float(f"{value:.{digits - 1}e}")
