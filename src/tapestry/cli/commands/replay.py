"""``tapestry replay``: a suite on one or more devices."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapestry.cli import options
from tapestry.cli.console import block, number, out, progress
from tapestry.cli.documents import ErrorDocument, FailureDocument, ReplayDocument, ReplayedDevice, write_json
from tapestry.cli.environment import environment
from tapestry.cli.preflight import check_outputs, check_target

if TYPE_CHECKING:
    from tapestry.suite.verdicts import ReplayResult


def replay(
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="A suite made by tapestry carve.")],
    to: Annotated[list[str] | None, typer.Option("--to", metavar="DEVICE", help="A target; may be repeated.")] = None,
    backend: options.Backend = "",
    kernels: options.Kernels = None,
    json: options.Json = None,
    journal: options.JournalDir = None,
    fresh: options.Fresh = False,
    carved_only: Annotated[bool, typer.Option("--no-variants", help="Only the cases that were carved.")] = False,
) -> None:
    """Replay SUITE on devices and judge every case."""
    from tapestry.cli.modelling import load_kernel_files
    from tapestry.cli.places import journal_folder
    from tapestry.suite.derived import without_variants
    from tapestry.suite.journal import Journal, remove
    from tapestry.suite.replay import replay as replay_suite
    from tapestry.suite.store import load_suite

    begin = time.perf_counter()
    check_outputs(json)
    targets = {device: check_target(device, backend) for device in to or ["opencl"]}
    load_kernel_files(kernels or ())
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
            found.append(replay_suite(loaded, device, backend, log, tell))
    for result in found:
        _show(result)
    if json is not None:
        document = ReplayDocument(
            command="replay", model=loaded.info.program, seconds=time.perf_counter() - begin,
            environment=environment(), suite=str(suite), devices=[_document(result) for result in found],
        )  # fmt: skip
        write_json(json, document)
    raise typer.Exit(0 if all(result.good for result in found) else 1)


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
    counted = ", ".join(f"{count} {verdict}" for verdict, count in result.verdicts.items() if count)
    latent = f"; {len(result.latent)} of the failures are latent" if result.latent else ""
    out.print(f"{len(result.results)} cases on {result.device}: {counted}{latent}")
    slowest = max((entry.seconds for entry in result.results), default=0.0)
    out.print(f"slowest case {number(slowest)} s")


def _document(result: ReplayResult) -> ReplayedDevice:
    failures = [
        FailureDocument(
            entry.case, entry.op, entry.variant, entry.verdict,
            ErrorDocument(entry.metrics.max_ulp, entry.metrics.max_rel, entry.metrics.nmse), entry.reason,
            entry.kind, entry.latent,
        )
        for entry in result.failures
    ]  # fmt: skip
    variants = sum(bool(entry.variant) for entry in result.results)
    return ReplayedDevice(
        result.device, result.backend, len(result.results), result.verdicts, failures, variants, len(result.latent)
    )
