"""Around a spine that writes to a buffer: reads before and behind the write, through the base and through views,
second writes, writes of what was read, and consecutive calls. Not here: spines without a write (readers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import torch
from torch import Tensor

from tapestry.suite.composition.editing import (
    Steps,
    bases_of,
    externals_of,
    fresh,
    inserted,
    redrawn,
    replaced,
    shifted,
)
from tapestry.suite.composition.readers import Named, reader
from tapestry.suite.composition.steps import Ref, Step
from tapestry.suite.composition.trial import writes

#: Readings that copy or compute: what they give stays as it was when the buffer is written later.
_READINGS = ("aten.clone.default", "aten.neg.default", "aten.sum.default")


def written_places(steps: Steps) -> list[int]:
    """The places of the steps that write."""
    return [place for place, step in enumerate(steps) if writes(step.op)]


def around_writes(steps: Steps, rng: Random) -> Iterator[Named]:
    """The edits of a spine that writes, the most telling first; nothing for one that does not."""
    for place in written_places(steps):
        target = steps[place].args[0] if steps[place].args else None
        for base in bases_of(steps, target):
            if not isinstance(base, Tensor):
                continue
            yield from _reads(steps, place, base)
            yield from _second_writes(steps, place, base, rng)
        if isinstance(target, Tensor):
            yield from _through_views(steps, place, target, rng)
            yield from _of_itself(steps, place, target)
    yield from _reads_between(steps)


def _reads(steps: Steps, place: int, base: Tensor) -> Iterator[Named]:
    for op in _READINGS:
        head, tail = reader(op, base), reader(op, base)
        yield f"{op} behind the write", (*steps, tail)
        yield f"{op} in front of the write", inserted(steps, place, [head])
        yield f"{op} on both sides", (*inserted(steps, place, [head]), tail)
        yield f"{op} right behind the write", inserted(steps, place + 1, [tail])
    yield "the write's result is read", (*steps, reader("aten.neg.default", Ref(place)))
    lookers: list[tuple[str, tuple[object, ...]]] = [
        ("aten.select.int", (0, 0)), ("aten.select.int", (0, -1)), ("aten.slice.Tensor", (0, 0, 1)),
        ("aten.transpose.int", (-1, -2)), ("aten.view.default", ([-1],)), ("aten.slice.Tensor", (-1, 1, 1 << 62)),
    ]  # fmt: skip
    for op, args in lookers:
        view = Step(op, (base, *args), {})
        early = inserted(steps, 0, [view])
        yield f"an old view ({op}) is read behind the write", (*early, reader("aten.clone.default", Ref(0)))
        late = (*steps, view, reader("aten.mul.Tensor", Ref(len(steps)), 2.0))
        yield f"a new view ({op}) is read behind the write", late


def _second_writes(steps: Steps, place: int, base: Tensor, rng: Random) -> Iterator[Named]:
    (again,) = redrawn([(steps[place],)], lambda flat: fresh(flat, rng), frozenset({id(base)}))
    tail = reader("aten.clone.default", base)
    yield "written twice", (*steps, *again, tail)
    yield "written the same twice", (*steps, steps[place], tail)
    yield "written first by another", (*inserted(steps, place, again), tail)
    between = (*steps, reader("aten.neg.default", base), *again, tail)
    yield "read between two writes", between
    yield "all steps twice", (*steps, *(shifted(step, 0, len(steps)) for step in steps), tail)


#: How a larger base is made of a buffer, and the view that shows the buffer in it.
_View = tuple[str, Callable[[Tensor], Tensor], Callable[[Tensor], tuple[str, tuple[object, ...]]]]


def _rows(tensor: Tensor) -> tuple[str, tuple[object, ...]]:
    return "aten.slice.Tensor", (0, 1, 1 + tensor.shape[0])


def _columns(tensor: Tensor) -> tuple[str, tuple[object, ...]]:
    return "aten.slice.Tensor", (-1, 1, 1 + tensor.shape[-1])


_VIEWS: tuple[_View, ...] = (
    ("rows", lambda t: torch.cat([t[:1], t, t[-1:], t[:1]]), _rows),
    ("a row of three", lambda t: torch.stack([t, t, t]), lambda t: ("aten.select.int", (0, 1))),
    ("columns", lambda t: torch.cat([t[..., :1], t, t[..., -1:]], -1), _columns),
    ("a column of two", lambda t: torch.stack([t, t], -1), lambda t: ("aten.select.int", (-1, 1))),
    ("the transpose", lambda t: t.transpose(-1, -2).contiguous(), lambda t: ("aten.transpose.int", (-1, -2))),
    ("another shape", lambda t: t.reshape(-1).clone(), lambda t: ("aten.view.default", (list(t.shape),))),
    (
        "every second row",
        lambda t: t.repeat_interleave(2, 0),
        lambda t: ("aten.slice.Tensor", (0, 0, 2 * t.shape[0], 2)),
    ),
)


def _through_views(steps: Steps, place: int, target: Tensor, rng: Random) -> Iterator[Named]:
    """The write goes through a view of a larger buffer, which is read before and behind it."""
    if target.dim() == 0 or target.numel() == 0:
        return
    for name, enlarge, show in _VIEWS:
        if name == "the transpose" and target.dim() < 2:
            continue
        base = enlarge(target)
        op, args = show(target)
        viewed = tuple(replaced(shifted(step, 0, 1), target, Ref(0)) for step in steps)
        head = Step(op, (base, *args), {})
        tail = reader("aten.clone.default", base)
        yield f"written through {name}", (head, *viewed, tail)
        before = inserted((head, *viewed), place + 1, [reader("aten.clone.default", base)])
        yield f"written through {name}, read on both sides", (*before, tail)
        (again,) = redrawn([(viewed[place],)], lambda flat: fresh(flat, rng))
        yield f"written twice through {name}", (head, *viewed, *again, tail)


def _of_itself(steps: Steps, place: int, target: Tensor) -> Iterator[Named]:
    """What is written was read from the same buffer; and what was read is used behind the write."""
    for tensor in externals_of(steps[place]):
        if tensor is target or tensor.shape != target.shape:
            continue
        for op in ("aten.neg.default", "aten.clone.default"):
            head = reader(op, target)
            written = replaced(shifted(steps[place], 0, 1), tensor, Ref(0))
            edited = (*(shifted(step, 0, 1) for step in steps[:place]), written)
            rest = tuple(shifted(step, 0, 1) for step in steps[place + 1 :])
            yield f"{op} of itself is written", (head, *edited, *rest, reader("aten.clone.default", target))
            used = reader("aten.add.Tensor", Ref(0), target)
            yield f"{op} of itself is written and used", (head, *edited, *rest, used)


def _reads_between(steps: Steps) -> Iterator[Named]:
    """Everything that a writing spine reads from outside is read once more at the end."""
    if not written_places(steps):
        return
    tensors = {id(tensor): tensor for step in steps for tensor in externals_of(step)}
    yield "all is read behind", (*steps, *(reader("aten.clone.default", tensor) for tensor in tensors.values()))
