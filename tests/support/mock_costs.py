"""A cost model that is made up: for searches that measure nothing. It counts what it is asked."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping

from tapestry.placement.search.candidates import Candidate, Kind
from tapestry.placement.search.costs import RefusedError


class MockCosts:
    """Microseconds by candidate: ``per_call`` for each region, ``per_node`` times the kind's factor for each node.

    ``refused`` maps a candidate to a reason, or to None; ``errors`` to its error. A conversion takes ``hop``
    microseconds and one for each ``rate`` bytes. ``noise`` adds up to so much, by a hash of the candidate.
    """

    def __init__(
        self,
        factors: Mapping[str, float] | None = None,
        per_call: float = 5.0,
        per_node: float = 10.0,
        hop: float = 3.0,
        rate: float = 1000.0,
        noise: float = 0.0,
        errors: Callable[[Candidate], float] | None = None,
        refused: Callable[[Candidate], str | None] | None = None,
    ) -> None:
        self.factors = dict(factors or {})
        self.per_call, self.per_node, self.hop, self.rate, self.noise = per_call, per_node, hop, rate, noise
        self.errors = errors
        self.refused = refused
        self.asked: Counter[str] = Counter()

    def region(self, candidate: Candidate) -> float:
        self.asked["region"] += 1
        reason = self.refused(candidate) if self.refused else None
        if reason is not None:
            raise RefusedError(reason)
        micro = self.per_node * len(candidate.nodes) * self.factors.get(candidate.kind.backend, 1.0)
        if not candidate.on_source:
            micro += self.per_call
        return (micro + self.noise * (zlib.crc32(repr(candidate.nodes).encode()) % 1000) / 1000) * 1e-6

    def boundary(self, producer: Kind, consumer: Kind, nbytes: int) -> float:
        self.asked["boundary"] += 1
        return (self.hop + nbytes / self.rate) * 1e-6

    def error(self, candidate: Candidate) -> float:
        self.asked["error"] += 1
        return self.errors(candidate) if self.errors else 0.0
