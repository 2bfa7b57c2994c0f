"""Which sizes of a call belong together: the axes and whole-number arguments that must change as one.

Found by trial on eager, the smallest set first: an axis alone, with the axes that broadcast against it, with one other
of equal size, with all of equal size, and each of these with the equal entries of size arguments. Sizes that are
multiples of each other (channels and channels per group, a flattened size) follow in proportion. Not here: which sizes
to give them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch

from tapestry.suite.variants.attributes_binding import as_ints, changed, given
from tapestry.suite.variants.call import OpCall
from tapestry.suite.variants.meaning import AttributeRole, Role, attributes, tensor_meanings
from tapestry.suite.variants.shape_data import generator, resized
from tapestry.suite.variants.shape_trial import accepts, contradicts

#: Trials of one call on eager, about 50 µs each.
TRIALS = 160
#: What an argument must mean for its numbers to be sizes.
_SIZES = (AttributeRole.SHAPE, AttributeRole.POSITION, AttributeRole.WINDOW, AttributeRole.COUNT)


@dataclass(frozen=True, order=True)
class Axis:
    """One dimension of one tensor of a call, counted from the left."""

    tensor: int
    dim: int


@dataclass(frozen=True, order=True)
class Entry:
    """One whole number among the arguments; ``position`` is None where the argument is no list."""

    argument: str
    position: int | None


@dataclass(frozen=True)
class Link:
    """Places that change together: each is ``factor`` times the link's size. ``step`` divides every size it can have.

    ``size`` is the size in the call as it is.
    """

    size: int
    axes: tuple[tuple[Axis, int], ...]
    entries: tuple[tuple[Entry, int], ...] = ()
    step: int = 1


def links(call: OpCall) -> tuple[Link, ...]:
    """The links of a call, in the order of their first axes; axes that cannot change by themselves are in none."""
    left = [TRIALS]
    found: list[Link] = []
    covered: set[Axis] = set()
    for axis in _axes(call):
        if axis in covered:
            continue
        link = _link_of(call, axis, left)
        if link is not None:
            found.append(link)
            covered.update(member for member, factor in link.axes if factor == 1)
            covered.add(axis)
    return tuple(found)


def with_sizes(call: OpCall, sizes: Mapping[Link, int], name: str) -> OpCall:
    """The call with the given links at new sizes: tensors drawn anew (seeded by ``name``), indices kept in range."""
    shapes = [list(tensor.shape) for tensor in call.tensors]
    arguments = dict(given(call))
    touched: dict[str, object] = {}
    for link, size in sizes.items():
        for axis, factor in link.axes:
            shapes[axis.tensor][axis.dim] = factor * size
        for entry, factor in link.entries:
            value = touched.get(entry.argument, arguments.get(entry.argument))
            touched[entry.argument] = _with_entry(value, entry.position, factor * size)
    fresh = tuple(
        tensor if list(tensor.shape) == shape else resized(tensor, shape, f"{name} {place}")
        for place, (tensor, shape) in enumerate(zip(call.tensors, shapes, strict=True))
    )
    grown = call.with_tensors(fresh)
    return in_range(changed(grown, touched) if touched else grown, name, call)


def in_range(call: OpCall, name: str, before: OpCall | None = None) -> OpCall:
    """The call with its index tensors inside what they index, and over all of it where that grew since ``before``."""
    meanings = tensor_meanings(call)
    if not any(meaning.role == Role.INDEX for meaning in meanings):
        return call
    old = {meaning.place: meaning.high for meaning in tensor_meanings(before)} if before is not None else {}
    tensors = list(call.tensors)
    for meaning in meanings:
        tensor = tensors[meaning.place]
        if meaning.role != Role.INDEX or meaning.high < meaning.low or not tensor.numel():
            continue
        if meaning.distinct:
            tensors[meaning.place] = _permuted(tensor, meaning.high + 1, f"{name} {meaning.place}")
            continue
        tensor = tensor.clamp(meaning.low, meaning.high)
        if meaning.high > old.get(meaning.place, meaning.high):
            tensor = _spread(tensor, meaning.high, f"{name} {meaning.place}")
        tensors[meaning.place] = tensor
    return call.with_tensors(tuple(tensors))


def _link_of(call: OpCall, axis: Axis, left: list[int]) -> Link | None:
    size = call.tensors[axis.tensor].shape[axis.dim]
    candidates = list(dict.fromkeys(_candidates(call, axis, size)))
    for step in dict.fromkeys((1, max(size, 1))):  # one more, and twice as many where that is refused
        for candidate in candidates:
            if left[0] <= 0:
                return None
            left[0] -= 1
            tried = replace(candidate, step=step)
            resized_call = with_sizes(call, {tried: candidate.size + step}, "trial")
            if accepts(resized_call) and (
                not _leaves_equal(call, axis, candidate) or not contradicts(call, resized_call)
            ):
                return tried
    return None


def _leaves_equal(call: OpCall, axis: Axis, link: Link) -> bool:
    """Whether another tensor has an axis of the same size that the link leaves as it is. Eager may take that without
    a check and read past an end, as attention does when keys and values differ in length.
    """
    members = {member.tensor for member, _ in link.axes}
    size = _size(call, axis)
    return any(other.tensor not in members and _size(call, other) == size for other in _axes(call))


def _candidates(call: OpCall, axis: Axis, size: int) -> Iterator[Link]:
    equal = [other for other in _axes(call) if other != axis and _size(call, other) == size]
    ranks = [tensor.dim() for tensor in call.tensors]
    right = [other for other in equal if ranks[other.tensor] - other.dim == ranks[axis.tensor] - axis.dim]
    left = [other for other in equal if other.dim == axis.dim]
    elsewhere = [other for other in equal if other.tensor != axis.tensor]
    sets = [[], *([other] for other in equal), right, left, elsewhere, equal]
    entries = [(entry, value) for entry, value in _entries(call) if value == size]
    for chosen in sets:
        axes = ((axis, 1), *((other, 1) for other in chosen))
        yield Link(size, tuple(axes))
        if entries:
            yield Link(size, tuple(axes), tuple((entry, 1) for entry, _ in entries))
            yield from (Link(size, tuple(axes), ((entry, 1),)) for entry, _ in entries[:4])
    if size > 1:
        yield from _proportional(call, axis, size)


def _proportional(call: OpCall, axis: Axis, size: int) -> Iterator[Link]:
    """Links in which one axis, or the entries of size arguments, are multiples of the axis."""
    multiples = [
        (other, _size(call, other) // size)
        for other in _axes(call)
        if other.tensor != axis.tensor and _size(call, other) > size and _size(call, other) % size == 0
    ]
    yield from (Link(size, ((axis, 1), pair)) for pair in multiples)
    parts = [(entry, value) for entry, value in _entries(call) if 1 < value < size and size % value == 0]
    yield from (Link(value, ((axis, size // value),), ((entry, 1),)) for entry, value in parts[:-5:-1])
    entries = [(entry, value // size) for entry, value in _entries(call) if value >= size and value % size == 0]
    yield from (Link(size, ((axis, 1),), (pair,)) for pair in entries[:6])
    if entries:
        yield Link(size, ((axis, 1),), tuple(entries))


def _axes(call: OpCall) -> list[Axis]:
    return [Axis(place, dim) for place, tensor in enumerate(call.tensors) for dim in range(tensor.dim())]


def _size(call: OpCall, axis: Axis) -> int:
    return call.tensors[axis.tensor].shape[axis.dim]


def _entries(call: OpCall) -> list[tuple[Entry, int]]:
    """The whole numbers among the arguments that can be sizes."""
    found: list[tuple[Entry, int]] = []
    for attribute in attributes(call):
        if attribute.role not in _SIZES or not attribute.given:
            continue
        if isinstance(attribute.value, int) and not isinstance(attribute.value, bool):
            found.append((Entry(attribute.name, None), attribute.value))
        for position, value in enumerate(as_ints(attribute.value) or ()):
            found.append((Entry(attribute.name, position), value))
    return found


def _with_entry(value: object, position: int | None, size: int) -> object:
    if position is None:
        return size
    entries = list(cast("list[int]", value))
    entries[position] = size
    return entries


def _permuted(index: torch.Tensor, count: int, name: str) -> torch.Tensor:
    """Distinct places along the last dimension, or along the first where that is the longer one."""
    source = generator(name)
    if index.dim() == 0:
        return index.clamp(0, max(count - 1, 0))
    keys = torch.rand((*index.shape[:-1], max(count, index.shape[-1])), generator=source)
    return keys.argsort(-1)[..., : index.shape[-1]].clamp(max=count - 1).to(index.dtype)


def _spread(index: torch.Tensor, high: int, name: str) -> torch.Tensor:
    """Every second entry moved to a place anywhere up to ``high``, the last one to ``high`` itself."""
    flat = index.reshape(-1).clone()
    drawn = torch.randint(0, high + 1, flat.shape, generator=generator(name)).to(flat.dtype)
    flat[1::2] = drawn[1::2]
    flat[-1] = high
    return flat.reshape(index.shape)
