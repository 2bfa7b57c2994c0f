"""``tapestry replay``: a suite on one or more devices."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapestry.cli import options
from tapestry.cli.console import block, number, out, progress, table
from tapestry.cli.documents import (
    ErrorDocument,
    FailureDocument,
    ReplayDocument,
    ReplayedDevice,
    read_replay,
    write_file,
    write_json,
)
from tapestry.cli.environment import environment, shown_command
from tapestry.cli.preflight import check_outputs, check_report, check_target
from tapestry.errors import UsageError
from tapestry.suite.against import Comparison, Past, compare
from tapestry.suite.junit import as_junit
from tapestry.suite.side_by_side import Example, OnDevice, OperatorRow, side_by_side
from tapestry.suite.verdicts import finite

if TYPE_CHECKING:
    from tapestry.suite.verdicts import CaseResult, ReplayResult


def replay(
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="A suite made by tapestry carve.")],
    to: Annotated[list[str] | None, typer.Option("--to", metavar="DEVICE", help="A target; may be repeated.")] = None,
    backend: options.Backend = "",
    option: options.Option = None,
    kernels: options.Kernels = None,
    json: options.Json = None,
    journal: options.JournalDir = None,
    fresh: options.Fresh = False,
    carved_only: Annotated[bool, typer.Option("--no-variants", help="Only the cases that were carved.")] = False,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="OLD.json", help="Show what got better and worse since.")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML.")] = None,
    report: options.Report = None,
) -> None:
    """Replay SUITE on devices and judge every case."""
    from tapestry.cli.choices import backend_options
    from tapestry.cli.modelling import load_kernel_files
    from tapestry.cli.places import journal_folder
    from tapestry.suite.derived import without_variants
    from tapestry.suite.journal import Journal, remove
    from tapestry.suite.replay import replay as replay_suite
    from tapestry.suite.store import load_suite

    begin = time.perf_counter()
    check_outputs(json, junit, report)
    check_report(report)
    old = read_replay(against) if against else None
    targets = {device: check_target(device, backend) for device in to or ["opencl"]}
    load_kernel_files(kernels or ())
    chosen = backend_options(backend, option or ())
    loaded = load_suite(suite)
    if carved_only:
        loaded = without_variants(loaded)
    found: list[ReplayResult] = []
    for device, name in targets.items():
        subject = f"replay {loaded.info.content_hash[:16]} on {name} {backend}"
        folder = (journal / re.sub(r"\W+", "-", name)) if journal else journal_folder(subject)
        if fresh:
            remove(folder)
        with Journal(folder, subject) as log, progress() as tell:
            found.append(replay_suite(loaded, device, backend, log, tell, chosen))
    documents = [_document(result, old) for result in found]
    for result, entry in zip(found, documents, strict=True):
        _show(result)
        _show_comparison(entry.against, against)
    rows = side_by_side(found) if len(found) > 1 else ()
    _show_side_by_side(rows)
    if report is not None:
        _write_report(report, found, loaded.info.program or str(suite), time.perf_counter() - begin)
    if junit is not None:
        write_file(junit, as_junit(found))
    if json is not None:
        document = ReplayDocument(
            command="replay", model=loaded.info.program, seconds=time.perf_counter() - begin,
            environment=environment(), suite=str(suite), devices=documents,
            differing=[row for row in rows if row.differs],
        )  # fmt: skip
        write_json(json, document)
    raise typer.Exit(0 if all(result.good for result in found) else 1)


def _write_report(path: Path, found: list[ReplayResult], suite: str, seconds: float) -> None:
    from tapestry.report import ReportHeader, write_replay_report

    header = ReportHeader(suite, datetime.now(UTC).astimezone(), "", shown_command(), seconds, environment())
    write_replay_report(path, found, header)
    out.print(f"report: {path}")


def _show(result: ReplayResult) -> None:
    from tapestry.cli.tables import operators_table

    operators_table(f"{result.device} with {result.backend}", result.results)
    for entry in result.failures:
        block(
            f"{entry.verdict}: {entry.op}{' (latent)' if entry.latent else ''}",
            [("case", entry.case), ("variant", entry.variant), ("reason", entry.reason)],
        )
    if result.failures:
        out.print()
    _show_overruled(result)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in result.verdicts.items() if count)
    latent = f"; {len(result.latent)} of the failures are latent" if result.latent else ""
    out.print(f"{len(result.results)} cases on {result.device}: {counted}{latent}")
    slowest = max((entry.seconds for entry in result.results), default=0.0)
    out.print(f"slowest case {number(slowest)} s")


def _show_overruled(result: ReplayResult) -> None:
    """What a preferred backend got wrong, one entry for each operator and reason: the results are of another one."""
    groups: dict[tuple[str, str, str], list[CaseResult]] = {}
    for entry in result.overruled:
        groups.setdefault((entry.op, entry.backend, entry.verdict), []).append(entry)
    for (op, backend, verdict), entries in groups.items():
        more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
        block(
            f"{verdict}: {op} by {backend}, so that another backend is asked",
            [("cases", f"{entries[0].case}{more}"), ("reason", entries[0].reason)],
        )
    if groups:
        out.print()


def _show_comparison(found: Comparison | None, path: Path | None) -> None:
    if found is None:
        return
    for what, changes in (("worse", found.worse), ("better", found.better)):
        if changes:
            rows = [[entry.case, entry.before, entry.now] for entry in changes]
            table(f"{len(changes)} {what} than in {path}", ("case", "then", "now"), rows)
    counts = f"{len(found.worse)} worse, {len(found.better)} better"
    others = f"{len(found.added)} cases are new, {len(found.gone)} are gone"
    out.print(f"against {path}: {counts}; {others}")


def _show_side_by_side(rows: Sequence[OperatorRow]) -> None:
    """One line per operator, one column per device; what they disagree on is marked, and shown by a case of it."""
    if not rows:
        return
    columns = ("", "operator", *(entry.device for entry in rows[0].devices))
    lines = [
        [
            "*" if row.differs else "",
            row.op.removeprefix("aten.").removesuffix(".default"),
            *(_on_device(entry) for entry in row.devices),
        ]
        for row in rows
    ]
    table("Side by side: verdicts and the worst NMSE; * where devices differ", columns, lines)
    differing = [row for row in rows if row.differs]
    for row in differing:
        examples = [(entry.device, _example(entry)) for entry in row.examples]
        cases = "one case" if row.count == 1 else f"{row.count} cases"
        block(f"differs in the {row.differs} of {cases}: {row.op}", [("case", row.case), *examples])
    if differing:
        out.print()
    out.print(f"{len(differing)} of {len(rows)} operators differ between the devices")


def _on_device(entry: OnDevice) -> str:
    counted = ", ".join(f"{count} {verdict}" for verdict, count in sorted(entry.verdicts.items())) or "not there"
    return f"{counted} {number(entry.nmse)}" if entry.nmse else counted


def _example(entry: Example) -> str:
    error = f", NMSE {number(entry.nmse)}" if entry.nmse else ""
    return f"{entry.verdict}{error}{': ' if entry.reason else ''}{entry.reason}"


def _past(result: ReplayResult) -> list[Past]:
    return [
        Past(entry.case, entry.op, entry.verdict, finite(entry.metrics.max_rel), entry.imprecise)
        for entry in result.preferred
    ]


def _compared(result: ReplayResult, old: ReplayDocument | None) -> Comparison | None:
    """Against the same device of the older replay, or its only one."""
    if old is None:
        return None
    same = [entry for entry in old.devices if entry.device == result.device]
    chosen = same or (old.devices if len(old.devices) == 1 else [])
    if not chosen:
        names = ", ".join(entry.device for entry in old.devices)
        raise UsageError(f"the older replay is of {names or 'no device'}; expected {result.device} among them")
    return compare(chosen[0].results, _past(result))


def _document(result: ReplayResult, old: ReplayDocument | None) -> ReplayedDevice:
    failures = [_failure(entry) for entry in result.failures]
    variants = sum(bool(entry.variant) for entry in result.results)
    return ReplayedDevice(
        result.device, result.backend, len(result.results), result.verdicts, failures, variants, len(result.latent),
        _past(result), _compared(result, old), [_failure(entry) for entry in result.overruled],
    )  # fmt: skip


def _failure(entry: CaseResult) -> FailureDocument:
    error = ErrorDocument(entry.metrics.max_ulp, entry.metrics.max_rel, entry.metrics.nmse)
    return FailureDocument(
        entry.case, entry.op, entry.variant, entry.verdict, error, entry.reason, entry.kind, entry.latent, entry.backend
    )
