"""``migrate --watch``: after each save of a kernel file the migration again, and what that changed.

Files are looked at a few times a second: that costs nothing, and works wherever files are. Not here: which files
kernels are made of (backends.kernels.reading), and migrating.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from tapestry.cli.console import block, err, number, out
from tapestry.errors import DeviceLostError, TapestryError
from tapestry.suite.against import Change, Past, compare
from tapestry.suite.verdicts import ReplayResult, finite

if TYPE_CHECKING:
    from tapestry.backends.kernels.reading import Stamp
    from tapestry.migration.result import Finding, MigrationResult
    from tapestry.migration.warm import Warm

#: Seconds between two looks at the files.
_LOOK = 0.15


@dataclass(frozen=True)
class Moved:
    """What a migration of one program ended with. ``fresh`` counts cases and steps that the journal did not answer."""

    result: MigrationResult
    replayed: ReplayResult
    fresh: Mapping[str, int]


@dataclass(frozen=True)
class Round:
    """A migration of a model's programs, by name, and the exit code it would end with."""

    programs: Mapping[str, Moved]
    code: int


def watch(
    kernels: Sequence[Path],
    first: Round,
    again: Callable[[], Round],
    revive: Callable[[], None],
    warm: Mapping[str, Warm],
) -> int:
    """Migrate ``again`` whenever a kernel file, or a file that it reads, was saved, until Ctrl-C.

    What became of the cases is shown as soon as they are replayed, by ``warm`` (each program's); the rest when the
    migration is done. A file that does not load, and a migration that ends in an error, is reported; ``revive`` starts
    a lost device again. Returns the exit code of the last migration that ended.
    """
    from tapestry.backends.kernels.loading import reload_kernels

    last = first
    try:
        while True:
            out.print(f"\nwatching {', '.join(map(_shown, _known(kernels)))}; Ctrl-C ends it", soft_wrap=True)
            changed = _saved(lambda: _known(kernels))
            begin = time.perf_counter()
            out.print(f"saved: {', '.join(map(_shown, changed))}", soft_wrap=True)
            for name, entry in warm.items():
                entry.when_replayed = partial(_show_cases, name if len(warm) > 1 else "", last.programs[name], begin)
            try:
                reload_kernels(kernels)
                found = again()
            except TapestryError as error:
                err.print(Text.assemble(("error: ", "red"), str(error)), soft_wrap=True)
                if isinstance(error, DeviceLostError):
                    revive()
                continue
            _show(last, found, time.perf_counter() - begin)
            last = found
    except KeyboardInterrupt:
        out.print("watching ended")
    return last.code


def _known(kernels: Sequence[Path]) -> dict[str, Stamp]:
    """The files that kernel files are made of, and how they were when they were read."""
    from tapestry.backends.kernels.reading import files_read

    return {path: stamp for file in kernels for path, stamp in files_read(str(file.resolve())).items()}


def _saved(known: Callable[[], Mapping[str, Stamp]]) -> list[str]:
    """Wait until files are no longer as they were read, and no longer change either; returns their paths."""
    changed: dict[str, Stamp] = {}
    while True:
        time.sleep(_LOOK)
        before, changed = changed, dict(_changed(known()))
        if changed and changed == before:
            return list(changed)


def _changed(known: Mapping[str, Stamp]) -> Iterator[tuple[str, Stamp]]:
    from tapestry.backends.kernels.reading import Stamp

    for path, stamp in known.items():
        now = Stamp.of(path)
        # An editor may take a file away for a moment and put the new one in its place.
        if now not in (stamp, Stamp.NONE):
            yield path, now


def _shown(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def _show(before: Round, now: Round, seconds: float) -> None:
    cases = sum(entry.fresh.get("case", 0) for entry in now.programs.values())
    steps = sum(entry.fresh.get("step", 0) for entry in now.programs.values())
    total = sum(len(entry.result.steps) for entry in now.programs.values())
    for name, entry in now.programs.items():
        if len(now.programs) > 1:
            out.print(f"program {name}")
        _show_findings(before.programs[name].result.findings, entry.result.findings)
        _show_state(before.programs[name].result, entry.result)
    out.print(f"{cases} cases and {steps} of {total} steps were run again, {number(seconds, 3)} s", soft_wrap=True)


def _show_cases(program: str, before: Moved, begin: float, now: ReplayResult) -> None:
    """What became of cases, with an example for each operator."""
    found = compare(_past(before.replayed), _past(now))
    of = f" of {program}" if program else ""
    for word, changes in (("better", found.better), ("worse", found.worse)):
        by_op: dict[str, list[Change]] = {}
        for change in changes:
            by_op.setdefault(change.op, []).append(change)
        for op, entries in by_op.items():
            example = entries[0]
            reasons = {entry.case: entry.reason for entry in now.preferred if word == "worse"}
            block(
                f"{word}: {op}{of} in {len(entries)} {'case' if len(entries) == 1 else 'cases'}",
                [
                    ("case", example.case),
                    ("then", example.before),
                    ("now", example.now),
                    ("reason", reasons.get(example.case, "")),
                ],
            )
    if not (found.better or found.worse):
        out.print(f"no case{of} is better or worse")
    out.print(f"cases{of} after {number(time.perf_counter() - begin, 3)} s")


def _past(result: ReplayResult) -> list[Past]:
    return [
        Past(entry.case, entry.op, entry.verdict, finite(entry.metrics.max_rel), entry.imprecise)
        for entry in result.preferred
    ]


def _show_findings(before: Sequence[Finding], now: Sequence[Finding]) -> None:
    old = {(entry.nodes, entry.cause): entry for entry in before}
    new = {(entry.nodes, entry.cause): entry for entry in now}
    for key, entry in new.items():
        if key not in old or old[key].verdict != entry.verdict or old[key].reason != entry.reason:
            word = "finding" if key in old else "new finding"
            reason = "" if entry.case else entry.reason  # a case's reason was shown with it
            block(f"{word}: {entry.verdict}: {', '.join(entry.ops)} ({entry.cause})", [("reason", reason)])
    for key, entry in old.items():
        if key not in new:
            out.print(Text(f"gone: {entry.verdict}: {', '.join(entry.ops)} ({entry.cause})", style="bold"))


def _show_state(before: MigrationResult, now: MigrationResult) -> None:
    """Where the migration stands; numbers that changed stand beside what they were."""
    check = f"{'right' if now.check.good else 'WRONG'}, relative error {number(now.check.max_rel_error, 3)}"
    bound = f"of {number(now.check.bound, 3)} allowed"
    numbers = (
        ("findings", len(before.findings), len(now.findings)),
        (
            f"of {now.coverage.compute_total} compute nodes on {now.target}", before.coverage.compute_on_target,
            now.coverage.compute_on_target,
        ),
        ("launches per run", before.coverage.launches, now.coverage.launches),
    )  # fmt: skip
    counted = "; ".join(f"{value} {what}{f' ({was} before)' if was != value else ''}" for what, was, value in numbers)
    out.print(f"the whole model is {check} {bound}; {counted}", soft_wrap=True)
