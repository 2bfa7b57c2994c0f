"""The call that variants of other shapes and attributes start from: the same call, made small enough to try often.

Faults of shape and attribute do not need the sizes of a real model, only those of the classes. Not here: the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tapestry.suite.variants.attributes_binding import as_ints, changed
from tapestry.suite.variants.call import OpCall
from tapestry.suite.variants.meaning import AttributeRole, attributes
from tapestry.suite.variants.shape_data import resized
from tapestry.suite.variants.shape_links import in_range
from tapestry.suite.variants.shape_trial import accepts, elements

#: A call of more elements is made smaller.
SMALL_ELEMENTS = 1 << 14
#: Sizes up to this one stay as they are: heads, groups, kernels, channels of an image.
_KEPT = 16
_SIZES = (AttributeRole.SHAPE, AttributeRole.POSITION)


def small(call: OpCall) -> OpCall:
    """The call at small sizes where eager takes it so, equal sizes staying equal; else the call itself."""
    if elements(call) <= SMALL_ELEMENTS:
        return call
    sizes = sorted({size for tensor in call.tensors for size in tensor.shape if size > _KEPT})
    for mapping in _mappings(sizes):
        try:
            tried = _mapped(call, mapping)
        except (RuntimeError, ValueError, IndexError):
            continue
        if accepts(tried):
            return tried
    return call


def _mappings(sizes: list[int]) -> Iterator[Callable[[int], int]]:
    """Sizes as distinct multiples of 8, then divided by powers of 2, then as a whole 16."""
    distinct = {size: 8 * (place + 2) for place, size in enumerate(sizes)}
    yield lambda value: distinct.get(value, value)
    yield _halved
    yield lambda value: 16 if value > _KEPT else value


def _halved(value: int) -> int:
    while value > 2 * _KEPT and value % 2 == 0:
        value //= 2
    return value


def _mapped(call: OpCall, mapping: Callable[[int], int]) -> OpCall:
    tensors = tuple(
        resized(tensor, [mapping(size) for size in tensor.shape], f"small {place}")
        for place, tensor in enumerate(call.tensors)
    )
    entries: dict[str, object] = {}
    for attribute in attributes(call):
        if attribute.role not in _SIZES or not attribute.given:
            continue
        values = as_ints(attribute.value)
        if values is not None:
            entries[attribute.name] = [mapping(value) for value in values]
        elif isinstance(attribute.value, int) and not isinstance(attribute.value, bool):
            entries[attribute.name] = mapping(attribute.value)
    return in_range(changed(call.with_tensors(tensors), entries), "small", call)
