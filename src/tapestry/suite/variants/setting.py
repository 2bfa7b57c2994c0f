"""A call whose tensors are to be filled with other values, and how they are put in place. Not here: which values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tapestry.suite.variants.call import OpCall
from tapestry.suite.variants.meaning import TensorMeaning, tensor_meanings
from tapestry.suite.variants.memory import collapsed, free_shape, laid_like
from tapestry.suite.variants.patterns import Pattern
from tapestry.suite.variants.quiet import eager_or_none
from tapestry.suite.variants.rows import is_elementwise, row_dims

#: Tensors of more bytes keep their values: a variant of them would cost more than it tells.
LARGEST = 16 << 20


@dataclass(frozen=True)
class Setting:
    """One call with the meanings of its tensors."""

    call: OpCall

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.call.tensors

    @cached_property
    def meanings(self) -> tuple[TensorMeaning, ...]:
        return tensor_meanings(self.call)

    @cached_property
    def elementwise(self) -> bool:
        return is_elementwise(self.call)

    @cached_property
    def varied(self) -> tuple[TensorMeaning, ...]:
        """The tensors that can be filled: plain memory, not empty, not too large, each object once."""
        seen: set[int] = set()
        found: list[TensorMeaning] = []
        for meaning in self.meanings:
            tensor = self.tensors[meaning.place]
            if id(tensor) in seen or not _can_be_filled(tensor):
                continue
            seen.add(id(tensor))
            found.append(meaning)
        return tuple(found)

    def count(self, place: int) -> int:
        """How many elements of a tensor can be chosen."""
        return torch.Size(free_shape(self.tensors[place])).numel()

    def filled(self, values: Mapping[int, Tensor]) -> OpCall:
        """The call with other values, of `free_shape`, at some places; an operand given twice changes at both."""
        new = {id(self.tensors[place]): laid_like(given, self.tensors[place]) for place, given in values.items()}
        return self.call.with_tensors(tuple(new.get(id(tensor), tensor) for tensor in self.tensors))

    def in_order(self, place: int, values: Tensor, start: int) -> Tensor:
        """A list of values, from ``start`` on and over again, in the order of the elements."""
        shape = free_shape(self.tensors[place])
        picks = (torch.arange(self.count(place)) + start) % values.numel()
        return _as_dtype(values[picks], self.tensors[place].dtype).reshape(shape)

    def row_shape(self, place: int) -> tuple[int, int]:
        """How many rows a tensor has, and how long they are."""
        shape = free_shape(self.tensors[place])
        length = torch.Size(shape[dim] for dim in self.dims(place)).numel()
        return self.count(place) // length, length

    def in_rows(self, place: int, patterns: tuple[Pattern, ...], start: int) -> Tensor:
        """One pattern a row, from ``start`` on and over again."""
        tensor = self.tensors[place]
        rows, length = self.row_shape(place)
        made = [patterns[(start + row) % len(patterns)] for row in range(min(rows, len(patterns)))]
        table = torch.stack([_as_dtype(pattern.make(length, tensor.dtype), tensor.dtype) for pattern in made])
        table = table[torch.arange(rows) % len(made)]
        return self._from_rows(place, table)

    def own(self, place: int) -> Tensor:
        """The elements of a tensor that can be chosen, as they are."""
        return collapsed(self.tensors[place])

    def dims(self, place: int) -> tuple[int, ...]:
        """The dimensions of a tensor that make a row."""
        return row_dims(self.call, self.meanings[place], self.tensors[place])

    def _from_rows(self, place: int, table: Tensor) -> Tensor:
        shape, dims = free_shape(self.tensors[place]), self.dims(place)
        others = [dim for dim in range(len(shape)) if dim not in dims]
        order = [*others, *dims]
        spread = table.reshape([shape[dim] for dim in order])
        return spread.permute([order.index(dim) for dim in range(len(shape))])


def tamed(setting: Setting, build: Callable[[], OpCall]) -> Callable[[], OpCall]:
    """The call with its own old values wherever the new ones give an elementwise result that is not finite."""

    def make() -> OpCall:
        changed = build()
        bad = _not_finite(changed)
        if bad is None or not bool(bad.any()):
            return changed
        kept: dict[int, Tensor] = {}
        for meaning in setting.varied:
            old, new = setting.tensors[meaning.place], changed.tensors[meaning.place]
            if new is old:
                continue
            spoiled = _where_used(bad, collapsed(old))
            kept[meaning.place] = torch.where(spoiled, collapsed(old), collapsed(new)) if spoiled is not None else new
        return setting.filled(kept)

    return make


def tamed_rows(setting: Setting, place: int, build: Callable[[], OpCall]) -> Callable[[], OpCall]:
    """The call with the old values in those rows of one tensor whose results are not finite.

    As it is where the result does not show which row it comes from.
    """

    def make() -> OpCall:
        changed = build()
        bad = _not_finite(changed)
        if bad is None or not bool(bad.any()):
            return changed
        old, new = collapsed(setting.tensors[place]), collapsed(changed.tensors[place])
        spoiled = _rows_used(bad, old, setting.dims(place))
        return changed if spoiled is None else setting.filled({place: torch.where(spoiled, old, new)})

    return make


def _rows_used(bad: Tensor, operand: Tensor, dims: tuple[int, ...]) -> Tensor | None:
    """For each row whether a bad result comes from it, with the row's dimensions as 1."""
    kept = [1 if dim in dims else size for dim, size in enumerate(operand.shape)]
    if bad.dim() == operand.dim():
        rows = bad.any(dim=dims, keepdim=True)
        if list(rows.shape) == kept:
            return rows
    elif list(bad.shape) == [size for dim, size in enumerate(operand.shape) if dim not in dims]:
        return bad.reshape(kept)
    # rows of a weight make one dimension of the result, wherever it stands
    count = torch.Size(kept).numel()
    as_long = [dim for dim, size in enumerate(bad.shape) if size == count]
    if len(as_long) != 1:
        return None
    return bad.movedim(as_long[0], 0).reshape(count, -1).any(1).reshape(kept)


def _not_finite(call: OpCall) -> Tensor | None:
    results = eager_or_none(call)
    if results is None or len(results) != 1:
        return None
    result = results[0]
    if result is None or not (result.is_floating_point() or result.is_complex()):
        return None
    # 8-bit floats can't be asked; every value of theirs is a float32
    return ~torch.isfinite(result.float() if result.dtype.itemsize == 1 else result)


def _where_used(bad: Tensor, operand: Tensor) -> Tensor | None:
    """For each element of an operand whether a bad result comes from it, by broadcasting; None where shapes differ."""
    if bad.dim() < operand.dim():
        return None
    lead = bad.dim() - operand.dim()
    reduced = bad.any(dim=tuple(range(lead))) if lead and bad.dim() else bad
    if reduced.dim() != operand.dim():
        reduced = bad.reshape(-1, *bad.shape[lead:]).any(0)
    for dim, size in enumerate(operand.shape):
        if size == 1 and reduced.shape[dim] != 1:
            reduced = reduced.any(dim, keepdim=True)
    return reduced if reduced.shape == operand.shape else None


def _as_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.is_complex and not values.is_complex():
        values = torch.complex(values.double(), values.double().roll(3))
    return values.to(dtype)


def _can_be_filled(tensor: Tensor) -> bool:
    plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_conj() and not tensor.is_neg()
    return plain and tensor.numel() > 0 and tensor.numel() * tensor.element_size() <= LARGEST
