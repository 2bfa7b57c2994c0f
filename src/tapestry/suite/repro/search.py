"""The state of a reduction: the smallest subject that still fails in the same way, and how many runs are left.

Not here: what is tried. ``minimal`` is delta debugging over any list.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tapestry.suite.repro.attempt import Attempt
from tapestry.suite.repro.subject import Subject

#: Runs a subject on the device and judges what it gave.
Run = Callable[[Subject], Attempt]


@dataclass(frozen=True)
class Limits:
    """What a reduction may take: seconds, runs on the device, and runs among them after which it starts again.

    With the seconds not reached, the outcome depends on the subject and the device alone.
    """

    seconds: float = 60.0
    runs: int = 300
    lost: int = 24


class Search:
    """``current`` and ``attempt`` are the smallest failing subject so far and its run. ``done`` counts what helped."""

    def __init__(
        self,
        run: Run,
        subject: Subject,
        attempt: Attempt,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.current = subject
        self.attempt = attempt
        self.runs = 0
        self.lost = 0
        self.done: Counter[str] = Counter()
        self._run = run
        self._limits = limits
        self._clock = clock
        self._end = clock() + limits.seconds
        self._tried = {subject.digest}

    @property
    def exhausted(self) -> bool:
        """Whether a limit is reached: nothing is tried any more."""
        limits = self._limits
        return self.runs >= limits.runs or self.lost >= limits.lost or self._clock() >= self._end

    def offer(self, candidate: Subject | None, what: str) -> bool:
        """Take the candidate if it fails in the same way. None, and one that was tried before, are not taken."""
        if candidate is None or self.exhausted:
            return False
        digest = candidate.digest
        if digest in self._tried:
            return False
        self._tried.add(digest)
        self.runs += 1
        attempt = self._run(candidate)
        self.lost += attempt.lost
        if not attempt.failed or attempt.way != self.attempt.way:
            return False
        self.current, self.attempt = candidate, attempt
        self.done[what] += 1
        return True


def minimal(items: Sequence[int], fails: Callable[[list[int]], bool], finest: int = 8) -> list[int]:
    """A small part of ``items`` for which ``fails`` still holds, in order; it holds for the whole.

    Delta debugging (ddmin of Zeller and Hildebrandt, TSE 2002), with parts no finer than one in ``finest`` of what is
    left: of few items none can then be left out, of many it costs few trials.
    """
    current = list(items)
    parts = 2
    while len(current) >= 2:
        chunks = _chunks(current, min(parts, len(current)))
        smaller = next((chunk for chunk in chunks if fails(chunk)), None)
        if smaller is not None:
            current, parts = smaller, 2
            continue
        smaller = next((rest for rest in _rests(chunks) if fails(rest)), None) if len(chunks) > 2 else None
        if smaller is not None:
            current, parts = smaller, max(parts - 1, 2)
            continue
        if parts >= min(len(current), finest):
            break
        parts = min(parts * 2, finest)
    return current


def _chunks(items: list[int], parts: int) -> list[list[int]]:
    edges = [len(items) * place // parts for place in range(parts + 1)]
    return [items[low:high] for low, high in pairwise(edges)]


def _rests(chunks: list[list[int]]) -> list[list[int]]:
    return [[item for other in chunks if other is not chunk for item in other] for chunk in chunks]
