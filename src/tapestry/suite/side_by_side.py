"""One suite on several devices, side by side: which operators they disagree on. Plain data, free of torch.

Not here: replaying, printing, and two replays of one device (against.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Literal

import msgspec

from tapestry.suite.against import NOTABLE
from tapestry.suite.verdicts import BLOCKING, CaseResult, ReplayResult, by_operator, finite

#: Below a rounding of float32 no difference of errors is worth a word.
LEAST_ERROR = 2.0**-23

#: In what devices disagree: the verdict of a case, or its error by `NOTABLE` times and more.
Difference = Literal["", "verdict", "error"]


class OnDevice(msgspec.Struct, frozen=True):
    """An operator on one device: how often each verdict, the worst errors; None where there is no finite one."""

    device: str
    verdicts: dict[str, int]
    max_rel: float | None = None
    nmse: float | None = None


class Example(msgspec.Struct, frozen=True):
    """What one device made of the case that shows a difference."""

    device: str
    verdict: str
    nmse: float | None = None
    reason: str = ""


class OperatorRow(msgspec.Struct, frozen=True):
    """An operator on all devices. ``differs`` is empty where they agree; ``case`` is then empty too.

    Otherwise ``count`` cases differ so, and ``examples`` says what each device made of the first of them, ``case``.
    """

    op: str
    devices: tuple[OnDevice, ...]
    differs: Difference = ""
    count: int = 0
    case: str = ""
    examples: tuple[Example, ...] = ()


def side_by_side(replays: Sequence[ReplayResult]) -> tuple[OperatorRow, ...]:
    """One row per operator of any of the replays: those with different verdicts first, then with different errors.

    Devices are compared case by case, on the cases that all of them have.
    """
    summaries = [{entry.op: entry for entry in by_operator(replay.results)} for replay in replays]
    operators = sorted({op for entries in summaries for op in entries})
    shared = list(_shared_cases(replays))
    rows = [
        _row(
            op,
            tuple(
                OnDevice(
                    replay.device, entries[op].verdicts,
                    finite(entries[op].worst.max_rel), finite(entries[op].worst.nmse),
                )
                if op in entries
                else OnDevice(replay.device, {})
                for replay, entries in zip(replays, summaries, strict=True)
            ),
            [results for results in shared if results[0].op == op],
        )
        for op in operators
    ]  # fmt: skip
    order = {"verdict": 0, "error": 1, "": 2}
    return tuple(sorted(rows, key=lambda row: (order[row.differs], row.op)))


def _shared_cases(replays: Sequence[ReplayResult]) -> Iterator[tuple[CaseResult, ...]]:
    by_case = [{entry.case: entry for entry in replay.results} for replay in replays]
    for case in by_case[0] if by_case else ():
        if all(case in entries for entries in by_case):
            yield tuple(entries[case] for entries in by_case)


def _row(op: str, devices: tuple[OnDevice, ...], cases: Sequence[tuple[CaseResult, ...]]) -> OperatorRow:
    kinds: tuple[Difference, ...] = ("verdict", "error")
    for kind in kinds:
        found = [results for results in cases if _difference(results) == kind]
        if found:
            return OperatorRow(op, devices, kind, len(found), found[0][0].case, _examples(devices, found[0]))
    return OperatorRow(op, devices)


def _examples(devices: tuple[OnDevice, ...], results: tuple[CaseResult, ...]) -> tuple[Example, ...]:
    return tuple(
        Example(
            entry.device, _outcome(result), finite(result.metrics.nmse),
            result.reason if result.verdict in BLOCKING else "",
        )
        for entry, result in zip(devices, results, strict=True)
    )  # fmt: skip


def _difference(results: tuple[CaseResult, ...]) -> Difference:
    if len({_outcome(entry) for entry in results}) > 1:
        return "verdict"
    if results[0].verdict in BLOCKING:
        return ""
    errors = [sqrt(entry.metrics.nmse) for entry in results if entry.metrics.nmse >= 0]  # NaN is no number
    if len(errors) < len(results) or not errors:
        return ""
    return "error" if max(errors) >= NOTABLE * max(min(errors), LEAST_ERROR) else ""


def _outcome(entry: CaseResult) -> str:
    return f"{entry.verdict}{', imprecise' if entry.imprecise else ''}"
