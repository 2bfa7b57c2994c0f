"""Other dims for arguments that name dims: each, from the end, several, in another order, all, none.

Not here: the other arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from tapestry.suite.variants.attributes_binding import Parameter, as_ints, main_tensor
from tapestry.suite.variants.call import OpCall

#: Arguments that name every dim of the tensor once.
_ALL_DIMS = frozenset({"permute", "permute_copy"})


def dim_values(call: OpCall, row: Parameter, value: object) -> Iterator[object]:
    """One dim: the first, the second, the last by either name, a middle one, None where it may be."""
    rank = _rank(call)
    now = value if isinstance(value, int) else None
    chosen = [0, -2, 1, -1, -rank, rank - 1, *range(2, rank)]
    if now is not None and rank:
        chosen.insert(1, now - rank if now >= 0 else now + rank)
    legal = [dim for dim in dict.fromkeys(chosen) if dim != now and -max(rank, 1) <= dim < max(rank, 1)]
    if (row.name in ("dim", "dim1", "axis") and "unsqueeze" in str(call.target)) or "stack" in str(call.target):
        legal += [rank, -rank - 1]  # the operator adds a dim
    if row.optional and value is not None:
        legal.insert(2, None)  # pyright: ignore
    yield from legal


def dims_values(call: OpCall, row: Parameter, value: object) -> Iterator[object]:
    """Several dims: all, in another order, mixed signs, one, none."""
    rank = _rank(call)
    operator = str(call.target).split(".")[1]
    if operator in _ALL_DIMS:
        yield from _orders(rank)
        return
    now = as_ints(value)
    several: list[list[int]] = []
    if rank >= 2:
        several += [[0, 1], [-1, 0], [-1, -2], list(range(rank))]
    if rank >= 3:
        several += [[0, 2], [1, -1], [2, 0, 1]]
    single = [[0], [-1], [-2], [1]] if rank >= 2 else [[0], [-1]]
    # as many as beside it, where another list has one entry each
    fixed = len(now) if now is not None and operator in ("roll", "movedim", "moveaxis", "tensordot") else None
    mixed = [entry for pair in zip(several, single, strict=False) for entry in pair]
    mixed += several[len(single) :] + single[len(several) :]
    for dims in mixed:
        if dims != now and (fixed is None or len(dims) == fixed):
            yield dims
    if row.optional and value is not None:
        yield None
    if fixed is None:
        yield []


def _rank(call: OpCall) -> int:
    tensor = main_tensor(call)
    return tensor.dim() if tensor is not None else 0


def _orders(rank: int) -> Iterator[list[int]]:
    """Orders of all dims: reversed, turned either way, with names from the end, then the others."""
    dims = list(range(rank))
    first = [dims[::-1], dims[1:] + dims[:1], dims[-1:] + dims[:-1], [dim - rank for dim in dims[::-1]]]
    seen: list[list[int]] = []
    for order in (*first, *(list(order) for order in list(permutations(dims))[:12])):
        if order not in seen:
            seen.append(order)
            yield order
