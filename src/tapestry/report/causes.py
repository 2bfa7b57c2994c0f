"""Findings grouped by cause, and blocked nodes grouped by reason: the order in which a reader wants them.

Not here: what a finding is (migration).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tapestry.migration.result import Blocked, Finding
from tapestry.report.sources import SourceLine, source_line

#: Cause → its heading and what it means for the reader.
CAUSES: dict[str, tuple[str, str]] = {
    "replay": (
        "Wrong or refused by itself",
        "A case carved from the real run gives another result on the target, or the target cannot run it. "
        "These nodes stay on the source.",
    ),
    "program": (
        "Right by itself, wrong in the program",
        "Every case passes, yet the whole model turns wrong once these nodes run on the target. "
        "They stay on the source.",
    ),
    "merge": (
        "Wrong only when compiled together",
        "Each node is right alone, but the region compiled from them is not. "
        "The nodes run on the target in smaller regions.",
    ),
    "kernel": (
        "A hand-written kernel is wrong",
        "Another backend takes over where it matches; what that one cannot take has a finding of its own.",
    ),
}


@dataclass(frozen=True)
class FindingView:
    """One finding, or several with one cause. ``number`` starts at 1 and is its anchor on the page.

    ``reason`` is that of the finding with the most nodes, ``others`` are those that say the same with other numbers.
    ``case`` is the case that shows it, empty where none does.
    """

    number: int
    cause: str
    verdict: str
    ops: tuple[str, ...]
    reason: str
    others: tuple[str, ...]
    nodes: tuple[str, ...]
    sources: tuple[SourceLine, ...]
    repros: tuple[str, ...]
    case: str = ""


@dataclass(frozen=True)
class CauseGroup:
    """All findings of one cause, those with most nodes first."""

    cause: str
    title: str
    meaning: str
    findings: tuple[FindingView, ...]


@dataclass(frozen=True)
class BlockedGroup:
    """Blocked nodes of one operator with one reason. ``finding`` is the number of the finding that says why, or 0."""

    op: str
    reason: str
    finding: int
    nodes: tuple[str, ...]
    sources: tuple[SourceLine, ...]


def group_findings(findings: Iterable[Finding]) -> tuple[CauseGroup, ...]:
    """Group findings by cause; findings of the same operators with the same verdict and reason become one.

    Reasons that differ in numbers only (sizes, errors) are the same: ten shapes of one convolution are one cause.
    """
    by_cause: dict[str, dict[tuple[tuple[str, ...], str, str], list[Finding]]] = {cause: {} for cause in CAUSES}
    for finding in findings:
        same = by_cause.setdefault(finding.cause, {})
        same.setdefault((tuple(sorted(set(finding.ops))), finding.verdict, _wording(finding.reason)), []).append(
            finding
        )
    groups: list[CauseGroup] = []
    number = 1
    for cause, entries in by_cause.items():
        if not entries:
            continue
        ordered = sorted(entries.values(), key=lambda same: -sum(len(finding.nodes) for finding in same))
        views = tuple(_view(number + place, same) for place, same in enumerate(ordered))
        number += len(views)
        title, meaning = CAUSES.get(cause, (cause.capitalize(), ""))
        groups.append(CauseGroup(cause, title, meaning, views))
    return tuple(groups)


def _wording(reason: str) -> str:
    return re.sub(r"\d[\d.,]*(e[-+]?\d+)?", "#", reason)


def _view(number: int, same: list[Finding]) -> FindingView:
    first = max(same, key=lambda finding: len(finding.nodes))
    reasons = dict.fromkeys(finding.reason for finding in same)
    return FindingView(
        number,
        first.cause,
        first.verdict,
        tuple(dict.fromkeys(op for finding in same for op in finding.ops)),
        first.reason,
        tuple(reason for reason in reasons if reason != first.reason),
        tuple(dict.fromkeys(node for finding in same for node in finding.nodes)),
        _lines(source for finding in same for source in finding.sources),
        tuple(dict.fromkeys(finding.repro for finding in same if finding.repro)),
        first.case,
    )


def group_blocked(blocked: Iterable[Blocked], causes: Iterable[CauseGroup]) -> tuple[BlockedGroup, ...]:
    """Group blocked nodes by operator and reason; a reason that a finding gives is replaced by its number."""
    numbers = {
        node: finding.number
        for group in causes
        if group.cause != "merge"
        for finding in group.findings
        for node in finding.nodes
    }
    groups: dict[tuple[str, str, int], list[Blocked]] = {}
    for entry in blocked:
        finding = numbers.get(entry.node, 0)
        groups.setdefault((entry.op, "" if finding else entry.reason, finding), []).append(entry)
    views = [
        BlockedGroup(op, reason, finding, tuple(entry.node for entry in same), _lines(entry.source for entry in same))
        for (op, reason, finding), same in groups.items()
    ]
    return tuple(sorted(views, key=lambda view: (-len(view.nodes), view.op)))


def _lines(sources: Iterable[str]) -> tuple[SourceLine, ...]:
    """Distinct lines: the same line called from several modules is shown once."""
    lines = [source_line(source) for source in sources]
    return tuple({line.full: line for line in lines}.values())
