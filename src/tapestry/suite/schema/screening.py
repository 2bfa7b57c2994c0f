"""Trying many proposed calls apart from this process, for guessed arguments can make eager crash or never end.

On Linux the calls run in a forked child, as a DataLoader's workers do; a child that dies or stays silent is replaced,
and the call it was at is dropped. Elsewhere forking a process with torch in it is not safe, and the calls run here.
Not here: what makes a call valid (trial).
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch._ops import OpOverload

from tapestry.suite.schema.samples import Proposal
from tapestry.suite.schema.trial import DRAWS, UNWRITTEN, SchemaCall, outcome

#: A call that says nothing for so long is given up.
SECONDS = 20.0

_REFUSED = 0
_REASONS = {1: "", 2: DRAWS, 3: UNWRITTEN}
_CODES = {reason: code for code, reason in _REASONS.items()}


#: What becomes of a call: None, or the reason why it need not be repeatable.
Check = Callable[[OpOverload, tuple[object, ...], Mapping[str, object]], str | None]


def screened(
    target: OpOverload, groups: Sequence[Sequence[Proposal]], most: int, check: Check = outcome
) -> list[SchemaCall]:
    """The proposals that pass ``check`` (trial), at most ``most`` of each group, in order."""
    calls = [(number, call) for number, group in enumerate(groups) for call in group]
    outcomes: list[int] = []
    while len(outcomes) < len(calls):
        taken = Counter(group for (group, _), code in zip(calls, outcomes, strict=False) if code)
        before = len(outcomes)
        outcomes.extend(_apart(target, calls[before:], taken, most, check))
        if len(outcomes) < len(calls):
            outcomes.append(_REFUSED)
    return [
        SchemaCall(target, call.args, call.kwargs, call.source, _REASONS[code])
        for (_, call), code in zip(calls, outcomes, strict=True)
        if code
    ]


def _outcomes(
    target: OpOverload, calls: Sequence[tuple[int, Proposal]], taken: Counter[int], most: int, check: Check
) -> Iterator[int]:
    """One code for each call; calls of a group that has enough are not run."""
    taken = Counter(taken)
    for group, call in calls:
        code = _REFUSED
        if taken[group] < most:
            reason = check(target, call.args, call.kwargs)
            code = _REFUSED if reason is None else _CODES[reason]
        taken[group] += code != _REFUSED
        yield code


def _apart(
    target: OpOverload, calls: Sequence[tuple[int, Proposal]], taken: Counter[int], most: int, check: Check
) -> list[int]:
    """The codes of the calls, up to the one at which the child ended before its time."""
    if sys.platform != "linux":
        return list(_outcomes(target, calls, taken, most, check))
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of a fork beside threads: the child runs one, and only torch
        child = os.fork()
    if child == 0:
        _run_child(writing, _outcomes(target, calls, taken, most, check))
    os.close(writing)
    try:
        return _codes(reading, len(calls))
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _run_child(writing: int, codes: Iterator[int]) -> None:
    """Write the codes as they come, and end without any of the parent's clean-up."""
    try:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        torch.set_num_threads(1)
        for code in codes:
            os.write(writing, bytes((code,)))
    finally:
        os._exit(0)


def _codes(reading: int, count: int) -> list[int]:
    found = bytearray()
    while len(found) < count and select.select([reading], [], [], SECONDS)[0]:
        more = os.read(reading, count)
        if not more:
            break
        found += more
    return list(found)
