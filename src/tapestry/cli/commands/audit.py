"""``tapestry audit``: how many known faults of platforms a suite would find."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapestry.cli import options
from tapestry.cli.console import block, number, out, percent, progress, table
from tapestry.cli.documents import AuditDocument, write_json
from tapestry.cli.environment import environment
from tapestry.cli.preflight import check_outputs

if TYPE_CHECKING:
    from tapestry.suite.audit.result import AuditResult


def audit(
    suite: Annotated[
        Path | None,
        typer.Argument(metavar="[SUITE]", help="A suite made by tapestry carve; without one, schemas give all cases."),
    ] = None,
    faults: Annotated[
        Path | None, typer.Option("--faults", metavar="FILE.py", help="The faults: a file of Python objects. Required.")
    ] = None,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", metavar="NAME", help="Only this fault of the file; repeatable.")
    ] = None,
    no_variants: Annotated[bool, typer.Option("--no-variants", help="Without derived cases, to compare.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="At most this long for a fault.")] = 60.0,
    json: options.Json = None,
    journal: options.JournalDir = None,
    fresh: options.Fresh = False,
) -> None:
    """Try the faults of a file against SUITE: which of them would its cases find (mutation testing)?

    For an operator that a fault names and the suite lacks, cases are made from the operator's schema.
    """
    from tapestry.cli.places import journal_folder
    from tapestry.errors import UsageError
    from tapestry.suite.audit.run import audit as run_audit
    from tapestry.suite.journal import Journal, remove
    from tapestry.suite.store import load_suite

    begin = time.perf_counter()
    check_outputs(json)
    if faults is None:
        raise UsageError("expected the faults to try, got none; name a file with --faults FILE.py")
    if suite is not None:
        load_suite(suite)  # whole and readable, before any worker starts
    subject = f"audit {suite.resolve() if suite else 'schemas'} with {faults.resolve()}"
    folder = journal or journal_folder(subject)
    if fresh:
        remove(folder)
    with Journal(folder, subject) as log, progress() as tell:
        result = run_audit(suite, faults, fault or (), not no_variants, seconds, journal=log, progress=tell)
    _show(result)
    if json is not None:
        document = AuditDocument(
            **{name: getattr(result, name) for name in result.__struct_fields__},
            command="audit", seconds=time.perf_counter() - begin, environment=environment(),
            suite=str(suite) if suite else None, file=str(faults),
        )  # fmt: skip
        write_json(json, document)
    raise typer.Exit(0 if result.good else 1)


def _show(result: AuditResult) -> None:
    rows = [
        [name, str(entry.faults), str(entry.killed), percent(entry.rate)] for name, entry in result.by_class.items()
    ]
    rows.append(["all", str(result.faults), str(result.killed), percent(result.rate)])
    title = "Faults found" if result.variants else "Faults found without variants"
    table(title, ("class", "faults", "found", "share"), rows, numbers=(1, 2, 3))
    for entry in result.survivors:
        block(f"not found: {entry.fault} ({entry.op})", [("why", entry.why)])
    if result.survivors:
        out.print()
    cases = sum(entry.cases for entry in result.results)
    out.print(f"{cases:,} cases tried, {number(sum(entry.seconds for entry in result.results), 3)} s of work")
