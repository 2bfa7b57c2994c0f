"""Which of an operator's many calls become cases: those whose values differ, outliers first.

Not here: what the values of a tensor are like (features), and storing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from tapestry.suite.features import RARE, Features


@dataclass(frozen=True, eq=False)
class Sample:
    """One call that was seen: its tensors in region order, its results, and where it happened."""

    node: str
    input_set: int
    call: int
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor | None, ...]
    features: tuple[Features, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of inputs and results, parameters included."""
        tensors = [*self.inputs, *(output for output in self.outputs if output is not None)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @cached_property
    def tokens(self) -> frozenset[tuple[int, str]]:
        """Pairs of input place and token."""
        return _tokens(self.features)


@dataclass
class Samples:
    """The samples kept for one operator key.

    A call is kept while ``limit`` is not reached and it shows a token that no kept sample has. After that only a
    rare token (NaN, infinities, zeros, subnormals, extremes) gets a call in: in place of a kept one whose rare
    tokens others show as well, or else beyond the limit, up to twice as many. The call with the largest magnitude
    seen at each input is always kept, too: later layers' outliers are the point.
    """

    limit: int
    kept: list[Sample] = field(default_factory=list[Sample])
    seen: int = 0
    alike: int = 0
    _peaks: dict[int, tuple[float, Sample]] = field(default_factory=dict[int, tuple[float, Sample]])
    _shown: frozenset[tuple[int, str]] = frozenset()

    def wants(self, features: Sequence[Features]) -> bool:
        """Whether a call with these features would be kept; counts it as seen."""
        self.seen += 1
        fresh = _tokens(features) - self._shown
        if self._has_room(fresh) or self._breaks_a_record(features):
            return True
        self.alike += not fresh
        return False

    def add(self, sample: Sample) -> None:
        """Keep a sample that ``wants`` has asked for."""
        fresh = sample.tokens - self._shown
        if self._has_room(fresh):
            spared = self._spared() if len(self.kept) >= self.limit else None
            self.kept = [*(entry for entry in self.kept if entry is not spared), sample]
        for place, entry in enumerate(sample.features):
            if place not in self._peaks or entry.peak > self._peaks[place][0]:
                self._peaks[place] = (entry.peak, sample)
        self._shown = frozenset[tuple[int, str]]().union(*(entry.tokens for entry in self.chosen()))

    def _has_room(self, fresh: frozenset[tuple[int, str]]) -> bool:
        if len(self.kept) < self.limit:
            return bool(fresh) or not self.kept
        return bool(_rare(fresh)) and (len(self.kept) < 2 * self.limit or self._spared() is not None)

    def _spared(self) -> Sample | None:
        """The latest kept sample whose rare tokens are all shown by another kept one."""
        for sample in reversed(self.kept):
            others = frozenset[tuple[int, str]]().union(*(entry.tokens for entry in self.kept if entry is not sample))
            if _rare(sample.tokens) <= others:
                return sample
        return None

    def _breaks_a_record(self, features: Sequence[Features]) -> bool:
        # A tenth above, so that slowly growing values do not replace the record at every call.
        return any(
            entry.peak > 1.1 * self._peaks[place][0] for place, entry in enumerate(features) if place in self._peaks
        )

    def chosen(self) -> list[Sample]:
        """The kept samples and the record holders, each once, in the order they were seen first."""
        found: dict[int, Sample] = {id(sample): sample for sample in self.kept}
        for _, sample in self._peaks.values():
            found.setdefault(id(sample), sample)
        return list(found.values())


def _tokens(features: Sequence[Features]) -> frozenset[tuple[int, str]]:
    return frozenset((place, token) for place, entry in enumerate(features) for token in entry.tokens)


def _rare(tokens: frozenset[tuple[int, str]]) -> frozenset[tuple[int, str]]:
    return frozenset(entry for entry in tokens if entry[1] in RARE)
