"""Patterns of a fault's operators in which the settings of all of them vary: lines, diamonds, siblings, and the items
of several results. Not here: what the settings are (settings), and calls and views put in between (interposed).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, permutations, product, tee
from random import Random
from typing import cast

from torch import Tensor

from tapestry.program.serial import overload_named
from tapestry.suite.composition.editing import Steps, externals_of, last_reader, refs_of, replaced, tensor_of
from tapestry.suite.composition.linking import ExampleCall, as_step, tensors_of
from tapestry.suite.composition.readers import Named, reader
from tapestry.suite.composition.settings import Menu
from tapestry.suite.composition.spines import fittings, in_turn
from tapestry.suite.composition.steps import Ref, Step, changed
from tapestry.suite.composition.trial import behind, first_tensor, results_of, writes

#: Combinations of settings for one order of operators, tensors of a call at which it is linked, calls of one setting
#: and settings in a row that are tried for one link.
_COMBINED, _PLACES, _TRIED, _NEXT = 160, 4, 2, 6


def picks(counts: Sequence[int], limit: int = _COMBINED) -> Iterator[tuple[int, ...]]:
    """Choices of one of each count: each of every count soon, then every pair of neighbours, no choice twice."""
    seen: set[tuple[int, ...]] = set()
    widest = max(counts, default=0)
    for shift in range(widest):
        for turn in range(widest):
            found = tuple((turn + shift * place) % count for place, count in enumerate(counts))
            if found not in seen and len(seen) < limit:
                seen.add(found)
                yield found


def trios(ops: Sequence[str]) -> list[tuple[str, str, str]]:
    """Three operators of a fault in every order; with fewer, some are there twice, and all at least once."""
    if len(ops) >= 3:
        return list(dict.fromkeys(permutations(ops, 3)))
    whole = set(ops)
    return [cast("tuple[str, str, str]", found) for found in product(dict.fromkeys(ops), repeat=3)
            if set(found) == whole]  # fmt: skip


def started(settings: Sequence[Sequence[ExampleCall]], pick: int, turn: int) -> Step:
    """The first step of a chain: a call of a setting."""
    calls = settings[pick]
    return as_step(calls[turn % min(len(calls), _TRIED)])


def joined(steps: Steps, calls: Sequence[ExampleCall], source: object, turn: int, rng: Random) -> Step | None:
    """A step of one of the calls that reads ``source`` (a Ref, or a tensor) behind the steps; None when none runs.

    ``turn`` says at which of its tensors it is tried first.
    """
    results = results_of(steps)
    if results is None:
        return None
    like = tensor_of(results, source) if isinstance(source, Ref) else source
    if not isinstance(like, Tensor) or like.numel() == 0:
        return None
    places = min(_PLACES, max(len(tensors_of(call)) for call in calls))
    near = sorted(calls, key=lambda call: abs(tensors_of(call)[0].dim() - like.dim()))[:_TRIED]
    op = as_step(near[0]).op
    for shift in range(places):
        for step in fittings(op, (turn + shift) % places, source, like, results, {op: near}, rng):
            return step
    return None


def read(steps: Steps, turn: int) -> Ref | None:
    """The result of the last step that the next one reads: of several, the first, the last or a middle one by turn."""
    results = results_of(steps)
    if results is None:
        return None
    last = len(steps) - 1
    items = items_of(results[last])
    if items:
        return Ref(last, [items[0], items[-1], items[len(items) // 2]][turn % 3])
    return Ref(last) if first_tensor(results[last]) is not None else None


def items_of(result: object) -> list[int]:
    """The items of a result that are tensors; none for a result that is one."""
    if not isinstance(result, tuple | list):
        return []
    return [item for item, entry in enumerate(cast("Sequence[object]", result)) if isinstance(entry, Tensor)]


def gives_several(op: str) -> bool:
    """Whether an operator's result is several tensors, or a list of them."""
    results = overload_named(op)._schema.returns
    return len(results) > 1 or any("[]" in str(entry.type) or "List" in str(entry.type) for entry in results)


def lines(order: Sequence[str], menu: Menu, rng: Random) -> Iterator[Steps]:
    """The operators one behind the other, with every setting of each, and pairs of settings of neighbours."""
    if any(op not in menu for op in order):
        return
    found: set[tuple[int, ...]] = set()
    for turn, choice in enumerate(picks([len(menu[op]) for op in order])):
        steps: Steps = (started(menu[order[0]], choice[0], turn),)
        used = [choice[0]]
        for op, pick in zip(order[1:], choice[1:], strict=True):
            step, taken = _nearest(steps, menu[op], pick, turn, rng)
            if step is None:
                break
            steps = (*steps, step)
            used.append(taken)
        if len(steps) == len(order) and tuple(used) not in found:
            found.add(tuple(used))
            yield steps


def _nearest(
    steps: Steps, settings: Sequence[Sequence[ExampleCall]], pick: int, turn: int, rng: Random
) -> tuple[Step | None, int]:
    """A step behind the steps with the picked setting or, where that does not fit the value, one of the next."""
    source = read(steps, turn)
    for shift in range(min(_NEXT, len(settings)) if source is not None else 0):
        taken = (pick + shift) % len(settings)
        step = joined(steps, settings[taken], source, turn // 2, rng)
        if step is not None:
            return step, taken
    return None, pick


def seen(steps: Steps) -> Iterator[Named]:
    """A line with the values between read by others, too: what a fused part must still give."""
    inner = sorted({ref for step in steps for ref in refs_of(step)}, key=lambda ref: ref.index)
    if inner and not any(writes(step.op) for step in steps):
        yield "other settings, all read", (*steps, *(reader("aten.alias.default", ref) for ref in inner))
        yield "other settings, subtracted", (*steps, reader("aten.sub.Tensor", inner[-1], Ref(len(steps) - 1)))


def diamonds(trio: Sequence[str], menu: Menu, rng: Random) -> Iterator[Named]:
    """The third reads both the first and the second, which reads the first; in both orders of its operands."""
    first, second, third = trio
    if any(op not in menu for op in trio):
        return
    for turn, choice in enumerate(picks([len(menu[op]) for op in (second, third, first)])):
        head: Steps = (started(menu[first], choice[2], turn),)
        source = read(head, turn)
        step = None if source is None else joined(head, menu[second][choice[0]], source, turn // 2, rng)
        inner = None if step is None else read((*head, step), turn)
        if source is None or step is None or inner is None:
            continue
        for one, two in ((source, inner), (inner, source)):
            closed = _closed((*head, step), menu[third][choice[1]], one, two, rng)
            if closed is not None:
                yield "a diamond", (*head, step, closed)


def _closed(steps: Steps, calls: Sequence[ExampleCall], one: Ref, two: Ref, rng: Random) -> Step | None:
    """A step that reads two results, the one before the other."""
    results = results_of(steps)
    step = joined(steps, calls, one, 0, rng)
    if step is None or results is None:
        return None
    for tensor in externals_of(step):
        edited = replaced(step, tensor, two, 1)
        if behind(results, edited) is not None:
            return edited
    return None


def siblings(trio: Sequence[str], menu: Menu, rng: Random) -> Iterator[Named]:
    """The second and third read the first, neither the other; their results are used later, apart and together."""
    first, second, third = trio
    if any(op not in menu for op in trio):
        return
    for turn, choice in enumerate(picks([len(menu[op]) for op in (second, third, first)])):
        head: Steps = (started(menu[first], choice[2], turn // 2),)
        own = externals_of(head[0])
        if turn % 2 and len(own) > 1 and own[0].shape == own[1].shape and own[0].dtype == own[1].dtype:
            head = (replaced(head[0], own[1], own[0]),)
        source = read(head, turn)
        if source is None:
            continue
        left = joined(head, menu[second][choice[0]], source, turn // 2, rng)
        right = joined(head, menu[third][choice[1]], source, turn // 3, rng)
        if left is not None and right is not None:
            yield from _used("siblings", (*head, left, right), [Ref(1), Ref(2)])


def on_one_tensor(pair: Sequence[str], menu: Menu, rng: Random) -> Iterator[Named]:
    """Two operators that read one tensor from outside; their results are used later, apart and together."""
    first, second = pair
    if any(op not in menu for op in pair):
        return
    for turn, choice in enumerate(picks([len(menu[op]) for op in pair])):
        head: Steps = (started(menu[first], choice[0], turn),)
        shared = externals_of(head[0])
        step = joined(head, menu[second][choice[1]], shared[turn % len(shared)], turn // 2, rng)
        if step is not None:
            yield from _used("on one tensor", (*head, step), [Ref(0), Ref(1)])
            yield from _with_its_result(head, step, shared[turn % len(shared)])


def _with_its_result(head: Steps, step: Step, shared: Tensor) -> Iterator[Named]:
    """The second reads the tensor and what the first has made of it, in either order."""
    made, results = read(head, 0), results_of(head)
    if made is None or results is None:
        return
    for tensor in externals_of(step):
        if tensor is shared:
            continue
        turned = changed(step, lambda leaf, own=tensor: {id(shared): made, id(own): shared}.get(id(leaf), leaf))
        for edited in (replaced(step, tensor, made), turned):
            if behind(results, edited) is not None:
                yield from _used("on one tensor and its result", (*head, edited), [Ref(0), Ref(1)])


def _used(name: str, steps: Steps, refs: Sequence[Ref]) -> Iterator[Named]:
    yield name, steps
    results = results_of(steps)
    if results is None:
        return
    whole = [Ref(ref.index, items_of(results[ref.index])[0]) if items_of(results[ref.index]) else ref for ref in refs]
    written = [step.args[0] for step in steps if writes(step.op) and isinstance(step.args[0], Tensor)]
    if any(writes(step.op) for step in steps):
        kept = [reader("aten.neg.default", ref) for ref in whole if not writes(steps[ref.index].op)]
        yield f"{name}, used behind the write", (*steps, *kept, *(reader("aten.clone.default", own) for own in written))
        return
    yield f"{name}, used later", (*steps, *(reader("aten.neg.default", ref) for ref in whole))
    yield f"{name}, used together", (*steps, reader("aten.sub.Tensor", *whole))


def items(steps: Steps) -> Iterator[Named]:
    """The results of a step that gives several: all leave, one by one and two together, and others are read instead."""
    results = results_of(steps)
    if results is None or any(writes(step.op) for step in steps):
        return
    for index, result in enumerate(results):
        found = items_of(result)
        if not found:
            continue
        tail = [reader("aten.alias.default", Ref(index, item)) for item in found[:8]]
        yield "all items are read", (*steps, *tail)
        for one, two in ((found[0], found[-1]), (found[-1], found[0]), (found[len(found) // 2], found[0])):
            yield "two items together", (*steps, reader("aten.sub.Tensor", Ref(index, one), Ref(index, two)))
        yield from _items_of_readers(steps, index, found)


def _items_of_readers(steps: Steps, index: int, found: Sequence[int]) -> Iterator[Named]:
    used = [ref for step in steps for ref in refs_of(step) if ref.index == index]
    for old in used[:1]:
        place = last_reader(steps, old)
        for item in dict.fromkeys((found[0], found[-1], found[len(found) // 2])):
            other = Ref(index, item)
            again = replaced(steps[place], old, other)
            yield "another item is read", (*steps[:place], again, *steps[place + 1 :])
            yield "two items in turn", (*steps, again)
            for tensor in externals_of(steps[place])[:2]:
                both = replaced(steps[place], tensor, other)
                yield "two items in one call", (*steps[:place], both, *steps[place + 1 :])


def patterns(ops: Sequence[str], orders: Sequence[Sequence[str]], menu: Menu, rng: Random) -> list[Iterator[Named]]:
    """The patterns of a fault's operators, each kind from the most usual settings on."""
    distinct = list(dict.fromkeys(ops))
    pairs = list(permutations(distinct, 2)) if len(distinct) > 1 else [(distinct[0], distinct[0])]
    rows = [tee(lines(order, menu, rng)) for order in orders]
    parts = [(named for steps in lines(order, menu, rng) for named in items(steps))
             for order in orders if any(gives_several(op) for op in order)]  # fmt: skip
    return [
        in_turn([(("other settings", steps) for steps in plain) for plain, _ in rows]),
        in_turn([(named for steps in more for named in seen(steps)) for _, more in rows]),
        in_turn([diamonds(trio, menu, rng) for trio in trios(ops)]),
        in_turn([siblings(trio, menu, rng) for trio in trios(ops)]),
        in_turn([on_one_tensor(pair, menu, rng) for pair in pairs]),
        islice(in_turn(parts), 600),
    ]
