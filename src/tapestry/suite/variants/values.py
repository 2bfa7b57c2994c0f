"""Variants of other values: same shapes, dtypes, strides and attributes, chosen by what each tensor means.

Elements that are computed each for itself get lists of telling values (elements); where elements act together, rows
get patterns (patterns). One tensor changes at a time, and several together where they meet. Not here: other layouts,
shapes or attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor

from tapestry.suite.variants import elements, masks, patterns
from tapestry.suite.variants.call import Kind, OpCall, Variant
from tapestry.suite.variants.elements import Group
from tapestry.suite.variants.indices import index_values
from tapestry.suite.variants.joint import joint_variants
from tapestry.suite.variants.meaning import Role, TensorMeaning
from tapestry.suite.variants.patterns import Pattern
from tapestry.suite.variants.setting import Setting, tamed, tamed_rows

#: Added to the rank of a tensor's variants for each tensor before it, and for one that never changes in the program.
_LATER, _CONSTANT = 1, 12
#: Between the parts of one list, and between one list without and with values that overflow the result.
_PART, _BEYOND = 5, 7
#: In a list argument the first tensors are varied by themselves, the others only together.
_ENTRIES = 2
#: Patterns that fill a whole tensor, too: conditions on all rows at once show only there. For the first tensor of a
#: call, and for a later one.
_WHOLE, _WHOLE_LATER = 10, 3
#: Powers of two by which a whole tensor is scaled: its structure stays, its squares and sums leave 16 bits.
_SCALES = (("scaled-up", 2.0**10), ("scaled-down", 2.0**-12))
#: Lists for a small parameter beside rows.
_BRIEF = frozenset({"saturated", "sweep", "near-zero", "extremes", "wide"})
_NONFINITE = (math.nan, math.inf, -math.inf)


def value_variants(call: OpCall) -> Iterator[Variant]:
    """All value variants of a call, the kinds ``VALUES`` and ``NONFINITE``, unordered. Nothing is built here."""
    setting = Setting(call)
    for order, meaning in enumerate(setting.varied):
        if meaning.entry is not None and meaning.entry >= _ENTRIES and meaning.role != Role.INDEX:
            continue
        shift = _LATER * min(order, 6) + (_CONSTANT if meaning.constant else 0)
        for variant in _of_tensor(setting, meaning):
            yield Variant(variant.name, variant.kind, variant.rank + shift, variant.build)
    yield from joint_variants(setting)


def _of_tensor(setting: Setting, meaning: TensorMeaning) -> Iterator[Variant]:
    dtype = setting.tensors[meaning.place].dtype
    role = meaning.role
    if role in (Role.LENGTHS, Role.FIXED):
        return
    if role == Role.INDEX:
        yield from _indices(setting, meaning)
    elif role in _LISTS and dtype.is_floating_point:
        yield from _chosen(setting, meaning, _LISTS[role](dtype))
        yield from _nonfinite_elements(setting, meaning)
    elif role == Role.SORTED:
        yield from _sorted(setting, meaning)
    elif role == Role.ADDED_MASK and dtype.is_floating_point:
        yield from _rows(setting, meaning, (*patterns.added_masks(), *masks.added_blocks(_length(setting, meaning))))
    elif dtype == torch.bool:
        together = role == Role.MASK and not setting.elementwise
        blocks = masks.kept_blocks(_length(setting, meaning)) if together else ()
        yield from _rows(setting, meaning, (*patterns.patterns(dtype), *blocks))
    elif setting.elementwise:
        yield from _elements(setting, meaning, frozenset())
    elif role in (Role.WEIGHT, Role.BIAS, Role.MEAN) and setting.tensors[meaning.place].dim() <= 1:
        yield from _elements(setting, meaning, _BRIEF)
    else:
        yield from _rows(setting, meaning, patterns.patterns(dtype))
        if dtype.is_floating_point or dtype.is_complex:
            yield from _scaled(setting, meaning)


def _length(setting: Setting, meaning: TensorMeaning) -> int:
    return setting.row_shape(meaning.place)[1]


def _scaled(setting: Setting, meaning: TensorMeaning) -> Iterator[Variant]:
    place = meaning.place
    for rank, (word, scale) in enumerate(_SCALES):

        def build(scale: float = scale) -> OpCall:
            return setting.filled({place: setting.own(place) * scale})

        yield Variant(_name(meaning, word), Kind.VALUES, 7 + 3 * rank, build)


def _name(meaning: TensorMeaning, what: str) -> str:
    entry = "" if meaning.entry is None else f"[{meaning.entry}]"
    return f"values:{meaning.argument}{entry}:{what}"


def _elements(setting: Setting, meaning: TensorMeaning, only: frozenset[str]) -> Iterator[Variant]:
    dtype = setting.tensors[meaning.place].dtype
    if dtype.is_floating_point or dtype.is_complex:
        real = dtype.to_real()
        groups = elements.float_groups(real)
    else:
        alone = sum(not tensor.is_floating_point() for tensor in setting.tensors) == 1
        groups = elements.integer_groups(dtype, alone)
    yield from _chosen(setting, meaning, tuple(group for group in groups if not only or group.name in only))
    if dtype.is_floating_point or dtype.is_complex:
        yield from _nonfinite_elements(setting, meaning)


def _chosen(setting: Setting, meaning: TensorMeaning, groups: tuple[Group, ...]) -> Iterator[Variant]:
    place = meaning.place
    count = setting.count(place)
    for group in groups:
        parts = min(group.limit, math.ceil(group.values.numel() / count))
        for part in range(parts):
            build = _listed(setting, place, group.values, part * count)
            name = _name(meaning, group.name if parts == 1 else f"{group.name}.{part}")
            rank = group.rank * 2 + _PART * part
            yield Variant(name, Kind.VALUES, rank, tamed(setting, build))
            yield Variant(f"{name}+", Kind.VALUES, rank + _BEYOND, build)


def _listed(setting: Setting, place: int, values: Tensor, start: int) -> Callable[[], OpCall]:
    return lambda: setting.filled({place: setting.in_order(place, values, start)})


def _nonfinite_elements(setting: Setting, meaning: TensorMeaning) -> Iterator[Variant]:
    """One NaN, one infinity of each sign, and all of them at every second element."""
    place = meaning.place

    def single(value: float) -> OpCall:
        own = setting.own(place).clone()
        own.reshape(-1)[0] = value
        return setting.filled({place: own})

    def many() -> OpCall:
        own = setting.own(place)
        special = setting.in_order(place, torch.tensor(_NONFINITE, dtype=torch.float64), 0)
        every_second = (torch.arange(own.numel()) // 2 * 2 % 4 == 0).reshape(own.shape)
        return setting.filled({place: torch.where(every_second, special, own)})

    for rank, (word, value) in enumerate(zip(("nan", "infinity", "lowest"), _NONFINITE, strict=True)):
        yield Variant(_name(meaning, word), Kind.NONFINITE, 3 * rank, lambda value=value: single(value))
    if setting.count(place) > 1:
        yield Variant(_name(meaning, "nonfinite"), Kind.NONFINITE, 1, many)


def _rows(
    setting: Setting, meaning: TensorMeaning, sets: tuple[tuple[str, int, tuple[Pattern, ...]], ...]
) -> Iterator[Variant]:
    place = meaning.place
    rows, _ = setting.row_shape(place)
    for word, rank, held in sets:
        kind = Kind.NONFINITE if word.startswith("nonfinite") else Kind.VALUES
        parts = math.ceil(len(held) / rows)
        for part in range(parts):
            what = held[part].name if rows == 1 else word if parts == 1 else f"{word}.{part}"
            if rows == 1 and word != "rows":
                what = f"{word}.{what}"
            build = _patterned(setting, place, held, part * rows)
            if kind == Kind.NONFINITE or rows == 1:
                yield Variant(_name(meaning, what), kind, rank + part, build)
                continue
            yield Variant(_name(meaning, what), kind, rank + part, tamed_rows(setting, place, build))
            yield Variant(_name(meaning, f"{what}+"), kind, rank + part + _BEYOND, build)
        most = _WHOLE if place == setting.varied[0].place else _WHOLE_LATER
        for position, pattern in enumerate(held[:most] if rows > 1 else ()):
            what = f"all-{pattern.name}" if word == "rows" else f"all-{word}.{pattern.name}"
            build = _patterned(setting, place, (pattern,), 0)
            yield Variant(_name(meaning, what), kind, rank + 4 + 2 * position, build)


def _patterned(setting: Setting, place: int, held: tuple[Pattern, ...], start: int) -> Callable[[], OpCall]:
    return lambda: setting.filled({place: setting.in_rows(place, held, start)})


def _indices(setting: Setting, meaning: TensorMeaning) -> Iterator[Variant]:
    for what, rank, values in index_values(meaning, setting.tensors[meaning.place]):

        def build(values: Callable[[], Tensor] = values) -> OpCall:
            return setting.filled({meaning.place: values()})

        yield Variant(_name(meaning, what), Kind.VALUES, rank, build)


def _sorted(setting: Setting, meaning: TensorMeaning) -> Iterator[Variant]:
    """Ascending rows: with ties, with wide steps, all equal, and at the ends of the format."""
    place = meaning.place
    dtype = setting.tensors[place].dtype
    for other in setting.varied:
        if other.role == Role.DATA:
            met = _listed(setting, other.place, setting.own(place).reshape(-1), 0)
            yield Variant(_name(other, f"met-in-{meaning.argument}"), Kind.VALUES, 0, met)
    if dtype == torch.bool:
        return
    _, length = setting.row_shape(place)
    ends = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    ramp = torch.arange(length, dtype=torch.float64)
    rows = {
        "ties": (ramp / 2).floor(),
        "equal": torch.ones(length, dtype=torch.float64),
        "wide": (ramp - length / 2) ** 3,
        "ends": torch.where(ramp < length / 2, float(ends.min) / 2, float(ends.max) / 2),
    }
    for rank, (word, row) in enumerate(rows.items()):
        pattern = Pattern(word, lambda size, dtype, row=row: row)
        yield Variant(_name(meaning, word), Kind.VALUES, 2 * rank, _patterned(setting, place, (pattern,), 0))


def _listing(name: str, values: tuple[float, ...]) -> Callable[[torch.dtype], tuple[Group, ...]]:
    @cache
    def groups(dtype: torch.dtype) -> tuple[Group, ...]:
        exact = torch.tensor(values, dtype=torch.float64).to(dtype).double()
        return (Group(name, 0, exact[torch.isfinite(exact)], 4),)

    return groups


_LISTS: dict[Role, Callable[[torch.dtype], tuple[Group, ...]]] = {
    Role.VARIANCE: _listing("variances", (0.0, 1e8, 1e-12, 1.0, 6e4, 1e-5, 1e-38, 1e30, 256.0, 1e-3, 3e-6, 1e-45)),
    Role.PROBABILITY: _listing(
        "probabilities", (0.0, 1.0, 0.5, 1e-7, 1 - 2**-24, 1e-20, 0.999, 1e-3, 1e-38, 1e-45, 0.25)
    ),
}
