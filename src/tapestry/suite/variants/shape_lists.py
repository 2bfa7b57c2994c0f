"""Variants of calls that take a list of tensors: one, three and many, of different sizes, with an empty one among them.

Not here: lists of indices, whose entries mean dims.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch

from tapestry.suite.variants.attributes_binding import changed, given, parameters
from tapestry.suite.variants.call import Kind, OpCall, Variant
from tapestry.suite.variants.shape_data import resized

_LIST = "List[Tensor]"
#: Sizes of the entries along the dim that is joined: none, different, many.
#: More tensors than a launch can bind on most devices.
_MANY = 33
_SIZES = ((3, 1, 5), (2, 0, 3), (0, 4), (0, 0), (7,), (1,) * 9)


def list_variants(call: OpCall) -> Iterator[Variant]:
    """Other lists for each argument that is a list of tensors."""
    values = given(call)
    for row in parameters(call.target):
        entries = values.get(row.name)
        if row.kind == _LIST and isinstance(entries, list | tuple) and entries:
            yield from _lists(call, row.name, cast("Sequence[torch.Tensor]", entries))


def _lists(call: OpCall, argument: str, entries: Sequence[torch.Tensor]) -> Iterator[Variant]:
    dim = given(call).get("dim", 0)
    first = entries[0]
    alike = [resized(first, first.shape, f"{argument} {place}") for place in range(_MANY)]
    other = [
        first if not place else resized(torch.roll(first, place, 0) if first.dim() else first, first.shape, f"{place}")
        for place in range(_MANY)
    ]
    for count in (1, 3, 9, 5):
        yield _variant(call, argument, f"{count} alike", 1, other[:count])
    yield _variant(call, argument, f"{_MANY} alike", 2, other)
    yield _variant(call, argument, "one tensor twice", 2, [alike[0], alike[0]])
    if not isinstance(dim, int) or not -first.dim() <= dim < first.dim():
        return
    for sizes in _SIZES:
        parts = [
            resized(first, [size if at == dim % first.dim() else old for at, old in enumerate(first.shape)], f"{place}")
            for place, size in enumerate(sizes)
        ]
        yield _variant(call, argument, "of " + ",".join(map(str, sizes)), 1, parts)
    yield _variant(call, argument, "with an empty 1-d one", 2, [first.new_zeros(0), *alike[:2]])
    if first.is_floating_point():
        yield _variant(call, argument, "of two dtypes", 2, [alike[0], alike[1].to(torch.float64)])
        yield _variant(call, argument, "of whole numbers and floats", 2, [(4 * alike[0]).to(torch.int32), alike[1]])


def _variant(call: OpCall, argument: str, name: str, rank: int, entries: list[torch.Tensor]) -> Variant:
    return Variant(f"shape {argument} {name}", Kind.SHAPE, rank, lambda: changed(call, {argument: entries}))
