"""``tapestry migrate``: move a model to a device, operator by operator, and show what happened."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from tapestry.cli import options
from tapestry.cli.console import block, number, out, percent, progress, size, table
from tapestry.cli.documents import FactDocument, MigrateDocument, write_json
from tapestry.cli.environment import environment, shown_command
from tapestry.cli.preflight import check_outputs, check_report, check_target

if TYPE_CHECKING:
    from tapestry.migration.result import MigrationResult
from tapestry.report.numbers import duration, of_roof


def migrate(
    model: options.Model,
    to: options.To = "opencl",
    backend: options.Backend = "",
    option: options.Option = None,
    kernels: options.Kernels = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Store the placement reached, as JSON.")
    ] = None,
    report: options.Report = None,
    json: options.Json = None,
    journal: options.JournalDir = None,
    fresh: options.Fresh = False,
    trust_pickle: options.TrustPickle = False,
    variants: Annotated[
        int, typer.Option("--variants", metavar="N", help="Other values to try each operator on.", min=0)
    ] = 16,
    nonfinite: Annotated[
        bool, typer.Option("--nonfinite", help="NaN and infinities decide although the model was not seen to have any.")
    ] = False,
    repros: Annotated[
        Path | None, typer.Option("--repro", metavar="DIR", help="Write a repro bundle for every wrong operator.")
    ] = None,
    inject: Annotated[
        list[str] | None,
        typer.Option(
            "--inject", metavar="FILE.py:NAME[,NAME…]", help="Give the target these faults, to see them found."
        ),
    ] = None,
) -> None:
    """Move MODEL to a device step by step, with the whole model checked at every step."""
    from tapestry.cli.choices import backend_options
    from tapestry.cli.modelling import capture_model, load, load_kernel_files
    from tapestry.cli.places import journal_folder
    from tapestry.migration.migrate import migrate as migrate_program
    from tapestry.suite.audit.faults import faults_named
    from tapestry.suite.journal import remove

    begin = time.perf_counter()
    check_outputs(json, report, output, repros / "bundle" if repros is not None else None)
    check_report(report)
    target = check_target(to, backend)
    load_kernel_files(kernels or ())
    chosen = backend_options(backend, option or ())
    faults = tuple(faults_named(entry) for entry in inject or ())
    loaded = load(model, trust_pickle)
    program = capture_model(loaded)
    injected = "".join(f" {entry.digest} {[fault.name for fault in entry.faults]}" for entry in faults)
    folder = journal or journal_folder(f"migrate {model} {program.graph_hash} {target} {backend}{injected}")
    if fresh:
        remove(folder)
    with (
        progress() as tell,
        migrate_program(
            program,
            to,
            loaded.inputs,
            backend,
            journal=folder,
            progress=tell,
            eager=loaded.module,
            variants=variants,
            nonfinite=nonfinite,
            options=chosen,
            repros=repros,
            inject=faults,
        ) as moved,
    ):
        facts = loaded.compare(loaded.module, moved.executable) if loaded.compare is not None else ()
        if output is not None:
            moved.placement.save(output)
        counts = next((dict(fact.tokens) for fact in facts if fact.tokens is not None), None)
        result = structs.replace(moved.result, check=structs.replace(moved.result.check, tokens=counts))
    document = MigrateDocument(
        **{name: getattr(result, name) for name in result.__struct_fields__},
        command="migrate",
        model=model,
        seconds=time.perf_counter() - begin,
        environment=environment(),
        facts=tuple(FactDocument(fact.label, fact.value, fact.good) for fact in facts),
        report=str(report) if report else None,
        journal=str(folder),
        injected=tuple(fault.name for entry in faults for fault in entry.faults),
    )
    if report is not None:
        _write_report(report, document)
    if json is not None:
        write_json(json, document)
    _show(document)
    for label, path in (("report", report), ("JSON", json), ("placement", output)):
        if path is not None:
            out.print(f"{label}: {path}")
    raise typer.Exit(0 if document.good and all(fact.good for fact in document.facts) else 1)


def _write_report(path: Path, document: MigrateDocument) -> None:
    from tapestry.report import ReportHeader, write_report

    header = ReportHeader(
        model=document.model or "",
        date=datetime.now(UTC).astimezone(),
        command=shown_command(),
        environment=document.environment,
        seconds=document.seconds,
        facts=tuple((fact.label, fact.value) for fact in document.facts),
    )
    write_report(path, document, header)


def _show(document: MigrateDocument) -> None:
    from tapestry.cli.tables import operators_table

    operators_table(f"Replayed on {document.target} with {document.backend}", document.operators)
    _show_findings(document)
    _show_latent(document)
    coverage = document.coverage
    rows = [
        ["nodes", percent(coverage.nodes)],
        [
            "compute nodes",
            f"{percent(coverage.compute_nodes)} ({coverage.compute_on_target} of {coverage.compute_total})"
            if coverage.compute_total
            else "the model has none",
        ],
        ["FLOPs", percent(coverage.flops)],
        ["bytes moved by operators", percent(coverage.bytes)],
        ["transfers per run", _transfers(document)],
        ["launches per run", str(coverage.launches)],
    ]
    table(f"On {document.target}, counted from the driver's launch log", ("", ""), rows, numbers=(1,))
    _show_check(document)


#: What the causes of findings are called.
_CAUSES = {
    "replay": "a case: one operator on recorded values",
    "program": "the whole program, which is wrong with it although its cases pass",
    "merge": "compiling these nodes as one region; alone they are right, and run on the target",
}


def _show_findings(result: MigrationResult) -> None:
    if result.findings:
        out.print(f"Findings: {len(result.findings)}\n")
    for number_, entry in enumerate(result.findings, 1):
        places = [entry.sources[0], *([f"and {len(entry.sources) - 1} more"] if len(entry.sources) > 1 else [])]
        count = f"{len(entry.nodes)} node" + ("s" if len(entry.nodes) > 1 else "")
        block(
            f"{number_}. {entry.verdict}: {', '.join(entry.ops)} ({count})",
            [
                ("source", ", ".join(places)),
                ("found by", _CAUSES.get(entry.cause, entry.cause)),
                ("reason", entry.reason),
                ("repro", entry.repro or ""),
            ],
        )
    if result.findings:
        out.print()
    found = {node for entry in result.findings for node in entry.nodes}
    others = [entry for entry in result.blocked if entry.node not in found]
    by_reason: dict[str, list[str]] = {}
    for entry in others:
        by_reason.setdefault(entry.reason, []).append(entry.node)
    for reason, nodes in by_reason.items():
        shown = ", ".join(nodes[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")
        block(f"Stays on the source: {len(nodes)}", [("reason", reason), ("nodes", shown)])
    if others:
        out.print()


def _show_latent(result: MigrationResult) -> None:
    if not result.latent:
        return
    rows = [
        [entry.op.removeprefix("aten.").removesuffix(".default"), entry.variant, entry.verdict, entry.reason]
        for entry in result.latent
    ]
    table(
        f"Latent: {len(rows)} failing on values that this model was not seen to have; nothing stays back for them",
        ("operator", "variant", "verdict", "reason"), rows,
    )  # fmt: skip


def _show_check(document: MigrateDocument) -> None:
    check = document.check
    resumed = sum(step.resumed for step in document.steps)
    rows = [
        ["relative error against the oracle (float64)", number(check.max_rel_error, 3)],
        ["allowed: the larger of 1e-05 and 4 times the source's own", number(check.bound, 3)],
        ["the source's own error against the oracle", number(check.source_error, 3)],
        ["relative error against the source", number(check.against_source, 3)],
        ["cosine", f"{check.cosine:.9f}"],
        *[[fact.label, fact.value if fact.good else f"{fact.value}  (wrong)"] for fact in document.facts],
    ]
    nothing = not any(record.place == "target" for record in document.nodes)
    state = f"right, but nothing of it runs on {document.target}" if nothing else "right"
    table("The whole model on all inputs: " + (state if check.good else "WRONG"), ("", ""), rows, numbers=(1,))
    suite = document.suite
    out.print(
        f"{suite.cases} cases, {suite.variants} of them variants ({size(suite.bytes)}; every call would take "
        f"{size(suite.dump_bytes)}), {len(document.steps)} steps ({resumed} from the journal), "
        f"{document.program_runs} program runs (at most {document.runs_allowed}), {number(document.seconds, 3)} s"
    )
    _show_missing(document)


def _transfers(result: MigrationResult) -> str:
    coverage, mixed = result.coverage, result.mixed
    cost = f", {duration(mixed.transfer_seconds)}" if mixed and mixed.transfer_seconds is not None else ""
    return f"{coverage.transfers} ({size(coverage.transfer_bytes)}){cost}"


def _show_missing(result: MigrationResult) -> None:
    mixed = result.mixed
    if mixed is None or not result.missing:
        return
    rows = [
        [
            entry.op.removeprefix("aten.").removesuffix(".default"),
            str(len(entry.nodes)),
            percent(entry.flops_share),
            duration(entry.source_seconds),
            f"{entry.transfers}: {duration(entry.transfer_seconds)}" if entry.movable else "",
            duration(entry.gain_seconds) if entry.movable else "cannot move",
            duration(entry.likely_gain_seconds) if entry.movable else "",
        ]
        for entry in result.missing
    ]
    table(
        f"Missing on {result.target}: what each operator alone would gain there in a run",
        ("operator", "nodes", "FLOPs", "on source", "transfers", "at roof", "likely"), rows, numbers=(1, 2, 3, 4, 5, 6),
    )  # fmt: skip
    share = f", at {of_roof(mixed.roof_share)} of its roofs" if mixed.roof_share is not None else ""
    out.print(
        f"a run now: {duration(mixed.source_seconds)} on the source, {duration(mixed.target_seconds)} on "
        f"{result.target}{share}; at roof: as a kernel there would; likely: as the others do"
    )
    if mixed.note:
        out.print(f"note: {mixed.note}")
    out.print()
