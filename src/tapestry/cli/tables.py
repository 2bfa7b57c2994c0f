"""Tables that several commands print."""

from __future__ import annotations

from collections.abc import Iterable

from tapestry.cli.console import number, out, table
from tapestry.suite.verdicts import CaseResult, OperatorSummary, by_operator


def operators_table(title: str, results: Iterable[CaseResult] | Iterable[OperatorSummary]) -> None:
    """One row per operator: cases, verdicts, worst errors over its cases."""
    entries = list(results)
    summaries = [entry for entry in entries if isinstance(entry, OperatorSummary)] or by_operator(
        entry for entry in entries if isinstance(entry, CaseResult)
    )
    rows = [
        [
            entry.op.removeprefix("aten.").removesuffix(".default"),
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
    if any(entry.worst.max_rel > 1e-3 and entry.verdicts.get("pass") for entry in summaries):
        out.print(
            "max rel is large where the right value is near 0; an operator's error bound decides, not this number\n"
        )
