"""Indexing, scattering, scanning and sorting in operators that every device computes alike.

TVM's own kernels for these are extern code with atomics, host loops or library calls. The formulas here read and
never write by index, so they need no atomics, are deterministic, and cannot write out of bounds. They compare every
place with every update: exact, and quadratic, so larger sizes are refused with the number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tapestry.errors import UnsupportedError

aten = torch.ops.aten

#: The most comparisons that one quadratic formula may make: some tenths of a second on one CPU core.
MOST_COMPARISONS = 1 << 28


def _affordable(comparisons: int, what: str) -> None:
    if comparisons > MOST_COMPARISONS:
        raise UnsupportedError(f"{what} takes {comparisons} comparisons here, expected at most {MOST_COMPARISONS}")


def _select(x: Tensor, dim: int, index: int) -> Tensor:
    dim = dim % x.dim()
    index = index + x.shape[dim] if index < 0 else index
    return aten.squeeze.dims(aten.slice.Tensor(x, dim, index, index + 1), [dim])


def _split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [aten.slice.Tensor(x, dim, end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _split(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    length = x.shape[dim]
    if length == 0 or size == 0:
        return [x.clone()]
    return _split_with_sizes(x, [min(size, length - start) for start in range(0, length, size)], dim)


def _unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    if not x.dim():
        return x.reshape([1])
    dim = dim % x.dim()
    starts = torch.arange(0, x.shape[dim] - size + 1, step)
    places = (starts.unsqueeze(1) + torch.arange(size)).reshape([-1])
    taken = aten.index_select.default(x, dim, places)
    windows = taken.reshape([*x.shape[:dim], starts.shape[0], size, *x.shape[dim + 1 :]])
    return windows.movedim(dim + 1, -1)


def _embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    rows = aten.index_select.default(weight, 0, indices.reshape([-1]))
    return rows.reshape([*indices.shape, weight.shape[1]])


def _places(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[list[int], Tensor]:
    """The indexed dimensions, and the flat place in them that the broadcast indices name; negative ones wrap."""
    if any(index is not None and index.dtype in {torch.bool, torch.uint8} for index in indices):
        raise UnsupportedError("indexing by a mask gives a shape that depends on values")
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    places = torch.broadcast_tensors(*[index.to(torch.int64) for index in indices if index is not None])
    flat: Tensor | None = None
    for place, dim in zip(places, dims, strict=True):
        size = x.shape[dim]
        wrapped = torch.where(place < 0, place + size, place)
        flat = wrapped if flat is None else flat * size + wrapped
    assert flat is not None, "callers handle an index without tensors"
    return dims, flat


def _to_front(x: Tensor, dims: list[int]) -> tuple[Tensor, list[int]]:
    """``x`` with ``dims`` flattened into its first dimension, and the other dimensions."""
    rest = [dim for dim in range(x.dim()) if dim not in dims]
    size = math.prod(x.shape[dim] for dim in dims)
    return x.permute([*dims, *rest]).reshape([size, *[x.shape[dim] for dim in rest]]), rest


def _result_order(dims: list[int], rank: int, total: int) -> list[int]:
    """Where advanced indexing puts the indexed dimensions: in place when they are adjacent, else in front."""
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    before = dims[0] if adjacent else 0
    return [*range(rank, rank + before), *range(rank), *range(rank + before, total)]


def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Advanced indexing as one index_select over the flattened indexed dimensions."""
    if all(index is None for index in indices):
        return x.clone()
    dims, flat = _places(x, indices)
    front, rest = _to_front(x, dims)
    taken = aten.index_select.default(front, 0, flat.reshape([-1]))
    taken = taken.reshape([*flat.shape, *[x.shape[dim] for dim in rest]])
    return taken.permute(_result_order(dims, flat.dim(), taken.dim()))


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Each place looks for its updates: the last one wins, or all are added."""
    if all(index is None for index in indices):
        return x + values if accumulate else values.expand(x.shape).clone()
    dims, flat = _places(x, indices)
    front, rest = _to_front(x, dims)
    width = [x.shape[dim] for dim in rest]
    order = _result_order(dims, flat.dim(), flat.dim() + len(rest))
    shaped = [0] * len(order)
    for place, source in enumerate(order):
        shaped[place] = [*flat.shape, *width][source]
    back = sorted(range(len(order)), key=lambda place: order[place])
    updates = values.to(x.dtype).expand(shaped).permute(back).reshape([flat.numel(), *width])
    result = _updated_rows(front, flat.reshape([-1]), updates, accumulate=accumulate)
    moved = [*dims, *rest]
    restored = result.reshape([x.shape[dim] for dim in moved])
    return restored.permute(sorted(range(len(moved)), key=lambda place: moved[place]))


def _updated_rows(rows: Tensor, places: Tensor, updates: Tensor, *, accumulate: bool) -> Tensor:
    """``rows`` [n, …] with ``updates`` [k, …] put or added at ``places`` [k]."""
    n, k = rows.shape[0], places.shape[0]
    width = math.prod(rows.shape[1:])
    _affordable(n * k * (width if accumulate else 1), "writing by index")
    meets = places.unsqueeze(0) == torch.arange(n).unsqueeze(1)
    trailing = [1] * (rows.dim() - 1)
    if accumulate:
        hits = meets.reshape([n, k, *trailing])
        return rows + torch.where(hits, updates.unsqueeze(0), 0).sum(1).to(rows.dtype)
    last = torch.where(meets, torch.arange(k), -1).amax(1)
    chosen = aten.index_select.default(updates, 0, last.clamp(min=0))
    return torch.where((last >= 0).reshape([n, *trailing]), chosen, rows)


def _scatter(x: Tensor, dim: int, index: Tensor, source: Tensor, *, add: bool) -> Tensor:
    """Scatter along ``dim``: every place looks along its line for updates; of several, the last wins or all add."""
    if not x.dim():
        return x + source.reshape([]) if add else source.reshape([]).clone()
    dim = dim % x.dim()
    n, k = x.shape[dim], index.shape[dim]
    for at, size in enumerate(index.shape):
        if at != dim:
            x_part = aten.slice.Tensor(x, at, 0, size)
            if size != x.shape[at]:
                updated = _scatter(x_part, dim, index, source, add=add)
                return aten.slice_scatter.default(x, updated, at, 0, size)
        source = aten.slice.Tensor(source, at, 0, size)
    _affordable(n * index.numel(), "scatter")
    line = index.movedim(dim, -1).unsqueeze(-2)
    meets = line == torch.arange(n).unsqueeze(1)
    if add:
        updates = source.movedim(dim, -1).unsqueeze(-2)
        return x + torch.where(meets, updates, 0).sum(-1).to(x.dtype).movedim(-1, dim)
    last = torch.where(meets, torch.arange(k), -1).amax(-1).movedim(-1, dim)
    return torch.where(last >= 0, aten.gather.default(source, dim, last.clamp(min=0)), x)


def _scatter_src(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(x, dim, index, src, add=False)


def _scatter_value(x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    return _scatter(x, dim, index, torch.full([1], value, dtype=x.dtype).expand(index.shape), add=False)


def _scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(x, dim, index, src, add=True)


def _scan(x: Tensor, dim: int, dtype: torch.dtype | None, start: int) -> tuple[Tensor, torch.dtype]:
    """For each place, the entries up to it on a new last dimension; ``start`` elsewhere. Also the result's dtype."""
    result = dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)
    length = x.shape[dim]
    _affordable(x.numel() * length, "a running sum or product")
    wide = torch.float32 if result in {torch.float16, torch.bfloat16} else result
    line = x.to(result).to(wide).movedim(dim, -1).unsqueeze(-2)
    upto = torch.arange(length).unsqueeze(0) <= torch.arange(length).unsqueeze(1)
    return torch.where(upto, line, start), result


def _cumsum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    if not x.dim():
        return x.to(dtype or (x.dtype if x.dtype.is_floating_point else torch.int64))
    entries, result = _scan(x, dim, dtype, 0)
    return entries.sum(-1, dtype=entries.dtype).to(result).movedim(-1, dim)


def _cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    if not x.dim():
        return x.to(dtype or (x.dtype if x.dtype.is_floating_point else torch.int64))
    entries, result = _scan(x, dim, dtype, 1)
    return aten.prod.dim_int(entries, -1, dtype=entries.dtype).to(result).movedim(-1, dim)


def _first(x: Tensor, best: Tensor, dim: int) -> Tensor:
    """Where along ``dim`` the best entry is: the first of equals, or of NaN. ``best`` keeps the dimension.

    TVM's argmax loses NaN and gives −1 for a line of the worst value only.
    """
    places = torch.arange(x.shape[dim]).reshape([-1 if at == dim % x.dim() else 1 for at in range(x.dim())])
    found = x == best
    if x.dtype.is_floating_point:
        found = found | torch.isnan(x)
    return torch.where(found, places, x.shape[dim] - 1).amin(dim, keepdim=True)


def _extreme(x: Tensor, dim: int, keepdim: bool, *, largest: bool) -> tuple[Tensor, Tensor]:
    if not x.dim():
        return x.clone(), torch.zeros([], dtype=torch.int64)
    best = x.amax(dim, keepdim=True) if largest else x.amin(dim, keepdim=True)
    at = _first(x, best, dim)
    return (best, at) if keepdim else (best.squeeze(dim), at.squeeze(dim))


def _max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _extreme(x, dim, keepdim, largest=True)


def _min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _extreme(x, dim, keepdim, largest=False)


def _place(x: Tensor, dim: int | None, keepdim: bool, *, largest: bool) -> Tensor:
    if dim is not None:
        return _extreme(x, dim, keepdim, largest=largest)[1]
    at = _extreme(x.reshape([-1]), 0, False, largest=largest)[1]
    return at.reshape([1] * x.dim()) if keepdim else at


def _argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _place(x, dim, keepdim, largest=True)


def _argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _place(x, dim, keepdim, largest=False)


def _ordered(x: Tensor, dim: int, descending: bool, count: int) -> tuple[Tensor, Tensor]:
    """The first ``count`` of a stable sort, and where they were: each entry counts those that come before it.

    NaN counts as the largest, as in eager.
    """
    if not x.dim():
        return x.clone(), torch.zeros([], dtype=torch.int64)
    length = x.shape[dim]
    _affordable(x.numel() * length, "sorting")
    line = x.movedim(dim, -1)
    mine, other = line.unsqueeze(-1), line.unsqueeze(-2)
    places = torch.arange(length)
    earlier = places.unsqueeze(0) < places.unsqueeze(1)
    before = other > mine if descending else other < mine
    equal = other == mine
    if x.dtype.is_floating_point:
        nan_mine, nan_other = torch.isnan(mine), torch.isnan(other)
        first, second = (nan_other, nan_mine) if descending else (nan_mine, nan_other)
        before = before | (first & ~second)
        equal = equal | (nan_mine & nan_other)
    rank = (before | (equal & earlier)).sum(-1)
    at = torch.where(rank.unsqueeze(-2) == torch.arange(count).unsqueeze(1), places, 0).amax(-1).movedim(-1, dim)
    return aten.gather.default(x, dim, at), at


def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _ordered(x, dim, descending, x.shape[dim] if x.dim() else 1)


def _sort_stable(
    x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return _sort(x, dim, descending)


def _argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return _sort(x, dim, descending)[1]


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    return _ordered(x, dim, largest, k)


def _bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """How many boundaries lie below (``right``: at or below) each value; NaN lies above all."""
    _affordable(x.numel() * boundaries.numel(), "bucketize")
    value = x.unsqueeze(-1)
    below = ~(boundaries > value) if right else ~(boundaries >= value)
    return below.sum(-1).to(torch.int32 if out_int32 else torch.int64)


#: By operator name: what replaces it.
FORMULAS: dict[str, Callable[..., object]] = {
    "select.int": _select,
    "split.Tensor": _split,
    "split_with_sizes.default": _split_with_sizes,
    "unfold.default": _unfold,
    "embedding.default": _embedding,
    "index.Tensor": _index,
    "_unsafe_index.Tensor": _index,
    "index_put.default": _index_put,
    "_unsafe_index_put.default": _index_put,
    "scatter.src": _scatter_src,
    "scatter.value": _scatter_value,
    "scatter_add.default": _scatter_add,
    "cumsum.default": _cumsum,
    "cumprod.default": _cumprod,
    "max.dim": _max_dim,
    "min.dim": _min_dim,
    "argmax.default": _argmax,
    "argmin.default": _argmin,
    "sort.default": _sort,
    "sort.stable": _sort_stable,
    "argsort.default": _argsort,
    "topk.default": _topk,
    "bucketize.Tensor": _bucketize,
}
