"""Repro bundles for the findings of a migration that a case shows. Not here: making one (suite.repro)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tapestry.migration.result import Finding
from tapestry.suite.case import Suite
from tapestry.suite.repro.make import folder_name, make_repros
from tapestry.suite.repro.search import Limits

Progress = Callable[[str, int, int], None]


def with_repros(
    findings: Sequence[Finding],
    suite: Suite,
    to: str,
    folder: Path,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> tuple[Finding, ...]:
    """The findings, with a bundle in a folder of its own in ``folder`` for each that a case of the suite shows.

    ``to`` is opened once more for it, so that a crash while reducing does not touch what was migrated. Raises
    UsageError when something else lies where a bundle is to be written.
    """
    made: dict[str, str] = {}
    for backend in dict.fromkeys(entry.backend for entry in findings if entry.case):
        cases = dict.fromkeys(entry.case for entry in findings if entry.case and entry.backend == backend)
        folders = {case: folder / folder_name(case) for case in cases}
        for repro in make_repros(suite, folders, to, backend, limits, progress):
            if repro.folder is not None:
                made[repro.case] = str(repro.folder)
    return tuple(msgspec.structs.replace(entry, repro=made.get(entry.case)) for entry in findings)
