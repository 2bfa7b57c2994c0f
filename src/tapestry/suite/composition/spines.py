"""Spines: the operators of a fault one after the other, each reading an earlier result, as PyTorch runs them.

Not here: what is done around a spine (readers, states) and its values (drawing).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, permutations
from random import Random
from typing import TypeVar

import torch
from torch import Tensor

from tapestry.suite.composition.editing import Steps, bases_of, externals_of, replaced, tensor_of
from tapestry.suite.composition.linking import ExampleCall, as_step, linked, tensors_of
from tapestry.suite.composition.steps import Ref, Step, leaves
from tapestry.suite.composition.trial import behind, first_tensor, is_random_op, results_of, writes

Examples = Mapping[str, Sequence[ExampleCall]]

#: Examples of one operator that spines use, and elements of one operand.
_EXAMPLES, _ELEMENTS = 12, 4096
#: Examples of the next operator that are tried for one link, and ways in which one beginning is carried on.
_TRIES, _BRANCHES = 6, 6

T = TypeVar("T")


def usable(calls: Examples) -> dict[str, list[ExampleCall]]:
    """For each operator a few calls that differ in kind: middling sizes first, several rows, float32 before others."""
    found: dict[str, list[ExampleCall]] = {}
    for op, given in calls.items():
        if is_random_op(op):
            continue
        ranked = sorted(given, key=awkwardness)
        kinds: dict[object, ExampleCall] = {}
        for call in ranked:
            kinds.setdefault(_kind(call), call)
        found[op] = list(kinds.values())[:_EXAMPLES]
    return found


def awkwardness(call: ExampleCall) -> tuple[int, int, int]:
    """Sorts calls: middling sizes first, several rows, float32 before others."""
    tensors = tensors_of(call)
    sizes = [tensor.numel() for tensor in tensors] or [0]
    dtype = 0 if all(entry.dtype in (torch.float32, torch.int64, torch.bool) for entry in tensors) else 1
    floating = 0 if any(entry.dtype == torch.float32 for entry in tensors) else 1
    bad = sum((min(sizes) == 0, max(sizes) > _ELEMENTS, max((entry.dim() for entry in tensors), default=0) == 0))
    rank = max((entry.dim() for entry in tensors), default=0)
    return (bad * 4 + dtype * 2 + floating, abs(rank - 2), max(sizes) < 6)


def _kind(call: ExampleCall) -> object:
    tensors = tensors_of(call)
    plain = [repr(value) for value in call.args if not any(isinstance(leaf, Tensor) for leaf in leaves(value))]
    options = sorted(f"{name}={value!r}" for name, value in call.kwargs.items() if not isinstance(value, Tensor))
    return tuple(entry.dim() for entry in tensors), tuple(entry.dtype for entry in tensors), tuple(plain + options)


def orders(ops: Sequence[str]) -> list[tuple[str, ...]]:
    """The orders in which operators follow each other: as given first; of more than three only that and its reverse."""
    given = tuple(ops)
    if len(given) > 3:
        return [given, tuple(reversed(given))]
    return list(dict.fromkeys([given, *permutations(given)]))


def spines_of(
    order: Sequence[str], examples: Mapping[str, Sequence[ExampleCall]], rng: Random, limit: int
) -> Iterator[Steps]:
    """At most ``limit`` spines of one order: over the examples of its operators and the places at which they link."""
    first, *rest = order
    starts = [iter([(as_step(call),)]) if not rest else _grown((as_step(call),), rest, examples, rng)
              for call in examples.get(first, ())]  # fmt: skip
    return islice(in_turn(starts), limit)


def in_turn(sources: Sequence[Iterator[T]]) -> Iterator[T]:
    """One entry of each source in turn until all are empty."""
    left = list(sources)
    while left:
        kept: list[Iterator[T]] = []
        for source in left:
            for entry in islice(source, 1):
                yield entry
                kept.append(source)
        left = kept


def _grown(
    steps: Steps, rest: Sequence[str], examples: Mapping[str, Sequence[ExampleCall]], rng: Random
) -> Iterator[Steps]:
    """The steps with those of ``rest`` behind them, each linked to the one before at some place."""
    results = results_of(steps)
    if results is None:
        return
    places = range(_places(examples.get(rest[0], ())))
    options = [
        fittings(rest[0], place, value, like, results, examples, rng)
        for value, like in _sources(steps, results)
        for place in places
    ]
    ends = (closed for step in in_turn(options) for closed in _closings(steps, step, results))
    ways = (_finished((*steps, step), rest[1:], examples, rng) for step in ends)
    for way in ways:
        yield from way


def _closings(steps: Steps, step: Step, results: Sequence[object]) -> Iterator[Step]:
    """The step; and with an earlier result, too, in place of a tensor from outside: a value that is used twice."""
    yield step
    for index in range(len(steps) - 1):
        for tensor in externals_of(step):
            edited = replaced(step, tensor, Ref(index))
            if behind(results, edited) is not None:
                yield edited


def _finished(
    steps: Steps, rest: Sequence[str], examples: Mapping[str, Sequence[ExampleCall]], rng: Random
) -> Iterator[Steps]:
    if not rest:
        yield steps
        return
    yield from islice(_grown(steps, rest, examples, rng), _BRANCHES)


def _sources(steps: Steps, results: Sequence[object]) -> list[tuple[object, Tensor]]:
    """What the next step may read: the last result, and the memory that the last step wrote to, through its views."""
    found: list[tuple[object, Tensor]] = []
    last = len(steps) - 1
    made = first_tensor(results[last])
    if made is not None:
        found.append((Ref(last, made[1]), made[0]))
    if writes(steps[last].op) and steps[last].args:
        for base in bases_of(steps, steps[last].args[0]):
            like = base if isinstance(base, Tensor) else tensor_of(results, base) if isinstance(base, Ref) else None
            if like is not None:
                found.append((base, like))
    return found


def _places(calls: Sequence[ExampleCall]) -> int:
    return min(4, max((len(tensors_of(call)) for call in calls), default=0))


def fittings(
    op: str,
    place: int,
    value: object,
    like: Tensor,
    results: Sequence[object],
    examples: Mapping[str, Sequence[ExampleCall]],
    rng: Random,
) -> Iterator[Step]:
    """Steps of ``op`` that read ``value`` (shaped as ``like``) at tensor ``place``, and run behind ``results``."""
    ranked = sorted(examples.get(op, ()), key=lambda entry: _distance(entry, place, like))
    nearest, others = ranked[: _TRIES // 2], ranked[_TRIES // 2 :]
    rng.shuffle(others)
    for call in (*nearest, *others[: _TRIES // 2]):
        tensors = tensors_of(call)
        if place >= len(tensors) or tensors[place].numel() == 0:
            continue
        for step in linked(call, place, value, like, rng):
            made = behind(results, step)
            if made is not None and _holds_something(made):
                yield step
                break


def _distance(call: ExampleCall, place: int, like: Tensor) -> tuple[bool, int]:
    tensors = tensors_of(call)
    if place >= len(tensors):
        return True, 99
    return tensors[place].dtype != like.dtype, abs(tensors[place].dim() - like.dim())


def _holds_something(result: object) -> bool:
    made = first_tensor(result)
    return made is None or made[0].numel() > 0


def unlinked(order: Sequence[str], examples: Mapping[str, Sequence[ExampleCall]], limit: int) -> list[Steps]:
    """The operators one after the other on inputs of their own, or on one they share, at any of their operands."""
    found: list[Steps] = []
    for start in examples.get(order[0], ())[:3]:
        first = as_step(start)
        for shared in externals_of(first)[:2] or [None]:
            for place in range(3):
                steps = [first]
                for op in order[1:]:
                    step = _sharing(op, shared, place, examples)
                    if step is None:
                        break
                    steps.append(step)
                if len(steps) == len(order):
                    found.append(tuple(steps))
    return found[:limit]


def _sharing(op: str, shared: Tensor | None, place: int, examples: Mapping[str, Sequence[ExampleCall]]) -> Step | None:
    """A step of ``op`` on the shared tensor at a place where an example has one like it; else an example as it is."""
    calls = examples.get(op, ())
    for call in calls:
        tensors = tensors_of(call)
        if shared is not None and place < len(tensors) and _same(tensors[place], shared):
            return replaced(as_step(call), tensors[place], shared)
    return as_step(calls[0]) if calls and place == 0 else None


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype
