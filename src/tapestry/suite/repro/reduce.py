"""Reducing a failing subject to a small one that fails in the same way. Pure: the device is a function.

Not here: the single reductions (shapes, values, calls), and running on a device (on_device).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tapestry.numerics.verdict import Verdict
from tapestry.suite.repro import calls, shapes, values
from tapestry.suite.repro.attempt import Attempt
from tapestry.suite.repro.search import Limits, Run, Search
from tapestry.suite.repro.subject import Subject

#: Passes over all reductions: a plainer value may allow a smaller shape.
_ROUNDS = 4
#: Verdicts that come before any value is looked at.
_BLIND = (Verdict.UNSUPPORTED, Verdict.ERROR)


@dataclass(frozen=True, eq=False)
class Reduction:
    """The smallest subject found and its run. ``runs`` on the device; ``done``: what helped, and how often.

    ``steady``: the subject as given failed again in the same way, so that it could be reduced at all.
    """

    subject: Subject
    attempt: Attempt
    runs: int
    done: Mapping[str, int]
    steady: bool


def reduce_case(
    run: Run,
    subject: Subject,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Reduction:
    """Reduce a failing subject: sizes, values, arguments, calls, each step kept if it fails in the same way.

    ``run`` executes a subject on the device and judges it (attempt.judged, attempt.ended). A subject that does not
    fail, or not the same way twice, comes back as it is; the smallest one is run once more at the end, and the whole
    comes back where that does not fail the same way.
    """
    first = run(subject)
    if not first.failed:
        return Reduction(subject, first, 1, {}, False)
    search = Search(run, subject, first, limits or Limits(), clock)
    for _ in range(_ROUNDS):
        before = search.done.total()
        _one_round(search)
        if search.exhausted or search.done.total() == before:
            break
    if search.current is subject:
        return Reduction(subject, first, search.runs + 1, {}, True)
    again = run(search.current)
    if again.way != first.way:
        return Reduction(subject, first, search.runs + 2, {}, False)
    return Reduction(search.current, again, search.runs + 2, dict(search.done), True)


def _one_round(search: Search) -> None:
    if not search.current.single:
        calls.fewer_calls(search)
    if search.current.single:
        shapes.small_sizes(search)
        shapes.drop_arguments(search)
        shapes.fewer_elements(search)
        shapes.plain_layout(search)
    else:
        calls.smaller_sizes(search)
    if search.attempt.judgement.verdict in _BLIND:
        values.blank_values(search)
    else:
        values.plainer_values(search)
