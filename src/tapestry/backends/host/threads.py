"""The one budget of threads that all runtimes on this processor share. No torch and no runtime here.

Regions run one after the other, so each runtime may use the whole budget, as long as its threads sleep in between:
spinning is turned off wherever a runtime can be told to. Affinity is left to the system.
"""

from __future__ import annotations

import os

from tapestry.errors import UsageError

#: The environment variable that sets the budget.
VARIABLE = "TAPESTRY_THREADS"


def thread_budget() -> int:
    """Threads that a runtime may use: the variable, or the processors this process may run on (not: all there are).

    UsageError when the variable is no positive number.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return len(os.sched_getaffinity(0))
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"{VARIABLE} is the number of threads for all runtimes: expected 1 or more, got {text!r}")
    return int(text)
