"""What replaying a suite on a device found: one result per case, counted and summarised. Plain data, free of torch.

Not here: replaying (replay).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import isfinite, isnan

import msgspec

from tapestry.numerics.judgement import Metrics
from tapestry.numerics.verdict import Verdict

#: Verdicts that keep a node off the target.
BLOCKING = frozenset({Verdict.FAIL, Verdict.UNSUPPORTED, Verdict.ERROR, Verdict.CRASHED, Verdict.TIMEOUT})


class CaseResult(msgspec.Struct, frozen=True):
    """What became of one case on one device. ``seconds`` is the time on the device, transfers included.

    ``latent``: the case is derived and does not concern the model that was carved; a bad verdict blocks nothing.
    """

    case: str
    key: str
    op: str
    variant: str
    verdict: Verdict
    imprecise: bool
    reason: str
    metrics: Metrics
    judged_by: str
    seconds: float
    backend: str = ""
    latent: bool = False
    kind: str = ""

    @property
    def blocks(self) -> bool:
        """Whether the case keeps its operator off the target."""
        return self.verdict in BLOCKING and not self.latent


class ReplayResult(msgspec.Struct, frozen=True):
    """All cases of a suite on one device.

    ``overruled`` are bad cases of a preferred backend, as of a hand-written kernel; the results are the next one's.
    """

    device: str
    backend: str
    results: tuple[CaseResult, ...]
    overruled: tuple[CaseResult, ...] = ()

    @property
    def verdicts(self) -> dict[str, int]:
        """How many cases ended in each verdict, all verdicts named."""
        counted = Counter(str(entry.verdict) for entry in self.results)
        return {str(verdict): counted.get(str(verdict), 0) for verdict in Verdict}

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """The cases that neither pass nor are undefined, latent ones among them."""
        return tuple(entry for entry in self.results if entry.verdict in BLOCKING)

    @property
    def preferred(self) -> tuple[CaseResult, ...]:
        """Every case as the most preferred backend that takes it gave it, right or wrong."""
        wrong = {entry.case: entry for entry in reversed(self.overruled)}
        return tuple(wrong.get(entry.case, entry) for entry in self.results)

    @property
    def latent(self) -> tuple[CaseResult, ...]:
        """The failures that do not concern the model that was carved."""
        return tuple(entry for entry in self.results if entry.verdict in BLOCKING and entry.latent)

    @property
    def good(self) -> bool:
        """Whether nothing failed, on a preferred backend neither."""
        return not self.failures and not self.overruled


class OperatorSummary(msgspec.Struct, frozen=True):
    """The cases of one operator together; ``worst`` are the largest errors over its cases."""

    op: str
    cases: int
    verdicts: dict[str, int]
    worst: Metrics


def by_operator(results: Iterable[CaseResult]) -> tuple[OperatorSummary, ...]:
    """One summary per operator, those with failures first, then by name."""
    groups: dict[str, list[CaseResult]] = {}
    for entry in results:
        groups.setdefault(entry.op, []).append(entry)
    summaries = [_summary(op, entries) for op, entries in groups.items()]
    return tuple(sorted(summaries, key=lambda entry: (not BLOCKING & set(entry.verdicts), entry.op)))


def _summary(op: str, entries: list[CaseResult]) -> OperatorSummary:
    verdicts = Counter(str(entry.verdict) for entry in entries)
    metrics = [entry.metrics for entry in entries]
    worst = Metrics(
        max_ulp=_largest(entry.max_ulp for entry in metrics),
        max_rel=_largest(entry.max_rel for entry in metrics),
        max_abs=_largest(entry.max_abs for entry in metrics),
        nmse=_largest(entry.nmse for entry in metrics),
        cosine=-_largest(-entry.cosine for entry in metrics),
        snr_db=min((entry.snr_db for entry in metrics if entry.snr_db is not None), default=None),
    )
    return OperatorSummary(op, len(entries), dict(verdicts), worst)


def _largest(values: Iterable[float]) -> float:
    """The maximum; NaN, which no comparison sees, is worse than any number."""
    return max(values, key=lambda value: (isnan(value), value))


def finite(value: float) -> float | None:
    """The number, or None for one that JSON has no place for."""
    return value if isfinite(value) else None
