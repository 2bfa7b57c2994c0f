"""Variants of the same values in another layout: gaps, offsets, other orders of dimensions, expanded dimensions.

Gaps hold what would show if it were read: NaN, or numbers that stand nowhere in the tensor. Not here: other values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tapestry.suite.variants.call import Kind, OpCall, Variant
from tapestry.suite.variants.meaning import Role, TensorMeaning, tensor_meanings
from tapestry.suite.variants.memory import extent, laid_out
from tapestry.suite.variants.setting import LARGEST

#: Odd, so that vector loads of two or four elements are not aligned.
_OFFSET, _MARGIN = 3, 3
#: Tensors of a list argument that are laid out by themselves.
_ENTRIES = 2


@dataclass(frozen=True)
class Layout:
    """Strides and offset in elements."""

    stride: tuple[int, ...]
    offset: int = 0


def layout_variants(call: OpCall) -> Iterator[Variant]:
    """All layout variants of a call: each tensor in turn, and all of them together. Nothing is built here."""
    tensors = call.tensors
    held = [meaning for meaning in _each_once(call) if _can_be_laid_out(tensors[meaning.place])]
    for rank, (word, layout) in enumerate(_LAYOUTS):
        fitting = [(meaning, plan) for meaning in held if (plan := layout(tensors[meaning.place])) is not None]
        for order, (meaning, plan) in enumerate(fitting):
            if meaning.entry is not None and meaning.entry >= _ENTRIES:
                continue
            name = meaning.argument if meaning.entry is None else f"{meaning.argument}[{meaning.entry}]"
            build = _laid(call, {meaning.place: plan}, held)
            yield Variant(f"layout:{name}:{word}", Kind.LAYOUT, 2 * rank + 3 * min(order, 4), build)
        if len(fitting) > 1:
            build = _laid(call, {meaning.place: plan for meaning, plan in fitting}, held)
            yield Variant(f"layout:together:{word}", Kind.LAYOUT, 2 * rank + 2, build)


def _each_once(call: OpCall) -> Iterator[TensorMeaning]:
    seen: set[int] = set()
    for meaning, tensor in zip(tensor_meanings(call), call.tensors, strict=True):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield meaning


def _can_be_laid_out(tensor: Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return False
    return tensor.numel() * tensor.element_size() <= LARGEST


def _laid(call: OpCall, plans: Mapping[int, Layout], held: Sequence[TensorMeaning]) -> Callable[[], OpCall]:
    def build() -> OpCall:
        tensors = call.tensors
        new: dict[int, Tensor] = {}
        for meaning in held:
            plan = plans.get(meaning.place)
            if plan is not None:
                tensor = tensors[meaning.place]
                new[id(tensor)] = _copied(tensor, plan, _filler(tensor, meaning))
        return call.with_tensors(tuple(new.get(id(tensor), tensor) for tensor in tensors))

    return build


def _copied(tensor: Tensor, plan: Layout, filler: Tensor) -> Tensor:
    shape = tuple(tensor.shape)
    laid = laid_out(tensor, shape, plan.stride, plan.offset, tensor.dtype, filler)
    # room behind the last element, too: a reader in storage order meets the filler, not the end of memory
    room = torch.cat([laid.as_strided((plan.offset + extent(shape, plan.stride),), (1,), 0), filler.expand(_MARGIN)])
    return room.as_strided(shape, plan.stride, plan.offset)


def _filler(tensor: Tensor, meaning: TensorMeaning) -> Tensor:
    dtype = tensor.dtype
    if dtype.is_floating_point or dtype.is_complex:
        return torch.full((1,), torch.nan, dtype=dtype)
    if dtype == torch.bool:
        return ~tensor.reshape(-1)[:1] if tensor.numel() else torch.ones(1, dtype=dtype)
    if meaning.role == Role.INDEX:  # wrong, but inside: nobody reads memory that isn't there
        first = int(tensor.reshape(-1)[0]) if tensor.numel() else 0
        return torch.tensor([meaning.high if first != meaning.high else max(meaning.low, 0)]).to(dtype)
    return torch.tensor([min(torch.iinfo(dtype).max, 2**62) // 3 + 1]).to(dtype)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def _in_order(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of dense memory whose dimensions lie in this order, outermost first."""
    inner = _contiguous([shape[dim] for dim in order])
    return tuple(inner[order.index(dim)] for dim in range(len(shape)))


def _dense(tensor: Tensor) -> Layout | None:
    return None if tensor.is_contiguous() else Layout(_contiguous(tensor.shape))


def _wide_rows(tensor: Tensor) -> Layout | None:
    """Columns cut out of a wider tensor: rows are dense, with gaps between them."""
    if tensor.dim() < 2:
        return None
    return Layout(_contiguous([*tensor.shape[:-1], tensor.shape[-1] + _MARGIN]), 1)


def _every_second_row(tensor: Tensor) -> Layout | None:
    if tensor.dim() < 2:
        return None
    first, *rest = _contiguous(tensor.shape)
    return Layout((2 * first, *rest))


def _every_second_column(tensor: Tensor) -> Layout | None:
    if tensor.dim() == 0:
        return None
    return Layout(tuple(2 * step for step in _contiguous(tensor.shape)))


def _offset(tensor: Tensor) -> Layout:
    return Layout(_contiguous(tensor.shape), _OFFSET)


def _transposed(tensor: Tensor) -> Layout | None:
    rank = tensor.dim()
    if rank < 2 or 1 in tensor.shape[-2:]:
        return None
    return Layout(_in_order(tensor.shape, [*range(rank - 2), rank - 1, rank - 2]))


def _reversed(tensor: Tensor) -> Layout | None:
    if tensor.dim() < 3:
        return None
    return Layout(_in_order(tensor.shape, list(range(tensor.dim()))[::-1]))


def _outer_swapped(tensor: Tensor) -> Layout | None:
    """The last dimension dense, the two before it swapped: heads of attention."""
    rank = tensor.dim()
    if rank < 3:
        return None
    return Layout(_in_order(tensor.shape, [*range(rank - 3), rank - 2, rank - 3, rank - 1]))


def _channels_last(tensor: Tensor) -> Layout | None:
    rank = tensor.dim()
    if rank not in (4, 5):
        return None
    return Layout(_in_order(tensor.shape, [0, *range(2, rank), 1]))


def _expanded(dim: int) -> Callable[[Tensor], Layout | None]:
    """One dimension repeats its first entry."""

    def layout(tensor: Tensor) -> Layout | None:
        rank = tensor.dim()
        if rank < (1 if dim == 0 else 2) or tensor.shape[dim] < 2:
            return None
        place = dim % rank
        stride = _contiguous([1 if at == place else size for at, size in enumerate(tensor.shape)])
        return Layout(tuple(0 if at == place else step for at, step in enumerate(stride)))

    return layout


def _scalar_expanded(tensor: Tensor) -> Layout | None:
    """One element seen as a whole tensor."""
    return Layout((0,) * tensor.dim()) if tensor.dim() > 1 and tensor.numel() > 1 else None


def _odd_units(tensor: Tensor) -> Layout | None:
    """Strides of dimensions of size 1 mean nothing and can be anything."""
    if 1 not in tensor.shape:
        return None
    dense = _contiguous(tensor.shape)
    return Layout(tuple(7 if size == 1 else step for size, step in zip(tensor.shape, dense, strict=True)))


_LAYOUTS: tuple[tuple[str, Callable[[Tensor], Layout | None]], ...] = (
    ("transposed", _transposed),
    ("every-second-row", _every_second_row),
    ("expanded-first", _expanded(0)),
    ("every-second-column", _every_second_column),
    ("offset", _offset),
    ("channels-last", _channels_last),
    ("wide-rows", _wide_rows),
    ("expanded-last", _expanded(-1)),
    ("reversed", _reversed),
    ("outer-swapped", _outer_swapped),
    ("dense", _dense),
    ("one-element", _scalar_expanded),
    ("odd-units", _odd_units),
)
