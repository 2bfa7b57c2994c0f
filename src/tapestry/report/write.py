"""Writing a report to a file, whole or not at all. Not here: what is in it (page)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tapestry.errors import UsageError
from tapestry.migration.result import MigrationResult
from tapestry.profiling.result import ProfileResult
from tapestry.report.header import ReportHeader
from tapestry.report.page import render_migration, render_profile, render_replay
from tapestry.suite.verdicts import ReplayResult


def write_report(path: Path | str, result: MigrationResult, header: ReportHeader) -> None:
    """Write a migration's report as one HTML file that loads nothing else. An older file is replaced atomically.

    UsageError when the path cannot be written; EnvironmentProblem when jinja2 is missing (extra ``report``).
    """
    _write(Path(path), render_migration(result, header))


def write_replay_report(path: Path | str, results: Sequence[ReplayResult], header: ReportHeader) -> None:
    """The same for the replay of a suite on some devices."""
    _write(Path(path), render_replay(results, header))


def write_profile_report(path: Path | str, result: ProfileResult, header: ReportHeader) -> None:
    """The same for a profile."""
    _write(Path(path), render_profile(result, header))


def _write(target: Path, text: str) -> None:
    # A lone surrogate (a file name that is not UTF-8) cannot be encoded; it is shown as a question mark.
    page = text.encode("utf-8", "replace")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, page)
    except OSError as error:
        raise UsageError(f"cannot write the report to {target}: {error.strerror or error}") from error


def _replace(target: Path, data: bytes) -> None:
    """Write beside the target, then rename over it; nothing is left behind when that fails."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # mkstemp keeps others out; a report is an ordinary file.
        Path(name).chmod(0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
