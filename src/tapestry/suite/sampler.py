"""Which of an operator's many calls become cases: those whose values differ, outliers first.

Not here: what the values of a tensor are like (features), and storing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tapestry.suite.features import Features


@dataclass(frozen=True)
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

    def tokens(self) -> frozenset[tuple[int, str]]:
        return frozenset((place, token) for place, entry in enumerate(self.features) for token in entry.tokens)


@dataclass
class Samples:
    """The samples kept for one operator key.

    A call is kept while ``limit`` is not reached and it shows a token that no kept sample has. The call with the
    largest magnitude seen at each input is always kept, beyond the limit: later layers' outliers are the point.
    """

    limit: int
    kept: list[Sample] = field(default_factory=list[Sample])
    seen: int = 0
    _tokens: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    _peaks: dict[int, tuple[float, Sample]] = field(default_factory=dict[int, tuple[float, Sample]])

    def wants(self, features: Sequence[Features]) -> bool:
        """Whether a call with these features would be kept; counts it as seen."""
        self.seen += 1
        if not self.kept:
            return True
        new = any((place, token) not in self._tokens for place, entry in enumerate(features) for token in entry.tokens)
        if new and len(self.kept) < self.limit:
            return True
        return self._breaks_a_record(features)

    def add(self, sample: Sample) -> None:
        """Keep a sample that ``wants`` has asked for."""
        fresh = sample.tokens() - self._tokens
        self._tokens |= fresh
        if len(self.kept) < self.limit and (fresh or not self.kept):
            self.kept.append(sample)
        for place, entry in enumerate(sample.features):
            if place not in self._peaks or entry.peak > self._peaks[place][0]:
                self._peaks[place] = (entry.peak, sample)

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
