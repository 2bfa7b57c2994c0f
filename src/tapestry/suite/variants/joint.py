"""Values for several operands at once: pairs that meet in one element, and rows that meet in one sum.

Not here: one tensor at a time (values).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from tapestry.suite.variants import elements
from tapestry.suite.variants.call import Kind, OpCall, Variant
from tapestry.suite.variants.meaning import Role, TensorMeaning
from tapestry.suite.variants.memory import free_shape
from tapestry.suite.variants.patterns import FINITE, INTEGERS, LARGE, NONFINITE, Pattern
from tapestry.suite.variants.setting import Setting, tamed

_OPERANDS = frozenset({Role.DATA, Role.WEIGHT, Role.BIAS, Role.PROBABILITY})
#: Into how many calls a list of pairs may be split.
_PARTS = 6
_PART_STEP = 3
#: The pattern of the first operand, and that of the others.
_MEETINGS = (
    ("ones", "ones"),
    ("hot", "alternating"),
    ("mantissas", "mantissas"),
    ("negative", "negative"),
    ("wide", "wide"),
    ("hot", "hot"),
    ("swamp", "ones"),
    ("alternating", "ones"),
    ("zeros", "zeros"),
    ("offset", "offset"),
    ("repeated", "repeated"),
    ("spread", "spread"),
    ("root", "root"),
)
_NONFINITE_MEETINGS = (("infinities", "zeros"), ("nan-first", "zeros"), ("infinity", "infinity"), ("nan-last", "wide"))
_INTEGER_MEETINGS = (("large", "large"), ("negative", "negative"), ("most", "most"), ("beside-2^24", "beside-2^24"))


def joint_variants(setting: Setting) -> Iterator[Variant]:
    """The variants that change two or more operands at once. Nothing is built here."""
    operands = [meaning for meaning in setting.varied if meaning.role in _OPERANDS]
    floats = [meaning for meaning in operands if setting.tensors[meaning.place].is_floating_point()]
    integers = [meaning for meaning in operands if _is_integer(setting.tensors[meaning.place])]
    bools = [meaning for meaning in operands if setting.tensors[meaning.place].dtype == torch.bool]
    if setting.elementwise:
        yield from _float_pairs(setting, floats)
        yield from _integer_pairs(setting, integers)
        yield from _combined(setting, bools, "bools", torch.tensor([0, 1]), 1)
        return
    yield from _meetings(
        setting, [meaning for meaning in floats if meaning.role != Role.BIAS], FINITE + LARGE, _MEETINGS
    )
    yield from _meetings(setting, floats, NONFINITE + FINITE, _NONFINITE_MEETINGS)
    yield from _meetings(setting, integers, INTEGERS, _INTEGER_MEETINGS)


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _float_pairs(setting: Setting, held: list[TensorMeaning]) -> Iterator[Variant]:
    if len(held) < 2:
        return
    # what the narrowest holds, all hold
    dtype = min((setting.tensors[meaning.place].dtype for meaning in held), key=lambda dtype: torch.finfo(dtype).max)
    yield from _combined(setting, held, "pairs", elements.float_pairs(dtype), 0)
    yield from _combined(setting, held, "nonfinite-pairs", elements.nonfinite_pairs(), 0)
    yield Variant("values:together:equal", Kind.VALUES, 2, _alike(setting, held, lambda values, order: values))
    yield Variant("values:together:neighbours", Kind.VALUES, 4, _alike(setting, held, _next_to))
    groups = {group.name: group for group in elements.float_groups(dtype)}
    for rank, name in enumerate(("sweep", "edges", "near-zero")):
        values = groups[name].values
        yield Variant(f"values:together:{name}", Kind.VALUES, 3 + 2 * rank, _shifted(setting, held, values))


def _integer_pairs(setting: Setting, held: list[TensorMeaning]) -> Iterator[Variant]:
    if len(held) < 2:
        return
    dtype = min((setting.tensors[meaning.place].dtype for meaning in held), key=lambda dtype: torch.iinfo(dtype).max)
    whole, natural = elements.integer_pairs(dtype), elements.natural_pairs(dtype)
    zero = torch.zeros(1, dtype=torch.int64)
    yield from _combined(setting, held, "pairs", whole, 0)
    yield from _combined(setting, held, "natural-pairs", natural, 3)
    yield from _combined(setting, held, "zero-pairs", torch.cat([zero, whole]), 4)
    beside = elements.neighbours(dtype)
    limits = torch.iinfo(dtype)
    for rank, step in enumerate((1, 0, -1)):
        moved = (beside + step).clamp(limits.min + int(dtype.is_signed), min(limits.max, 2**63 - 1))
        build = _lists(setting, held, [beside, *[moved] * (len(held) - 1)])
        yield Variant(f"values:together:beside{step:+d}", Kind.VALUES, 2 + rank, build)


def _combined(setting: Setting, held: list[TensorMeaning], word: str, values: Tensor, rank: int) -> Iterator[Variant]:
    """Every value of a list beside every other, as far as there is room."""
    if len(held) < 2:
        return
    kind = Kind.NONFINITE if word.startswith("nonfinite") else Kind.VALUES
    shapes = {free_shape(setting.tensors[meaning.place]) for meaning in held}
    if len(shapes) > 1:
        build = _by_digits(setting, held, values)
        parts = [(word, rank, build)]
    else:
        count = setting.count(held[0].place)
        table = _diagonal(values, len(held))
        total = min(_PARTS, math.ceil(table.shape[1] / count))
        parts = [
            (
                word if total == 1 else f"{word}.{part}",
                rank + _PART_STEP * part,
                _lists(setting, held, table, part * count),
            )
            for part in range(total)
        ]
    for name, order, build in parts:
        if kind == Kind.VALUES:
            yield Variant(f"values:together:{name}", kind, order, tamed(setting, build))
            yield Variant(f"values:together:{name}+", kind, order + 6, build)
        else:
            yield Variant(f"values:together:{name}", kind, order, build)


def _diagonal(values: Tensor, operands: int) -> Tensor:
    """All combinations, shape (operands, combinations), those of the first values first; at most 4096."""
    few = values[: max(2, int(4096 ** (1 / operands)))]
    combinations = itertools.product(range(few.numel()), repeat=operands)
    ordered = sorted(combinations, key=lambda picks: (sum(picks), picks))
    return few[torch.tensor(ordered).T]


def _lists(
    setting: Setting, held: list[TensorMeaning], lists: Sequence[Tensor] | Tensor, start: int = 0
) -> Callable[[], OpCall]:
    """Each operand from its own list, element by element."""

    def build() -> OpCall:
        given = zip(held, lists, strict=True)
        return setting.filled({meaning.place: setting.in_order(meaning.place, row, start) for meaning, row in given})

    return build


def _by_digits(setting: Setting, held: list[TensorMeaning], values: Tensor) -> Callable[[], OpCall]:
    """The smallest operand runs through the values fastest, larger ones slower: broadcasting makes the pairs."""

    def build() -> OpCall:
        made: dict[int, Tensor] = {}
        slower = 1
        for meaning in sorted(held, key=lambda meaning: setting.count(meaning.place)):
            count = setting.count(meaning.place)
            if slower >= count:
                slower = 1
            picks = torch.arange(count) // slower % values.numel()
            made[meaning.place] = setting.in_order(meaning.place, values[picks], 0)
            slower *= values.numel()
        return setting.filled(made)

    return build


def _alike(
    setting: Setting, held: list[TensorMeaning], change: Callable[[Tensor, int], Tensor]
) -> Callable[[], OpCall]:
    """All operands from the same elements, each changed by its order."""

    def build() -> OpCall:
        source = setting.own(max(held, key=lambda meaning: setting.count(meaning.place)).place).reshape(-1)
        source = source.to(setting.tensors[held[0].place].dtype)
        return setting.filled(
            {
                meaning.place: setting.in_order(meaning.place, change(source, order), 0)
                for order, meaning in enumerate(held)
            }
        )

    return build


def _next_to(values: Tensor, order: int) -> Tensor:
    """The next number towards infinity, or the same, by turns."""
    if order == 0 or values.dtype.itemsize == 1:
        return values
    above = torch.nextafter(values, torch.full_like(values, math.inf))
    return torch.where(torch.arange(values.numel()) % 2 == 0, above, values)


def _shifted(setting: Setting, held: list[TensorMeaning], values: Tensor) -> Callable[[], OpCall]:
    return tamed(setting, _lists(setting, held, [values.roll(-7 * order) for order in range(len(held))]))


def _meetings(
    setting: Setting, held: list[TensorMeaning], among: tuple[Pattern, ...], pairs: tuple[tuple[str, str], ...]
) -> Iterator[Variant]:
    if len(held) < 2:
        return
    named = {pattern.name: pattern for pattern in among}
    kind = Kind.NONFINITE if pairs is _NONFINITE_MEETINGS else Kind.VALUES
    for rank, (first, others) in enumerate(pairs):
        rows = [named[first], *[named[others]] * (len(held) - 1)]

        def build(rows: list[Pattern] = rows) -> OpCall:
            return setting.filled(
                {m.place: setting.in_rows(m.place, (row,), 0) for m, row in zip(held, rows, strict=True)}
            )

        yield Variant(f"values:together:{first}/{others}", kind, 1 + 2 * rank, build)
