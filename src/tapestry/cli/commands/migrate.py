"""``tapestry migrate``: move a model to a device, operator by operator, and show what happened."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from tapestry.cli import options
from tapestry.cli.console import block, err, number, out, percent, progress, size, table
from tapestry.cli.documents import FactDocument, MigrateDocument, write_json
from tapestry.cli.environment import environment, shown_command
from tapestry.cli.preflight import check_outputs, check_report, check_target
from tapestry.cli.watching import Moved, Round, watch
from tapestry.errors import UsageError
from tapestry.report.causes import group_findings
from tapestry.report.numbers import duration, of_roof

if TYPE_CHECKING:
    from tapestry.backends.base import Options
    from tapestry.migration.engine import Progress
    from tapestry.migration.migrate import Migrated
    from tapestry.migration.result import MigrationResult
    from tapestry.migration.warm import Warm
    from tapestry.migration.workbench import Workbench
    from tapestry.models.loaded import Fact, LoadedModel
    from tapestry.program.program import Program
    from tapestry.suite.audit.faults import FaultFile

#: The program of a model's own inputs, as ``capture_programs`` names it.
MAIN = "main"


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
    watched: Annotated[
        bool, typer.Option("--watch", help="Stay, and do it again whenever a kernel file is saved; Ctrl-C ends it.")
    ] = False,
) -> None:
    """Move MODEL to a device step by step, with the whole model checked at every step."""
    from tapestry.cli.choices import backend_options
    from tapestry.cli.modelling import capture_programs, load, load_kernel_files
    from tapestry.cli.places import journal_folder
    from tapestry.migration.warm import Warm
    from tapestry.migration.workbench import workbench
    from tapestry.suite.audit.faults import faults_named
    from tapestry.suite.journal import remove

    begin = time.perf_counter()
    if watched and not kernels:
        raise UsageError("--watch looks at kernel files: expected --kernels FILE.py, got none")
    check_outputs(json, report, output, repros / "bundle" if repros is not None else None)
    check_report(report)
    target = check_target(to, backend)
    load_kernel_files(kernels or ())
    chosen = backend_options(backend, option or ())
    faults = tuple(faults_named(entry) for entry in inject or ())
    loaded = load(model, trust_pickle)
    programs = capture_programs(loaded)
    injected = "".join(f" {entry.digest} {[fault.name for fault in entry.faults]}" for entry in faults)
    folder = journal or journal_folder(f"migrate {model} {target} {backend}{injected}")
    if fresh:
        remove(folder)

    job = _Job(
        model, loaded, programs, folder, chosen, faults, variants, nonfinite, repros, output, report, json,
        {name: Warm() for name in programs},
    )  # fmt: skip
    with workbench(to, backend) as bench, ExitStack() as stack:
        done = job.once(bench, stack, begin)
        code = done.code
        if watched:

            def again() -> Round:
                return job.once(bench, stack, time.perf_counter(), shown=False)

            code = watch(kernels or (), done, again, bench.resident.device.restart, job.warm)
    raise typer.Exit(code)


@dataclass(frozen=True)
class _Job:
    """What the command line asks for: a model's programs by name, how to migrate them, and what to write of it."""

    model: str
    loaded: LoadedModel
    programs: Mapping[str, Program]
    folder: Path
    options: Mapping[str, Options]
    faults: Sequence[FaultFile]
    variants: int
    nonfinite: bool
    repros: Path | None
    output: Path | None
    report: Path | None
    json: Path | None
    warm: Mapping[str, Warm]

    def once(self, bench: Workbench, stack: ExitStack, begin: float, shown: bool = True) -> Round:
        """Migrate, and write what was asked for. ``stack`` holds what the last time left on the device until then."""
        with progress(bars=shown) as tell, ExitStack() as opened:
            moved = {
                name: opened.enter_context(self._move(bench, name, _told_of(name, tell))) for name in self.programs
            }
            # What the model itself says takes minutes for some: not after each save of a kernel.
            facts = _compared(self.loaded, moved, tell) if shown else ()
            stack.close()
            stack.push(opened.pop_all())
        for note in dict.fromkeys(note for entry in moved.values() for note in entry.notes):
            err.print(f"note: {note}", soft_wrap=True)
        document = self._document(moved, facts, begin)
        documents = {name: _document_of(document, other, name) for name, other in document.programs.items()}
        self._write(document, documents, moved)
        if shown:
            _show_all(document, documents)
            self._show_files(tuple(documents))
        good = document.good and all(other.good for other in documents.values())
        code = 0 if good and all(fact.good for fact in facts) else 1
        return Round({name: Moved(entry.result, entry.replayed, entry.fresh) for name, entry in moved.items()}, code)

    def _move(self, bench: Workbench, name: str, tell: Progress) -> Migrated:
        from tapestry.migration.migrate import migrate as migrate_program

        return migrate_program(
            self.programs[name],
            inputs=self.loaded.inputs if name == MAIN else self.loaded.programs[name],
            journal=beside(self.folder, name),
            progress=tell,
            eager=self.loaded.module,
            variants=self.variants,
            nonfinite=self.nonfinite,
            options=self.options,
            repros=self.repros and beside(self.repros, name),
            inject=self.faults,
            bench=bench,
            warm=self.warm[name],
        )

    def _document(self, moved: Mapping[str, Migrated], facts: Sequence[Fact], begin: float) -> MigrateDocument:
        results = {name: entry.result for name, entry in moved.items()}
        result = results.pop(MAIN)
        counts = next((dict(fact.tokens) for fact in facts if fact.tokens is not None), None)
        result = structs.replace(result, check=structs.replace(result.check, tokens=counts))
        return MigrateDocument(
            **{name: getattr(result, name) for name in result.__struct_fields__},
            command="migrate",
            model=self.model,
            seconds=time.perf_counter() - begin,
            environment=environment(),
            facts=tuple(FactDocument(fact.label, fact.value, fact.good) for fact in facts),
            report=str(self.report) if self.report else None,
            journal=str(self.folder),
            injected=tuple(fault.name for entry in self.faults for fault in entry.faults),
            programs=results,
        )

    def _write(
        self, document: MigrateDocument, others: Mapping[str, MigrateDocument], moved: Mapping[str, Migrated]
    ) -> None:
        if self.output is not None:
            for name, entry in moved.items():
                entry.placement.save(beside(self.output, name))
        if self.report is not None:
            for name, entry in {MAIN: document, **others}.items():
                _write_report(beside(self.report, name), entry)
        if self.json is not None:
            write_json(self.json, document)

    def _show_files(self, others: Sequence[str]) -> None:
        files = (("report", self.report, True), ("JSON", self.json, False), ("placement", self.output, True))
        for label, path, each in files:
            if path is not None:
                out.print(f"{label}: {', '.join([str(path), *[str(beside(path, name)) for name in others if each]])}")


def _compared(loaded: LoadedModel, moved: Mapping[str, Migrated], tell: Progress) -> Sequence[Fact]:
    """What the model itself says of the moved one: all its programs, over one state."""
    from tapestry.models.together import Together

    if loaded.compare is None:
        return ()
    tell("comparing with the model", 0, 1)
    parts = [entry.executable for entry in moved.values()]
    facts = loaded.compare(loaded.module, Together(parts) if len(parts) > 1 else parts[0])
    tell("comparing with the model", 1, 1)
    return facts


def _show_all(document: MigrateDocument, others: Mapping[str, MigrateDocument]) -> None:
    for name, other in others.items():
        out.print(f"Program {name}\n", style="bold")
        _show(other)
        out.print()
    if others:
        out.print(f"Program {MAIN}\n", style="bold")
    _show(document)


def beside(path: Path, program: str) -> Path:
    """Where a program's file lies beside ``path``, that of ``main``: ``a.prefill.html`` for ``a.html``."""
    return path if program == MAIN else path.with_name(f"{path.stem}.{program}{path.suffix}")


def _told_of(program: str, tell: Progress) -> Progress:
    if program == MAIN:
        return tell
    return lambda stage, done, total: tell(f"{program}: {stage}", done, total)


def _document_of(document: MigrateDocument, result: MigrationResult, program: str) -> MigrateDocument:
    """The document of another of the model's programs: what the whole model says stays with ``main``."""
    own = {name: getattr(result, name) for name in result.__struct_fields__}
    return structs.replace(document, **own, model=f"{document.model} ({program})", facts=(), programs={})


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
    _show_missing(document)
    _show_check(document)


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
    share = f" ({of_roof(mixed.roof_share)} of its roofs)" if mixed.roof_share is not None else ""
    there = f"{duration(mixed.target_seconds)} on {result.target}{share}"
    out.print(f"a run now: {duration(mixed.source_seconds)} on the source, {there}")
    out.print("at roof: with a perfect kernel; likely: with one as near to its roof as those")
    if mixed.note:
        out.print(f"note: {mixed.note}")
    out.print()


#: What the causes of findings are called.
_CAUSES = {
    "replay": "a case: one operator on recorded values",
    "program": "the whole program, which is wrong with it although its cases pass",
    "merge": "compiling these nodes as one region; alone they are right, and run on the target",
    "kernel": "a case on a hand-written kernel; another backend takes over",
}


def _show_findings(result: MigrationResult) -> None:
    views = [view for group in group_findings(result.findings) for view in group.findings]
    if views:
        out.print(f"Findings: {len(result.findings)}, of {len(views)} causes\n")
    for entry in views:
        places = [entry.sources[0].full, *([f"and {len(entry.sources) - 1} more"] if len(entry.sources) > 1 else [])]
        count = f"{len(entry.nodes)} node" + ("s" if len(entry.nodes) > 1 else "")
        others = f"and {len(entry.others)} more with other numbers" if entry.others else ""
        block(
            f"{entry.number}. {entry.verdict}: {', '.join(entry.ops)} ({count})",
            [
                ("source", ", ".join(places)),
                ("found by", _CAUSES.get(entry.cause, entry.cause)),
                ("case", entry.case),
                ("reason", "; ".join(filter(None, (entry.reason, others)))),
                ("repro", ", ".join(entry.repros)),
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
