"""What stands between two calls of a fault beside the value that goes from one to the other: another instance of one of
them, and views of a value that is not read itself any more.

Not here: calls that the value goes through (readers), settings (settings).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tapestry.suite.composition.editing import (
    Steps,
    fresh,
    inserted,
    last_reader,
    links,
    redrawn,
    tensor_of,
)
from tapestry.suite.composition.linking import ExampleCall
from tapestry.suite.composition.patterns import joined, picks, read, started
from tapestry.suite.composition.readers import Named
from tapestry.suite.composition.settings import Menu
from tapestry.suite.composition.steps import Ref, Step, changed
from tapestry.suite.composition.trial import behind, results_of, writes

#: Views of a value of two or more dimensions, by operator and arguments.
_VIEWS: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("aten.transpose.int", (-1, -2)),
    ("aten.slice.Tensor", (-1, 1, 1 << 62)),
    ("aten.select.int", (0, 0)),
    ("aten.slice.Tensor", (0, 0, 1)),
    ("aten.view.default", ([-1],)),
    ("aten.unsqueeze.default", (0,)),
    ("aten.select.int", (-1, -1)),
    ("aten.slice.Tensor", (-1, 0, 1 << 62, 2)),
)


def apart(steps: Steps, place: int, rng: Random) -> Step | None:
    """Another instance of a step: the same call on other tensors of the same shapes, which reads no step's result."""
    results = results_of(steps)
    if results is None:
        return None

    def leaf(value: object) -> object:
        found = tensor_of(results, value) if isinstance(value, Ref) else None
        return value if found is None else found.clone()

    ((own,),) = redrawn([(changed(steps[place], leaf),)], lambda flat: fresh(flat, rng))
    return own


def instances(steps: Steps, rng: Random) -> Iterator[Named]:
    """Another instance of each step at every place: in front of all, between a producer and its reader, at the end."""
    count = len(steps)
    others = [apart(steps, place, rng) for place in range(count)]
    for at in (*range(1, count), count, 0):
        for other in others:
            if other is not None:
                yield "another instance between", inserted(steps, at, [other])
    yield from _between_readers(steps, others, rng)


def _between_readers(steps: Steps, others: Sequence[Step | None], rng: Random) -> Iterator[Named]:
    """A value has two readers, and an instance of a step stands between them."""
    for ref in links(steps):
        (again,) = redrawn([(steps[last_reader(steps, ref)],)], lambda flat: fresh(flat, rng))
        for other in others:
            if other is not None:
                yield "another instance between readers", (*steps, other, *again)


def views_between(first: str, second: str, menu: Menu, rng: Random) -> Iterator[Named]:
    """A view of a result is read behind another instance of one of the operators, and the result itself by nobody."""
    if first not in menu or second not in menu or writes(first):
        return
    counts = (len(_VIEWS), len(menu[first]), len(menu[second]))
    for turn, choice in enumerate(picks(counts)):
        op, args = _VIEWS[choice[0]]
        head: Steps = (started(menu[first], choice[1], turn),)
        source = read(head, turn)
        view = None if source is None else Step(op, (source, *args), {})
        results = results_of(head)
        if view is None or results is None or behind(results, view) is None:
            continue
        yield from _behind(head, view, menu[second][choice[2]], turn, rng)


def _behind(head: Steps, view: Step, calls: Sequence[ExampleCall], turn: int, rng: Random) -> Iterator[Named]:
    """The view with its reader, and another instance of the producer, of the reader or of both in between."""
    viewed = (*head, view)
    other = apart(head, 0, rng)
    reader = joined(viewed, calls, Ref(1), turn // 2, rng)
    if other is not None:
        yield "a view behind another instance", (*viewed, other)
    if reader is None:
        return
    whole = (*viewed, reader)
    yield "a view is read", whole
    if other is not None:
        yield "a view is read behind another instance", inserted(whole, 2, [other])
        yield "a view is taken behind another instance", inserted(whole, 1, [other])
    own = apart(whole, 2, rng)
    if own is not None:
        yield "a view is read behind another reader", inserted(whole, 2, [own])
        yield "a view is read between other readers", (*inserted(whole, 2, [own]), own)
