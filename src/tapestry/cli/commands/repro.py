"""``tapestry repro``: failing cases as small directories that a stranger can read and run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapestry.cli import options
from tapestry.cli.console import block, out, progress
from tapestry.cli.documents import ReproDocument, ReproEntry, read_replay, write_json
from tapestry.cli.environment import environment
from tapestry.cli.preflight import check_outputs, check_target
from tapestry.errors import UsageError

if TYPE_CHECKING:
    from tapestry.suite.case import Suite
    from tapestry.suite.repro.make import Repro


def repro(
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="A suite made by tapestry carve.")],
    case: Annotated[str, typer.Argument(metavar="[CASE]", help="A case's name, or a part that no other has.")] = "",
    to: options.To = "opencl",
    backend: options.Backend = "",
    kernels: options.Kernels = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="The bundle; of several, one each in it."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every case that fails in a replay.")] = False,
    replayed: Annotated[
        Path | None, typer.Option("--from", metavar="FILE.json", help="Every failure of a replay made before.")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", help="The most that reducing one case may take.", min=0)
    ] = 60.0,
    carved_only: Annotated[bool, typer.Option("--no-variants", help="Only the cases that were carved.")] = False,
    json: options.Json = None,
) -> None:
    """Reduce a failing case of SUITE on a device, and write it as a directory that anyone can run."""
    from tapestry.cli.modelling import load_kernel_files
    from tapestry.suite.derived import without_variants
    from tapestry.suite.repro.make import case_of, folder_name, make_repros
    from tapestry.suite.repro.search import Limits
    from tapestry.suite.store import load_suite

    begin = time.perf_counter()
    folder = _checked(case, output, every, replayed)
    check_outputs(json, folder.with_name(f".{folder.name}.bundle"))
    name = check_target(to, backend)
    load_kernel_files(kernels or ())
    loaded = load_suite(suite)
    if carved_only:
        loaded = without_variants(loaded)
    if case:
        folders = {case_of(loaded, case).id: folder}
    else:
        failing = _failures(replayed, name) if replayed else _replay(loaded, to, name, backend)
        folders = {entry: folder / folder_name(entry) for entry in failing}
    if not folders:
        out.print(f"no case fails on {name}: nothing was written")
    with progress() as tell:
        found = make_repros(loaded, folders, to, backend, Limits(seconds=seconds), tell) if folders else []
    for entry in found:
        _show(entry, name)
    if json is not None:
        document = ReproDocument(
            command="repro", model=loaded.info.program, seconds=time.perf_counter() - begin,
            environment=environment(), suite=str(suite), device=name, repros=[_entry(entry) for entry in found],
        )  # fmt: skip
        write_json(json, document)
    raise typer.Exit(1 if any(entry.failed for entry in found) else 0)


def _checked(case: str, output: Path | None, every: bool, replayed: Path | None) -> Path:
    """Where the bundles go. UsageError unless cases are named in one way, and where something else lies there."""
    if sum((bool(case), every, replayed is not None)) != 1:
        raise UsageError("expected one of: the name of a case, --all, or --from FILE.json")
    if output is None:
        raise UsageError("expected -o DIR: where to write the bundle")
    if not case and ((output / "repro.json").exists() or (output.exists() and not output.is_dir())):
        raise UsageError(
            f"expected a folder for several bundles at {output}, got something else; choose another with -o"
        )
    return output


def _failures(path: Path, name: str) -> list[str]:
    """The cases that failed in a replay on the device, or on its only one."""
    document = read_replay(path)
    same = [entry for entry in document.devices if entry.device == name]
    chosen = same or (document.devices if len(document.devices) == 1 else [])
    if not chosen:
        names = ", ".join(entry.device for entry in document.devices)
        raise UsageError(f"{path} is of {names or 'no device'}; expected {name} among them")
    return list(dict.fromkeys(failure.case for entry in chosen for failure in (*entry.failures, *entry.overruled)))


def _replay(suite: Suite, to: str, name: str, backend: str) -> list[str]:
    """The cases that fail now; what an earlier replay found is taken from its journal."""
    from tapestry.cli.places import journal_folder
    from tapestry.suite.journal import Journal
    from tapestry.suite.replay import replay as replay_suite

    subject = f"replay {suite.info.content_hash[:16]} on {name} {backend}"
    with Journal(journal_folder(subject), subject) as log, progress() as tell:
        found = replay_suite(suite, to, backend, log, tell)
    return list(dict.fromkeys(entry.case for entry in (*found.failures, *found.overruled)))


def _show(entry: Repro, name: str) -> None:
    if entry.folder is None:
        out.print(f"{entry.case} does not fail on {name} with {entry.backend} ({entry.verdict}): nothing was written")
        return
    block(
        f"{entry.verdict}: {entry.op}",
        [
            ("case", entry.case),
            ("reason", entry.reason),
            ("reduced", f"from {entry.before:,} to {entry.after:,} elements of input in {entry.runs} runs"),
            ("bundle", str(entry.folder)),
        ],
    )


def _entry(entry: Repro) -> ReproEntry:
    return ReproEntry(
        case=entry.case, op=entry.op, folder=None if entry.folder is None else str(entry.folder),
        verdict=entry.verdict, reason=entry.reason, backend=entry.backend, runs=entry.runs,
        elements_before=entry.before, elements_after=entry.after,
    )  # fmt: skip
