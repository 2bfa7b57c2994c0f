"""Two replays of a suite side by side: what got better, what got worse. Plain data, free of torch.

Not here: reading the older one from a file, and printing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tapestry.numerics.verdict import Verdict
from tapestry.suite.verdicts import BLOCKING

#: How many times larger or smaller an error must be to be worth a word: below it, another summation order will do.
NOTABLE = 4.0


class Past(msgspec.Struct, frozen=True):
    """One case of a replay, as it is remembered. ``max_rel`` is None where it was no number."""

    case: str
    op: str
    verdict: Verdict
    max_rel: float | None = None
    imprecise: bool = False


class Change(msgspec.Struct, frozen=True):
    """A case that is not what it was. ``before`` and ``now`` say what it was and is, for people."""

    case: str
    op: str
    before: str
    now: str


class Comparison(msgspec.Struct, frozen=True):
    """``better`` and ``worse`` are cases of both replays; ``added`` and ``gone`` those that only one has."""

    better: tuple[Change, ...]
    worse: tuple[Change, ...]
    added: tuple[str, ...]
    gone: tuple[str, ...]


def compare(before: Sequence[Past], now: Sequence[Past]) -> Comparison:
    """Compare by case id: verdicts first; where both passed, errors that changed by `NOTABLE` times and more."""
    old = {entry.case: entry for entry in before}
    new = {entry.case: entry for entry in now}
    better: list[Change] = []
    worse: list[Change] = []
    for case, entry in new.items():
        if case in old:
            step = _step(old[case], entry)
            if step:
                (worse if step > 0 else better).append(Change(case, entry.op, _words(old[case]), _words(entry)))
    added = tuple(case for case in new if case not in old)
    gone = tuple(case for case in old if case not in new)
    return Comparison(tuple(better), tuple(worse), added, gone)


def _rank(entry: Past) -> int:
    return 2 if entry.verdict in BLOCKING else 1 if entry.imprecise else 0


def _step(old: Past, new: Past) -> int:
    """1 for worse, -1 for better, 0 for neither."""
    if _rank(old) != _rank(new):
        return 1 if _rank(new) > _rank(old) else -1
    if old.verdict in BLOCKING or old.max_rel is None or new.max_rel is None:
        return 0
    # Below a rounding of float32 no error is worth a word.
    least = 2.0**-23
    low, high = max(old.max_rel, least), max(new.max_rel, least)
    if high >= NOTABLE * low:
        return 1
    return -1 if low >= NOTABLE * high else 0


def _words(entry: Past) -> str:
    words = f"{entry.verdict}{', imprecise' if entry.imprecise else ''}"
    return words if entry.max_rel is None or not entry.max_rel else f"{words}, max rel {entry.max_rel:.2g}"
