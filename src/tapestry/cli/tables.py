"""Tables that several commands print."""

from __future__ import annotations

from collections.abc import Iterable

from tapestry.cli.console import number, table
from tapestry.suite.verdicts import CaseResult, OperatorSummary, by_operator


def operators_table(title: str, results: Iterable[CaseResult] | Iterable[OperatorSummary]) -> None:
    """One row per operator: cases, verdicts, worst errors over its cases."""
    entries = list(results)
    summaries = [entry for entry in entries if isinstance(entry, OperatorSummary)] or by_operator(
        entry for entry in entries if isinstance(entry, CaseResult)
    )
    rows = [
        [
            entry.op,
            str(entry.cases),
            ", ".join(f"{count} {verdict}" for verdict, count in sorted(entry.verdicts.items())),
            number(entry.worst.max_abs),
            number(entry.worst.max_rel),
            number(entry.worst.nmse),
        ]
        for entry in summaries
    ]
    columns = ("operator", "cases", "verdicts", "max abs", "max rel", "NMSE")
    table(title, columns, rows, numbers=(1, 3, 4, 5))
