"""What stands around a spine: further readers of the values between, calls in between, repeats, shared operands.

Each edit gives steps that may not run: the caller tries them. Not here: buffers that are written (states).
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import torch
from torch import Tensor

from tapestry.program.serial import overload_named
from tapestry.suite.composition.editing import (
    Steps,
    externals_of,
    first_reader,
    fresh,
    inserted,
    last_reader,
    links,
    redirected,
    redrawn,
    refs_of,
    replaced,
    shifted,
)
from tapestry.suite.composition.steps import Ref, Step
from tapestry.suite.composition.trial import writes

Named = tuple[str, Steps]


def reader(op: str, value: object, *more: object) -> Step:
    """A step of one operator on a value."""
    return Step(op, (value, *more), {})


#: Readings of a value: as it is, and by calls that compute.
_READINGS = ("aten.alias.default", "aten.neg.default", "aten.clone.default", "aten.sum.default")
#: Calls between two others that change no shape.
_BETWEEN = ("aten.relu.default", "aten.neg.default", "aten.clone.default", "aten.abs.default")


def around(steps: Steps, rng: Random) -> Iterator[Named]:
    """The edits of a spine, the most telling first."""
    yield from second_readers(steps)
    yield from second_users(steps, rng)
    yield from both_operands(steps)
    yield from shared_operands(steps)
    yield from between(steps)
    yield from rewired(steps)
    yield from broadcast(steps)
    yield from other_factors(steps)
    yield from casts_between(steps)
    yield from outside(steps)
    yield from laid_out(steps)
    yield from repeated(steps, rng)


def second_readers(steps: Steps) -> Iterator[Named]:
    """Every value between is read by something else, too: at the end, and right after it is made."""
    for ref in links(steps):
        for op in _READINGS:
            yield f"read twice at the end by {op}", (*steps, reader(op, ref))
            yield f"read twice at once by {op}", inserted(steps, ref.index + 1, [reader(op, ref)])
    if len(links(steps)) > 1:
        yield "all values are read", (*steps, *(reader("aten.alias.default", ref) for ref in links(steps)))


def second_users(steps: Steps, rng: Random) -> Iterator[Named]:
    """The step that reads a value is there twice, with other operands: before and behind the first."""
    for ref in links(steps):
        place = last_reader(steps, ref)
        (again,) = redrawn([(steps[place],)], lambda flat: fresh(flat, rng))
        yield "two users", (*steps, *again)
        yield "the same twice", (*steps, steps[place])
        yield "two users at once", inserted(steps, place, again)
        yield "user of the user", (*steps, replaced(again[0], ref, Ref(place)))
        yield "added to its user", (*steps, reader("aten.add.Tensor", Ref(place), ref))
        yield "its user added to it", (*steps, reader("aten.add.Tensor", ref, Ref(place)))


def both_operands(steps: Steps) -> Iterator[Named]:
    """A value in every operand of its reader."""
    for ref in links(steps):
        place = first_reader(steps, ref)
        for tensor in externals_of(steps[place]):
            yield "in both operands", (*steps[:place], replaced(steps[place], tensor, ref), *steps[place + 1 :])


def shared_operands(steps: Steps) -> Iterator[Named]:
    """Two steps that read the same tensor from outside (a residual); and the first one's operands all the same."""
    first = externals_of(steps[0])
    for place in range(1, len(steps)):
        for own in externals_of(steps[place]):
            for tensor in first:
                if tensor is not own and tensor.shape == own.shape and tensor.dtype == own.dtype:
                    edited = replaced(steps[place], own, tensor)
                    yield "a shared operand", (*steps[:place], edited, *steps[place + 1 :])
    last = len(steps) - 1
    for tensor in first[:2]:
        yield "residual", (*steps, reader("aten.add.Tensor", Ref(last), tensor))
    for own in first[1:]:
        if own.shape == first[0].shape and own.dtype == first[0].dtype and own is not first[0]:
            yield "one tensor twice", (replaced(steps[0], own, first[0]), *steps[1:])


def between(steps: Steps) -> Iterator[Named]:
    """Another call on a link: the value goes through it, and it is read at the end, too."""
    for ref in links(steps):
        for op in _BETWEEN:
            yield f"{op} between", _through(steps, ref, [reader(op, ref)])
        through = _through(steps, ref, [reader("aten.mul.Tensor", ref, 0.5)])
        yield "scaled between", through
        yield "scaled between and read", (*through, reader("aten.alias.default", ref))
        turned = [reader("aten.transpose.int", ref, -1, -2), reader("aten.clone.default", Ref(ref.index + 1))]
        back = [reader("aten.transpose.int", Ref(ref.index + 2), -1, -2)]
        yield "turned between", _through(steps, ref, [*turned, *back])


def casts_between(steps: Steps) -> Iterator[Named]:
    """A value that goes through a narrower type and back."""
    for ref in links(steps):
        for narrow, wide in ((torch.float16, torch.float32), (torch.bfloat16, torch.float32)):
            pair = [
                Step("aten.to.dtype", (ref, narrow), {}),
                Step("aten.to.dtype", (Ref(ref.index + 1), wide), {}),
            ]
            yield "cast between", _through(steps, ref, pair)


def _through(steps: Steps, ref: Ref, new: list[Step]) -> Steps:
    """The steps with ``new`` put right behind what ``ref`` names; its readers read the last of them."""
    longer = inserted(steps, ref.index + 1, new)
    return redirected(longer, ref.index + 1 + len(new), ref, Ref(ref.index + len(new)))


def rewired(steps: Steps) -> Iterator[Named]:
    """A step reads another earlier value than it did, or one in place of a tensor from outside."""
    for place in range(1, len(steps)):
        earlier = [Ref(index) for index in range(place)]
        for old in (*refs_of(steps[place]), *externals_of(steps[place])):
            for ref in earlier:
                if ref != old and ref not in refs_of(steps[place]):
                    edited = replaced(steps[place], old, ref)
                    yield "another value is read", (*steps[:place], edited, *steps[place + 1 :])


def broadcast(steps: Steps) -> Iterator[Named]:
    """An operand from outside is broadcast: one row, one column, a row without its dimension, a number."""
    for place, step in enumerate(steps):
        for tensor in externals_of(step):
            if tensor.dim() < 2 or tensor.numel() == 0 or writes(step.op):
                continue
            for part in (tensor[0], tensor[:1], tensor[..., :1], tensor.reshape(-1)[0]):
                edited = replaced(step, tensor, part.clone())
                yield "an operand is broadcast", (*steps[:place], edited, *steps[place + 1 :])


def other_factors(steps: Steps) -> Iterator[Named]:
    """The factors that a call scales its operands by (alpha, beta) are not 1."""
    for place, step in enumerate(steps):
        names = {entry.name for entry in overload_named(step.op)._schema.arguments}
        for name in ("alpha", "beta"):
            for factor in (2, -0.5) if name in names else ():
                edited = Step(step.op, step.args, {**step.kwargs, name: factor})
                yield f"{name} is {factor}", (*steps[:place], edited, *steps[place + 1 :])


def laid_out(steps: Steps) -> Iterator[Named]:
    """An operand from outside is not dense: transposed in memory, or every second row or column of a larger one."""
    for step in steps:
        for tensor in externals_of(step):
            if tensor.dim() < 2 or tensor.numel() == 0:
                continue
            turned = tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
            for view in (turned, tensor.repeat_interleave(2, 0)[::2], tensor.repeat_interleave(2, -1)[..., ::2]):
                edited = tuple(replaced(entry, tensor, view) for entry in steps)
                yield "an operand is not dense", edited


def outside(steps: Steps) -> Iterator[Named]:
    """Another call before the first step's operand, and behind the last step."""
    for op in ("aten.relu.default", "aten.neg.default"):
        for tensor in externals_of(steps[0])[:2]:
            head = reader(op, tensor)
            yield (
                f"{op} in front",
                (head, replaced(shifted(steps[0], 0, 1), tensor, Ref(0)), *(shifted(step, 0, 1) for step in steps[1:])),
            )
        yield f"{op} behind", (*steps, reader(op, Ref(len(steps) - 1)))
        yield (
            f"{op} behind, read",
            (
                *steps,
                reader(op, Ref(len(steps) - 1)),
                reader("aten.alias.default", Ref(len(steps) - 1)),
            ),
        )


def repeated(steps: Steps, rng: Random) -> Iterator[Named]:
    """The whole spine twice: side by side, interleaved, and one behind the other."""
    (other,) = redrawn([steps], lambda flat: fresh(flat, rng))
    count = len(steps)
    yield "twice", (*steps, *(shifted(step, 0, count) for step in other))
    yield "interleaved", _interleaved(steps, other)
    for tensor in externals_of(other[0])[:3]:
        yield "stacked", (*steps, *_behind(other, tensor, count))
    for tensor in externals_of(steps[0])[:3]:
        yield "stacked on the same tensors", (*steps, *_behind(steps, tensor, count))


def _behind(steps: Steps, tensor: Tensor, count: int) -> Steps:
    """The steps behind ``count`` others, with the last of these read by the first step in place of ``tensor``."""
    first, *rest = (shifted(step, 0, count) for step in steps)
    return (replaced(first, tensor, Ref(count - 1)), *rest)


def _interleaved(steps: Steps, other: Steps) -> Steps:
    """a0 b0 a1 b1 …: references are renumbered."""
    found: list[Step] = []
    for place in range(len(steps)):
        for side, source in enumerate((steps, other)):
            step = source[place]
            for ref in sorted(set(refs_of(step)), key=lambda entry: -entry.index):
                step = replaced(step, ref, Ref(2 * ref.index + side, ref.item))
            found.append(step)
    return tuple(found)
