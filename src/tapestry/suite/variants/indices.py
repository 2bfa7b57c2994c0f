"""Values for index tensors: the ends of the legal range, repeats, other orders, negative ones where they are legal.

Not here: what the range is (meaning).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tapestry.suite.variants.meaning import TensorMeaning
from tapestry.suite.variants.memory import free_shape


def index_values(meaning: TensorMeaning, tensor: Tensor) -> Iterator[tuple[str, int, Callable[[], Tensor]]]:
    """Name, rank and values (int64, of the tensor's `free_shape`) for one index tensor, all legal.

    Nothing for an empty range. Distinct indices stay distinct along every dimension that is long enough.
    """
    shape = free_shape(tensor)
    count = torch.Size(shape).numel()
    if meaning.high < meaning.low or count == 0:
        return
    size = meaning.high + 1
    if meaning.distinct:
        yield from _permuted(tensor, size, meaning.low < 0)
        return
    places = torch.arange(count).reshape(shape)

    def top_once(values: Tensor) -> Tensor:
        # where the largest index decides a shape it must stay
        values = values.clone()
        if meaning.reaches_high:
            values.reshape(-1)[-1] = meaning.high
        return values

    yield "ends", 0, lambda: top_once(torch.where(places % 2 == 0, size - 1, 0))
    yield "last", 1, lambda: torch.full(shape, size - 1)
    yield "first", 2, lambda: top_once(torch.zeros(shape, dtype=torch.int64))
    if meaning.low < 0:
        yield "negative", 1, lambda: -1 - places % size
        yield "least", 3, lambda: torch.where(places % 2 == 0, meaning.low, -1)
    yield "reversed", 3, lambda: top_once((size - 1) - places % size)
    yield "repeated", 4, lambda: top_once((places // 2) % size)
    yield "spread", 5, lambda: top_once((places * (size - 1)) // max(count - 1, 1))


def _permuted(tensor: Tensor, size: int, negative: bool) -> Iterator[tuple[str, int, Callable[[], Tensor]]]:
    """Other orders in which no index stands twice in a line; one dimension at a time would repeat otherwise."""
    shape = free_shape(tensor)
    long = max(range(len(shape)), key=lambda dim: shape[dim]) if shape else None
    if long is None or shape[long] > size or shape != tuple(tensor.shape):
        return
    if torch.Size(shape).numel() == shape[long]:
        along = torch.arange(shape[long]).reshape([-1 if dim == long else 1 for dim in range(len(shape))])
        yield "from-last", 0, lambda: (size - 1 - along).expand(shape)
        yield "from-first", 2, lambda: along.expand(shape).clone()
        if negative:
            yield "negative", 1, lambda: (-1 - along).expand(shape)
        return
    # every line of a scatter along any dimension: the places of one entry are the same distance apart everywhere
    if len(set(tensor.reshape(-1).tolist())) <= size:
        yield "mirrored", 1, lambda: size - 1 - tensor.to(torch.int64) % size
