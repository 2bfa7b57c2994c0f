"""What a search asks of a cost model: the time of a region, of a conversion between kinds, and a region's error.

Not here: measuring (measure), and keeping what was measured (store).
"""

from __future__ import annotations

from typing import Protocol

from tapestry.errors import TapestryError
from tapestry.placement.search.candidates import Candidate, Kind


class RefusedError(TapestryError):
    """A candidate must not be chosen: it hangs, crashes, is wrong or cannot be compiled; the message says which."""


class CostModel(Protocol):
    """Answers are taken as they are: one that changes from call to call makes a search that cannot be repeated."""

    def region(self, candidate: Candidate) -> float:
        """Seconds of one run of a candidate, with its inputs where its kind holds values. RefusedError if refused."""
        ...

    def boundary(self, producer: Kind, consumer: Kind, nbytes: int) -> float:
        """Seconds to make a value of so many bytes, held by one kind, one that the other can read."""
        ...

    def error(self, candidate: Candidate) -> float:
        """What a candidate alone adds to ``max_rel_error`` of the program's outputs. RefusedError if refused."""
        ...
