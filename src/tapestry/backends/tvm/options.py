"""The choices of the TVM backend that a search may make."""

from __future__ import annotations

from typing import Literal

from tapestry.backends.base import Options


class TvmOptions(Options, frozen=True):
    """``schedule``: ``dlight``, TVM's default GPU schedules, or ``fallback``, one invocation per element.

    The fallback is the plainest code that TVM makes, 7 to 12 times slower: it tells a schedule's fault from an
    operator's.
    """

    schedule: Literal["dlight", "fallback"] = "dlight"
