"""Chains around the operators that a fault names: every order, every place of a link, and what may stand around them.

`chains_for` gives them most telling first, so that a caller may stop at the first that shows the fault. All of them run
in PyTorch. Not here: running and judging them (steps, chain_judging).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from random import Random

from torch import Tensor

from tapestry.suite.composition.chain_judging import judge_chain
from tapestry.suite.composition.drawing import KINDS, redrawn_as
from tapestry.suite.composition.editing import Steps, bases_of, externals_of, fresh, inserted, redrawn
from tapestry.suite.composition.interposed import instances, views_between
from tapestry.suite.composition.linking import ExampleCall
from tapestry.suite.composition.patterns import lines, patterns
from tapestry.suite.composition.readers import around
from tapestry.suite.composition.settings import Menu, menu_of
from tapestry.suite.composition.spines import fittings, in_turn, orders, spines_of, unlinked, usable
from tapestry.suite.composition.states import around_writes, written_places
from tapestry.suite.composition.steps import Chain, Ran, Ref, Step, run_chain, run_fault
from tapestry.suite.composition.trial import chain_of, writes

__all__ = ["Chain", "Ran", "Ref", "Step", "chains_for", "judge_chain", "run_chain", "run_fault"]

#: Spines of each order, linked and not; how many of all are valued in every way, and edited.
_SPINES, _UNLINKED, _VALUED, _EDITED = 40, 8, 24, 16
#: Chains of one kind of edit before those of another, and chains of edits behind all of these.
_FIRST, _LATER = 8, 800
#: Readings of a buffer by one of the fault's operators.
_READERS = 2
#: Random combinations of edits and values.
_COMBINED = 1500
#: Patterns over the settings of the operators.
_VARIED = 2400
#: Their values in turn; a number of them that has no factor in common with that of the kinds of patterns.
_VARIED_VALUES = ("normal", "normal", "given", "normal", "float16", "normal", "whole")
#: Consecutive calls whose results are held.
_CALLS = 3


def chains_for(
    ops: Sequence[str], calls: Mapping[str, Sequence[ExampleCall]], limit: int = 6000, seed: int = 0
) -> Iterator[Chain]:
    """At most ``limit`` chains that hold each of ``ops`` at least once.

    ``ops`` are overloads as in exported graphs (``aten.mul.Tensor``, ``aten.copy_.default``); ``calls`` gives valid
    calls of each. In this order: the operators in every order, each reading the one before at every operand that takes
    it, also where one is there twice; the same with second readers, second users, shared operands, calls between and
    repeats; for writes with reads around them, views and second writes; consecutive calls; at last random combinations
    of these. Each with several kinds of values.
    """
    usual = _all(ops, usable(calls), Random(seed))
    varied = _varied(ops, menu_of(calls), Random(seed + 1))
    yield from islice(in_turn([usual, varied]), limit)


def _varied(ops: Sequence[str], menu: Menu, rng: Random) -> Iterator[Chain]:
    """The patterns over every setting of the operators, the kinds of patterns in turn."""
    orders = _orders(ops)
    pairs = list(dict.fromkeys((one, two) for order in orders for one, two in pairwise(order)))
    kinds = patterns(ops, orders, menu, rng)
    kinds.append(in_turn([_instances(order, menu, rng) for order in orders]))
    kinds.append(in_turn([views_between(*pair, menu, rng) for pair in pairs or [(ops[0], ops[0])]]))
    for number, (name, steps) in enumerate(islice(in_turn(kinds), _VARIED)):
        yield from _valued(name, [steps], (_VARIED_VALUES[number % len(_VARIED_VALUES)],), rng)


def _instances(order: Sequence[str], menu: Menu, rng: Random) -> Iterator[tuple[str, Steps]]:
    return (named for steps in lines(order, menu, rng) for named in instances(steps, rng))


def _all(ops: Sequence[str], examples: dict[str, list[ExampleCall]], rng: Random) -> Iterator[Chain]:
    spines: list[Steps] = []
    for spine in _spines(ops, examples, rng):
        spines.append(spine)
        yield from _valued("plain", [spine], ("normal", "given"), rng)
        if len(spines) == _EDITED:
            yield from _read_by(ops, spines, examples, rng)
            yield from _edited(spines, rng)
            for early in spines:
                yield from _valued("held", _held(early, rng), ("normal",), rng)
    if len(spines) < _EDITED:
        yield from _read_by(ops, spines, examples, rng)
        yield from _edited(spines, rng)
    for spine in spines[:_VALUED]:
        yield from _valued("plain", [spine], ("float16", "whole", "special"), rng)
    for spine in spines:
        yield from _valued("held", _held(spine, rng), ("normal",), rng)
    for spine in spines[:_VALUED]:
        yield from _valued("plain", [spine], tuple(KINDS)[2:], rng)
    yield from _combined(spines, rng)


def _spines(ops: Sequence[str], examples: dict[str, list[ExampleCall]], rng: Random) -> Iterator[Steps]:
    """Linked spines of every order and those that are not linked, in turn."""
    apart = [spine for order in orders(ops) for spine in unlinked(order, examples, _UNLINKED)]
    grown = [spines_of(order, examples, rng, _SPINES) for order in _orders(ops)]
    return in_turn([*grown, iter(apart)])


def _read_by(
    ops: Sequence[str], spines: Sequence[Steps], examples: dict[str, list[ExampleCall]], rng: Random
) -> Iterator[Chain]:
    """The fault's own operators read a buffer in front of a write to it, behind it, and on both sides."""
    for spine in spines:
        for place in written_places(spine):
            buffers = [base for base in bases_of(spine, spine[place].args[0]) if isinstance(base, Tensor)]
            for buffer, op in ((buffer, op) for buffer in buffers for op in ops if not writes(op)):
                for step in islice(fittings(op, 0, buffer, buffer, (), examples, rng), _READERS):
                    yield from _valued("read in front", [inserted(spine, place, [step])], ("normal",), rng)
                    yield from _valued("read behind", [(*spine, step)], ("normal",), rng)
                    yield from _valued(
                        "read on both sides", [(*inserted(spine, place, [step]), step)], ("normal",), rng
                    )


def _orders(ops: Sequence[str]) -> list[tuple[str, ...]]:
    """The orders of the operators, and for one or two of them also those with one there twice."""
    found = orders(ops)
    if len(ops) == 1:
        found += [(ops[0],) * 2, (ops[0],) * 3]
    if len(ops) == 2:
        first, second = ops
        found += [(first, first, second), (first, second, second), (first, second, first), (second, first, second)]
    return list(dict.fromkeys(found))


def _edited(spines: Sequence[Steps], rng: Random) -> Iterator[Chain]:
    """Every edit of every spine: the first of each kind before the second, on two kinds of values at its first."""
    seen: dict[str, int] = {}
    later: list[tuple[str, Steps]] = []
    for name, steps in in_turn([_edits(spine, rng) for spine in spines]):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > _FIRST:
            later.append((name, steps))
            continue
        yield from _valued(name, [steps], ("normal", "whole") if seen[name] == 1 else ("normal",), rng)
    for name, steps in later[:_LATER]:
        yield from _valued(name, [steps], ("normal",), rng)


def _edits(spine: Steps, rng: Random) -> Iterator[tuple[str, Steps]]:
    if not any(writes(step.op) for step in spine):
        yield from around(spine, rng)
        return
    yield from in_turn([around_writes(spine, rng), around(spine, rng)])


def _valued(name: str, calls: list[Steps], kinds: Sequence[str], rng: Random) -> Iterator[Chain]:
    """The chains of these calls on several kinds of values, as far as PyTorch takes them."""
    for kind in kinds:
        chain = chain_of(f"{name}, {kind} values", *redrawn_as(kind, calls, rng))
        if chain is not None:
            yield chain


def _held(steps: Steps, rng: Random) -> list[Steps]:
    """Consecutive calls of the same steps: one operand is new in each, what is written and the rest are shared."""
    moving = _moving(steps)
    fixed = frozenset(id(tensor) for step in steps for tensor in externals_of(step) if tensor is not moving)
    more = [redrawn([steps], lambda flat: fresh(flat, rng), fixed)[0] for _ in range(_CALLS - 1)]
    return [steps, *more]


def _combined(spines: Sequence[Steps], rng: Random) -> Iterator[Chain]:
    """Random edits of edited spines, with random values, some of them as consecutive calls."""
    if not spines:
        return
    kinds = tuple(KINDS)
    for _ in range(_COMBINED):
        steps, names = rng.choice(spines), []
        for _ in range(rng.randint(1, 2)):
            edits = list(_edits(steps, rng))
            if not edits:
                break
            name, edited = rng.choice(edits)
            if chain_of(name, edited) is not None:
                steps = edited
                names.append(name)
        calls = _held(steps, rng) if rng.random() < 0.3 else [steps]
        yield from _valued("; ".join(names) or "plain", calls, (rng.choice(kinds),), rng)


def _moving(steps: Steps) -> Tensor | None:
    """The first tensor from outside that no step writes to."""
    written = {id(step.args[0]) for step in steps if writes(step.op) and step.args}
    return next((tensor for step in steps for tensor in externals_of(step) if id(tensor) not in written), None)
