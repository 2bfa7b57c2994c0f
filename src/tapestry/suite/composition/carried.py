"""What the errors and doubts of a call's operands make of its results: the call is run again, in float64, on operands
moved by their bounds. Not here: the error that the call itself adds (running).

First order, as in running error analysis (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
section 3.3): each operand is moved alone, and what that does to the result is added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import Tensor

from tapestry.numerics.formats import is_inexact
from tapestry.numerics.no_oracle import NoOracle

#: Runs the call on other tensors, in the order of its values.
Run = Callable[[Sequence[Tensor]], Sequence[Tensor | None]]

#: Patterns of signs are a sample: what they show is doubled for results that mix many elements.
_MIXING_FACTOR = 2.0
_SEED = 20240401
#: Random patterns of signs; two large elements have like signs in all of them once in 2^6.
_RANDOM = 6
#: What a call raises for an operand that it does not take.
_REFUSALS = (RuntimeError, ValueError, IndexError, NoOracle)


class Reach(Enum):
    """How a result depends on its operands' elements: what decides which moves show their effect."""

    LINEAR = auto()  # on sums of products of them: magnitudes give the worst case
    MONOTONE = auto()  # on one element, or on a choice among several: both ends show the extremes
    MIXED = auto()  # on many at once: patterns of signs are tried


@dataclass(frozen=True)
class Operand:
    """What a call reads: the exact value (wide), its bound and its doubt, all of one shape."""

    exact: Tensor
    bound: Tensor
    doubtful: Tensor

    @property
    def inexact(self) -> bool:
        return is_inexact(self.exact.dtype) and bool(self.bound.any())


def carried(
    run: Run, operands: Sequence[Operand], want: Sequence[Tensor | None], reach: Reach
) -> list[tuple[Tensor, Tensor]]:
    """For each result the bound (float64) and the doubt (bool) that its operands' bounds and doubts give it."""
    found = [_Result(entry) for entry in want]
    base = [operand.exact for operand in operands]
    for place, operand in enumerate(operands):
        if operand.inexact:
            _move(run, base, place, operand, reach, found)
        if bool(operand.doubtful.any()):
            for other in _alternatives(operand):
                _doubt(run, base, place, other, found)
    return [(entry.bound, entry.doubtful) for entry in found]


class _Result:
    """What has been found out about one result."""

    def __init__(self, want: Tensor | None) -> None:
        self.want = torch.zeros(()) if want is None else want
        self.bound = torch.zeros(self.want.shape, dtype=torch.float64)
        self.doubtful = torch.zeros(self.want.shape, dtype=torch.bool)

    def difference(self, other: Tensor | None) -> Tensor:
        """|other - want|; where only one is finite, or a result that is no float differs, the element is doubtful."""
        if other is None or other.shape != self.want.shape:
            self.doubtful = torch.ones_like(self.doubtful)
            return torch.zeros_like(self.bound)
        same = (other == self.want) | ((other != other) & (self.want != self.want))
        if not is_inexact(self.want.dtype):
            self.doubtful = self.doubtful | ~same
            return torch.zeros_like(self.bound)
        finite = torch.isfinite(other) & torch.isfinite(self.want)
        self.doubtful = self.doubtful | (~finite & ~same)
        return torch.where(finite, (other - self.want).abs().to(torch.float64), 0.0)


def _move(run: Run, base: list[Tensor], place: int, operand: Operand, reach: Reach, found: list[_Result]) -> None:
    """Add what moving one operand by its bound does."""
    if reach is Reach.LINEAR and _move_linear(run, base, place, operand, found):
        return
    _at_zero(run, base, place, operand, found)
    largest = [torch.zeros_like(entry.bound) for entry in found]
    for signs in _signs(operand, reach):
        for direction in (1.0, -1.0):
            step = operand.bound * signs * direction
            moved = torch.where(torch.isfinite(operand.exact), operand.exact + step, operand.exact)
            for number, other in enumerate(_attempt(run, base, place, moved, len(found))):
                largest[number] = torch.maximum(largest[number], found[number].difference(other))
    for entry, effect in zip(found, largest, strict=True):
        entry.bound = entry.bound + (effect if reach is Reach.MONOTONE else _mixed(effect))


def _at_zero(run: Run, base: list[Tensor], place: int, operand: Operand, found: list[_Result]) -> None:
    """Where a value may be 0 (or just not), what has a pole there may be infinite: that is doubtful."""
    near = (operand.exact.abs() <= operand.bound) & (operand.bound > 0)
    if not bool(near.any()):
        return
    for entry, other in zip(
        found, _attempt(run, base, place, torch.where(near, 0.0, operand.exact), len(found)), strict=True
    ):
        entry.difference(other)


def _mixed(effect: Tensor) -> Tensor:
    """Signs may cancel at one element by chance: no element is taken to be less sensitive than half its row."""
    if effect.dim() == 0 or effect.numel() == 0:
        return effect * _MIXING_FACTOR
    typical = effect.square().mean(-1, keepdim=True).sqrt()
    return torch.maximum(effect * _MIXING_FACTOR, typical)


def _move_linear(run: Run, base: list[Tensor], place: int, operand: Operand, found: list[_Result]) -> bool:
    """Worst case of a multilinear call: its value on magnitudes, with and without the bound. False if it fails."""
    sizes = [entry.abs().nan_to_num(nan=0.0, posinf=0.0) if is_inexact(entry.dtype) else entry for entry in base]
    try:
        plain = run(sizes)
        sizes[place] = sizes[place] + operand.bound
        moved = run(sizes)
    except _REFUSALS:
        return False
    for entry, left, right in zip(found, plain, moved, strict=True):
        if left is None or right is None:
            continue
        entry.bound = entry.bound + (right - left).abs().to(torch.float64).nan_to_num(nan=0.0, posinf=0.0)
    return True


def _signs(operand: Operand, reach: Reach) -> Iterator[Tensor]:
    """Patterns of signs: all alike; with the value's own sign, as relative errors are; against each other, by rank in
    the row (what softmax turns on is how its largest two differ); and at random.
    """
    exact = operand.exact.real
    ones = torch.ones(exact.shape, dtype=torch.float64)
    yield ones
    if reach is Reach.MONOTONE:
        return
    yield torch.where(exact < 0, -ones, ones)
    if exact.dim():
        rank = exact.argsort(-1).argsort(-1)
        yield torch.where(rank % 2 == 0, ones, -ones)
        yield torch.where(rank >= exact.shape[-1] - 1, ones, -ones)
    generator = torch.Generator().manual_seed(_SEED)
    for _ in range(_RANDOM):
        yield torch.randint(0, 2, exact.shape, generator=generator).to(torch.float64) * 2 - 1


def _alternatives(operand: Operand) -> Iterator[Tensor]:
    """Other values at the doubtful places, unlike enough to show wherever those are read."""
    exact, mask = operand.exact, operand.doubtful
    if exact.dtype == torch.bool:
        yield exact ^ mask
        return
    if not is_inexact(exact.dtype):
        yield torch.where(mask, torch.where(exact > 0, exact - 1, exact + 1), exact)
        return
    yield torch.where(mask, torch.nan, exact)
    if not exact.dtype.is_complex:
        far = 2 * exact.abs().nan_to_num(nan=0.0, posinf=0.0).max() + 1
        yield torch.where(mask, far, exact)
        yield torch.where(mask, -far, exact)


def _doubt(run: Run, base: list[Tensor], place: int, other: Tensor, found: list[_Result]) -> None:
    for entry, result in zip(found, _attempt(run, base, place, other, len(found)), strict=True):
        if result is None or result.shape != entry.want.shape:
            entry.doubtful = torch.ones_like(entry.doubtful)
            continue
        same = (result == entry.want) | ((result != result) & (entry.want != entry.want))
        entry.doubtful = entry.doubtful | ~same


def _attempt(run: Run, base: list[Tensor], place: int, other: Tensor, count: int) -> Sequence[Tensor | None]:
    """The results on one changed operand; Nones when the call does not take it (an index out of range)."""
    try:
        results = run([*base[:place], other, *base[place + 1 :]])
    except _REFUSALS:
        return [None] * count
    return results if len(results) == count else [None] * count
