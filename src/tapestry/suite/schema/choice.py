"""Which calls are kept: the few that differ most in dtype, rank, optional arguments and kind of values.

Not here: making and trying calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from math import log2

import torch

from tapestry.numerics.arguments import tensors_in
from tapestry.suite.schema.kinds import arguments, whole
from tapestry.suite.schema.opinfo import DTYPES
from tapestry.suite.schema.proposals import differs
from tapestry.suite.schema.trial import SchemaCall

#: Elements of a usual call: enough for rows, loops and vectors.
USUAL = range(256, 4097)

#: Shares of ``limit``: what float32 is given first, and what another dtype may take while there are others.
SHARE_OF_FLOAT32 = 0.5
SHARE_OF_OTHERS = 0.125


def diverse(calls: Sequence[SchemaCall], limit: int) -> tuple[SchemaCall, ...]:
    """At most ``limit`` calls: a usual float32 one first, then those that add most, then by dtype in DTYPES' order."""
    first_of: dict[Hashable, SchemaCall] = {}
    for call in calls:
        first_of.setdefault(_key(call), call)
    rest = list(first_of.values())
    rest.sort(key=lambda call: (not _usual(call), _from_usual(call)))
    chosen = _Chosen(limit)
    first = [call for call in rest if _dtype(call) == torch.float32]
    chosen.take(first, max(1, int(SHARE_OF_FLOAT32 * limit)))
    chosen.take([call for call in rest if not any(call is other for other in chosen.kept)], limit)
    kept = chosen.kept
    return (*kept[:1], *sorted(kept[1:], key=lambda call: _dtype_place(_dtype(call))))


class _Chosen:
    """What the calls chosen so far show, and what another one would add."""

    def __init__(self, limit: int) -> None:
        self.most_of_a_dtype = max(1, int(SHARE_OF_OTHERS * limit))
        self.kept: list[SchemaCall] = []
        self.seen: Counter[Hashable] = Counter()
        self.dtypes: Counter[torch.dtype | None] = Counter()
        self.features: dict[int, frozenset[Hashable]] = {}

    def take(self, calls: Sequence[SchemaCall], upto: int) -> None:
        """Keep the calls that add most, one after the other, until ``upto`` are kept; the first stays first."""
        left = list(calls)
        while left and len(self.kept) < upto:
            best = max(left, key=self._gain) if self.kept else left[0]
            left = [call for call in left if call is not best]
            self.kept.append(best)
            self.seen.update(self._of(best))
            self.dtypes[_dtype(best)] += 1

    def _gain(self, call: SchemaCall) -> float:
        """New features count in full, those seen before less and less; what is far from usual size must add more."""
        features = self._of(call)
        news = sum(4.0 if feature not in self.seen else 1.0 / (1 + self.seen[feature]) for feature in features)
        full = _dtype(call) != torch.float32 and self.dtypes[_dtype(call)] >= self.most_of_a_dtype
        return news / max(len(features), 1) ** 0.5 - _from_usual(call) / 8 - (100 if full else 0)

    def _of(self, call: SchemaCall) -> frozenset[Hashable]:
        if id(call) not in self.features:
            self.features[id(call)] = _features(call)
        return self.features[id(call)]


def _from_usual(call: SchemaCall) -> float:
    """Doublings between the call's elements and a usual number of them; few are better than too many."""
    bulk = sum(tensor.numel() for tensor in _tensors(call))
    return abs(log2((bulk + 1) / USUAL.start)) if bulk < USUAL.start else 2 * max(0.0, log2(bulk / USUAL.stop))


def _tensors(call: SchemaCall) -> list[torch.Tensor]:
    return list(tensors_in([call.args, list(call.kwargs.values())]))


def _dtype(call: SchemaCall) -> torch.dtype | None:
    tensors = _tensors(call)
    return tensors[0].dtype if tensors else None


def _features(call: SchemaCall) -> frozenset[Hashable]:
    tensors = _tensors(call)
    found: set[Hashable] = {("dtypes", tuple(sorted({str(tensor.dtype) for tensor in tensors})))}
    found.update(("rank", place, tensor.dim()) for place, tensor in enumerate(tensors[:3]))
    if not all(tensor.is_contiguous() for tensor in tensors):
        found.add("strided")
    if len({tuple(tensor.shape) for tensor in tensors}) > 1:
        found.add("shapes differ")
    if any(tensor.numel() == 0 for tensor in tensors):
        found.add("empty")
    given = dict(zip((entry.name for entry in arguments(call.target)), call.args, strict=False)) | call.kwargs
    for argument in arguments(call.target):
        if argument.name in given:
            found.update(_argument(argument.name, given[argument.name]))
            if differs(argument, given[argument.name]):
                found.add(("given", argument.name))
        elif argument.kind == "Tensor":
            found.add(("left out", argument.name))
    return frozenset(found)


def _argument(name: str, value: object) -> set[Hashable]:
    """Kinds of plain values: each truth value, word and dtype; the sign of a number; the length of a list."""
    if isinstance(value, torch.Tensor):
        return set()
    if isinstance(value, bool | str | torch.dtype):
        return {(name, str(value))}
    if isinstance(value, int | float):
        return {(name, "negative" if value < 0 else "zero" if value == 0 else "positive", whole(value))}
    if isinstance(value, list | tuple):
        signs = {("negative", name) for entry in value if isinstance(entry, int | float) and entry < 0}
        return {(name, len(value)), *signs}
    return set()


def _usual(call: SchemaCall) -> bool:
    tensors = _tensors(call)
    return bool(tensors) and tensors[0].dtype == torch.float32 and tensors[0].numel() in USUAL


def _dtype_place(dtype: torch.dtype | None) -> int:
    return DTYPES.index(dtype) if dtype in DTYPES else len(DTYPES)


def _key(call: SchemaCall) -> Hashable:
    """Calls that differ in no shape, dtype, stride or plain value are one."""

    def described(value: object) -> Hashable:
        if isinstance(value, torch.Tensor):
            return tuple(value.shape), value.dtype, tuple(value.stride())
        if isinstance(value, list | tuple):
            return tuple(described(entry) for entry in value)
        return type(value).__name__, str(value)

    return described(call.args), tuple((name, described(value)) for name, value in sorted(call.kwargs.items()))
