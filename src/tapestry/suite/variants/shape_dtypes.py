"""Variants of other dtypes: the whole call in each, and operands of two dtypes beside each other.

Not here: dtype arguments, values at the ends of a dtype's range.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tapestry.suite.variants.attributes_binding import changed, given, parameters
from tapestry.suite.variants.call import Kind, OpCall, Variant
from tapestry.suite.variants.meaning import Role, tensor_meanings
from tapestry.suite.variants.shape_data import cast_like, resized
from tapestry.suite.variants.shape_trial import accepts

#: Those in which most goes wrong first.
_DTYPES = (
    torch.float16,
    torch.int32,
    torch.bfloat16,
    torch.uint8,
    torch.int64,
    torch.bool,
    torch.float64,
    torch.int8,
    torch.float32,
    torch.int16,
)
#: Dtypes of the first and the second operand.
_PAIRS = (
    (torch.int64, torch.float32),
    (torch.float32, torch.int64),
    (torch.float16, torch.float32),
    (torch.int32, torch.int64),
    (torch.uint8, torch.int8),
    (torch.bool, torch.float32),
    (torch.int64, torch.float16),
    (torch.float32, torch.float64),
    (torch.bfloat16, torch.float16),
    (torch.bool, torch.uint8),
)
_NOT_DATA = (Role.INDEX, Role.MASK, Role.LENGTHS, Role.FIXED)


def dtype_variants(call: OpCall) -> Iterator[Variant]:
    """The call in other dtypes: those of its data that eager takes."""
    places = data_places(call)
    if not places:
        return
    own = call.tensors[places[0]].dtype
    for order, dtype in enumerate(_DTYPES):
        if dtype != own and in_dtype(call, dtype) is not None:
            rank = 1 if order < 4 else 2
            yield Variant(f"dtype {name_of(dtype)}", Kind.SHAPE, rank, lambda d=dtype: _taken(call, d))
    if len(places) > 1:
        yield from _mixed(call, places)
    yield from _scalars(call, places)


def in_dtype(call: OpCall, dtype: torch.dtype) -> OpCall | None:
    """The call with its data in another dtype (all of it, or only the first tensor), or None where eager refuses."""
    places = data_places(call)
    for chosen in dict.fromkeys((tuple(places), tuple(places[:1]))):
        tried = _cast(call, dict.fromkeys(chosen, dtype))
        if accepts(tried):
            return tried
    return None


def data_places(call: OpCall) -> list[int]:
    """The tensors that hold data of the same kind as the first of them: floating, or whole numbers and bool."""
    places = [meaning.place for meaning in tensor_meanings(call) if meaning.role not in _NOT_DATA]
    floating = [place for place in places if call.tensors[place].is_floating_point()]
    return floating or places


def name_of(dtype: torch.dtype) -> str:
    """``float16`` for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


def _taken(call: OpCall, dtype: torch.dtype) -> OpCall:
    taken = in_dtype(call, dtype)
    if taken is None:
        raise RuntimeError(f"{call.target} refuses {dtype}")
    return taken


def _cast(call: OpCall, dtypes: dict[int, torch.dtype]) -> OpCall:
    tensors = enumerate(call.tensors)
    return call.with_tensors(tuple(cast_like(x, dtypes[place]) if place in dtypes else x for place, x in tensors))


def _mixed(call: OpCall, places: list[int]) -> Iterator[Variant]:
    """Two dtypes in one call: where eager takes the first pair or refuses two whole families, it goes on or stops."""
    first, *rest = places
    for order, (one, other) in enumerate(_PAIRS):
        if order == 3 and not any(accepts(_cast(call, {first: a, **dict.fromkeys(rest, b)})) for a, b in _PAIRS[:3]):
            return
        name = f"dtype {name_of(one)} and {name_of(other)}"
        dtypes = {first: one, **dict.fromkeys(rest, other)}
        if accepts(_cast(call, dtypes)):
            yield Variant(name, Kind.SHAPE, 2, lambda d=dtypes: _cast(call, d))
    for other in (torch.float64, torch.int64):
        # a tensor without dims does not widen one with dims of its own category
        tensors = tuple(
            cast_like(resized(x, (), f"{place}"), other) if place in rest else x for place, x in enumerate(call.tensors)
        )
        yield Variant(f"dtype 0-d {name_of(other)} operand", Kind.SHAPE, 2, lambda t=tensors: call.with_tensors(t))


def _scalars(call: OpCall, places: list[int]) -> Iterator[Variant]:
    """Whole numbers with a fraction beside them, in each argument that takes a number; numbers in place of tensors."""
    numbers = [row for row in parameters(call.target) if row.kind == "number"]
    for row in numbers:
        for dtype, number in ((torch.int32, 2.5), (torch.int64, 3), (torch.bool, 2), (torch.float16, 3)):
            whole = in_dtype(call, dtype)
            if whole is None:
                continue
            tried = changed(whole, {row.name: number})
            if accepts(tried):
                name = f"dtype {name_of(dtype)} with {row.name}={number}"
                yield Variant(name, Kind.SHAPE, 2, lambda t=tried: t)
    operands = [name for name, value in given(call).items() if isinstance(value, torch.Tensor)][1:]
    for operand in operands if len(places) > 1 else ():
        for number in (2.5, 3, -1):
            tried = changed(call, {operand: number})
            if accepts(tried):
                yield Variant(f"shape {operand}={number} as a number", Kind.SHAPE, 3, lambda t=tried: t)
