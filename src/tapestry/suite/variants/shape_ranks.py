"""Variants of other ranks and other broadcasts: dims added and removed in front, sizes of 1, operands without dims.

Not here: sizes, dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from tapestry.suite.variants.attributes_binding import as_ints, changed
from tapestry.suite.variants.call import Kind, OpCall, Variant
from tapestry.suite.variants.meaning import AttributeRole, Role, attributes, tensor_meanings
from tapestry.suite.variants.quiet import eager_or_none
from tapestry.suite.variants.shape_data import resized
from tapestry.suite.variants.shape_links import in_range
from tapestry.suite.variants.shape_trial import TRIAL_ELEMENTS, accepts, contradicts, elements

#: One more than the six axes that copy kernels often know, and another.
_LARGEST_RANK = 8


def rank_variants(call: OpCall) -> Iterator[Variant]:
    """The call at each rank from 0 to 8 that it has, reached by one leading dim after another."""
    for direction, step in (("fewer", fewer), ("more", more)):
        current = call
        while True:
            reached = step(current)
            if reached is None:
                break
            current = reached
            rank = max((tensor.dim() for tensor in current.tensors), default=0)
            name = f"shape rank {rank} ({direction})"
            first = direction == "more" and rank == 3
            yield Variant(name, Kind.SHAPE, 0 if rank <= 2 or first else 2, lambda c=current: c)


def more(call: OpCall) -> OpCall | None:
    """The call with one more leading dim of 2, or None where eager takes none."""
    top = max((tensor.dim() for tensor in call.tensors), default=0)
    if not call.tensors or top >= _LARGEST_RANK or 2 * elements(call) > TRIAL_ELEMENTS:
        return None
    return _stepped(call, _with_leading, 1)


def fewer(call: OpCall) -> OpCall | None:
    """The call with one leading dim less, or None where eager takes none."""
    if not any(tensor.dim() for tensor in call.tensors):
        return None
    return _stepped(call, _without_leading, -1)


def _leaves_a_parameter(call: OpCall, tried: OpCall) -> bool:
    """Whether the last number of a parameter is read no more, because it has more of them than there are channels.

    Eager's batch norm lets that pass.
    """
    return any(
        tried.tensors[meaning.place] is call.tensors[meaning.place]
        and _reads_the_last(call, meaning.place)
        and not _reads_the_last(tried, meaning.place)
        for meaning in tensor_meanings(call)
        if meaning.role in _PARAMETERS and call.tensors[meaning.place].dim() == 1
    )


def _reads_the_last(call: OpCall, place: int) -> bool:
    tensors = list(call.tensors)
    if not tensors[place].numel():
        return False
    tensors[place] = tensors[place].clone()
    last = tensors[place][-1]
    tensors[place][-1] = ~last if last.dtype == torch.bool else last + 1
    before, after = eager_or_none(call), eager_or_none(call.with_tensors(tuple(tensors)))
    if before is None or after is None:
        return False
    return any(
        one is not None and other is not None and not torch.equal(one.nan_to_num(), other.nan_to_num())
        for one, other in zip(before, after, strict=True)
    )


def broadcast_variants(call: OpCall) -> Iterator[Variant]:
    """Each operand smaller than the others: a size of 1 in each dim, without leading dims, without any; both at once.

    Only what eager takes.
    """
    proper = [place for place, tensor in enumerate(call.tensors) if tensor.dim()]
    if len(call.tensors) < 2:
        return
    for name, rank, shapes in (*_outers(call, proper), *(row for place in proper for row in _smaller(call, place))):
        tried = _reshaped(call, shapes, name)
        if tried is None or not accepts(tried) or contradicts(call, tried):
            continue
        if not _reads_past_an_end(call, tried) and not _leaves_a_parameter(call, tried):
            yield Variant(name, Kind.SHAPE, rank, lambda t=tried: t)


#: Tensors that stand beside data, one number for each of its channels.
_PARAMETERS = frozenset({Role.WEIGHT, Role.BIAS, Role.MEAN, Role.VARIANCE})
_Reshape = tuple[str, int, dict[int, list[int]]]


def _reads_past_an_end(call: OpCall, tried: OpCall) -> bool:
    """Whether a parameter without its dim gives something else than the same number in every place.

    Eager's batch norm takes a weight without dims unchecked, and reads what lies behind it in memory.
    """
    wide = list(tried.tensors)
    for meaning in tensor_meanings(call):
        own, new = call.tensors[meaning.place], tried.tensors[meaning.place]
        if meaning.role in _PARAMETERS and own.dim() == 1 and new.numel() == 1 < own.numel():
            wide[meaning.place] = new.reshape(1).expand(own.shape).contiguous()
    if all(left is right for left, right in zip(wide, tried.tensors, strict=True)):
        return False
    narrow, spread = eager_or_none(tried), eager_or_none(tried.with_tensors(tuple(wide)))
    if narrow is None or spread is None:
        return True
    pairs = [(one, other) for one, other in zip(narrow, spread, strict=True) if one is not None and other is not None]
    if any(one.shape != other.shape for one, other in pairs):
        return False  # the parameter's size is part of the result's: nothing to compare with
    return not all(torch.allclose(one, other, equal_nan=True) for one, other in pairs)


def _outers(call: OpCall, proper: list[int]) -> Iterator[_Reshape]:
    """(n, 1) beside (1, m), and the other way; nothing but tensors without dims."""
    if len(proper) < 2:
        return
    yield "shape every tensor 0-d", 1, {place: [] for place in proper}
    if min(call.tensors[place].dim() for place in proper[:2]) < 2:
        return
    for dims in ((-1, -2), (-2, -1)):
        shapes = {place: list(call.tensors[place].shape) for place in proper[:2]}
        for place, dim in zip(proper[:2], dims, strict=True):
            shapes[place][dim] = 1
        yield f"shape outer {-dims[0]}", 1, shapes


def _smaller(call: OpCall, place: int) -> Iterator[_Reshape]:
    tensor = call.tensors[place]
    sizes = list(tensor.shape)
    yield f"shape {place} 0-d", 0, {place: []}
    for dim, size in enumerate(sizes):
        if size != 1:
            yield f"shape {place} dim {dim} of 1 only", 1, {place: [*sizes[:dim], 1, *sizes[dim + 1 :]]}
    if len(sizes) >= 2:
        yield f"shape {place} last dim only", 0, {place: sizes[-1:]}
        yield f"shape {place} without its last dim", 1, {place: sizes[:-1]}
        yield f"shape {place} next to last dim only", 2, {place: sizes[-2:-1]}
        yield f"shape {place} all 1", 2, {place: [1] * len(sizes)}
    yield f"shape {place} with a dim more", 2, {place: [2, *sizes]}


def _reshaped(call: OpCall, shapes: dict[int, list[int]], name: str) -> OpCall | None:
    fresh = tuple(
        resized(tensor, shapes[place], f"{name} {place}") if place in shapes else tensor
        for place, tensor in enumerate(call.tensors)
    )
    try:
        return in_range(call.with_tensors(fresh), name, call)
    except (RuntimeError, IndexError):
        return None


def _stepped(call: OpCall, reshape: Callable[[torch.Tensor, int], torch.Tensor], by: int) -> OpCall | None:
    """One leading dim more or less, in the tensors and in the arguments about dims, the first way that eager takes."""
    top = max(tensor.dim() for tensor in call.tensors)
    sets = [
        [place for place, tensor in enumerate(call.tensors) if tensor.dim()] if by < 0 else range(len(call.tensors)),
        [place for place, tensor in enumerate(call.tensors) if tensor.dim() == top],
        [0],
    ]
    for places in dict.fromkeys(tuple(chosen) for chosen in sets):
        tensors = tuple(
            reshape(tensor, place) if place in places and (by > 0 or tensor.dim()) else tensor
            for place, tensor in enumerate(call.tensors)
        )
        if all(new.dim() == old.dim() for new, old in zip(tensors, call.tensors, strict=True)):
            continue
        for entries in _shifted(call, by):
            try:
                tried = in_range(changed(call.with_tensors(tensors), entries), f"rank {top + by}", call)
            except (RuntimeError, IndexError, ValueError):
                continue
            if accepts(tried) and (len(places) == len(tensors) or not contradicts(call, tried)):
                return tried
    return None


def _shifted(call: OpCall, by: int) -> Iterator[dict[str, object]]:
    """The arguments about dims moved by the new leading dim, with shapes that it leads, or left as they are."""
    dims: dict[str, object] = {}
    shapes: dict[str, object] = {}
    for attribute in attributes(call):
        values = as_ints(attribute.value)
        if attribute.role == AttributeRole.DIM and isinstance(attribute.value, int):
            dims[attribute.name] = attribute.value + by if attribute.value >= 0 else attribute.value
        elif attribute.role == AttributeRole.DIMS and values is not None:
            moved = [value + by if value >= 0 else value for value in values]
            dims[attribute.name] = (
                [0, *moved] if attribute.name == "dims" and _permutes(call, values) and by > 0 else moved
            )
        elif attribute.role == AttributeRole.SHAPE and values and attribute.given:
            shapes[attribute.name] = [2, *values] if by > 0 else values[1:]
    dims = {name: value for name, value in dims.items() if _given(call, name)}
    yield from ({**dims, **shapes}, dims, shapes, {})


def _given(call: OpCall, name: str) -> bool:
    return any(attribute.name == name and attribute.given for attribute in attributes(call))


def _permutes(call: OpCall, dims: list[int]) -> bool:
    return len(dims) == call.tensors[0].dim() and "permute" in str(call.target)


def _with_leading(tensor: torch.Tensor, place: int) -> torch.Tensor:
    return resized(tensor, (2, *tensor.shape), f"more {place} {tensor.dim()}")


def _without_leading(tensor: torch.Tensor, place: int) -> torch.Tensor:
    return tensor[0].clone() if tensor.shape[0] else tensor.new_zeros(tensor.shape[1:])
