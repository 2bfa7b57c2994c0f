"""Asking OpenMP's threads in this process to sleep between calls: spinning ones slow whatever runs next.

OpenMP (torch's kernels and what Inductor compiles) reads the environment once, when torch loads it. Workers are started
with the variable set (worker.process). Not here: the other runtimes, whose loaders turn spinning off themselves.
"""

from __future__ import annotations

import os
import sys

#: OpenMP's own variable (OpenMP 5.2, section 21.7).
VARIABLE = "OMP_WAIT_POLICY"


def let_threads_sleep() -> bool:
    """Set the variable unless the user has; whether OpenMP's threads will sleep.

    False where the user chose otherwise, or where torch is loaded already: what it read then stays.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return chosen.strip().upper() == "PASSIVE"
    if "torch" in sys.modules:
        return False
    os.environ[VARIABLE] = "PASSIVE"
    return True
