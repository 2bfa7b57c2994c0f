"""A bundle on disk: written beside its place, then renamed there, so that it is whole or not there.

Not here: what is in the files (script, readme, record, single).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tapestry.errors import FormatError, UsageError
from tapestry.suite.case import Suite
from tapestry.suite.repro.record import FORMAT, RECORD, SUITE, VERSION, ReproRecord
from tapestry.suite.store import save_suite

_TEMPORARY = ".writing-"


def check_folder(folder: Path) -> None:
    """UsageError when a bundle cannot be written to this folder: something else lies there."""
    if folder.is_symlink() or (folder.exists() and not _is_ours(folder)):
        raise UsageError(
            f"expected a new folder or an old repro bundle at {folder}, got something else; choose another with -o"
        )


def write_bundle(folder: Path, record: ReproRecord, files: Mapping[str, bytes], suite: Suite) -> None:
    """Write a bundle, in place of an older one. UsageError when the folder holds something else or cannot be written.

    A process that is killed leaves the old bundle, or the new one, and at most a temporary folder beside it.
    """
    check_folder(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{folder.name[:64]}-", dir=folder.parent))
    except OSError as error:
        raise UsageError(f"cannot write a repro bundle at {folder}: {error.strerror or error}") from error
    try:
        for name, data in files.items():
            (temporary / name).write_bytes(data)
        save_suite(suite, temporary / SUITE)
        data = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
        (temporary / RECORD).write_bytes(data)
        _open_to_others(temporary)
        _put(temporary, folder)
    except OSError as error:
        raise UsageError(f"cannot write a repro bundle at {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_record(folder: Path) -> ReproRecord:
    """The record of a bundle. UsageError when there is none; FormatError when it is damaged or of a newer version."""
    try:
        data = (folder / RECORD).read_bytes()
    except OSError as error:
        raise UsageError(f"expected a repro bundle (a folder with {RECORD}) at {folder}, got none") from error
    try:
        found = msgspec.json.decode(data, type=ReproRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{folder / RECORD} is not the record of a repro bundle: {error}") from error
    if found.format != FORMAT or found.version > VERSION:
        raise FormatError(f"{folder / RECORD}: expected {FORMAT} up to version {VERSION}; update tapestry-ml")
    return found


def _is_ours(folder: Path) -> bool:
    """An empty folder, or a bundle of this or any other version."""
    if not folder.is_dir():
        return False
    if not any(folder.iterdir()):
        return True
    try:
        header = msgspec.json.decode((folder / RECORD).read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False
    return header.get("format") == FORMAT


def _put(temporary: Path, folder: Path) -> None:
    """Rename the new bundle to its place; the old one is moved away first, and deleted last."""
    if not folder.exists():
        temporary.rename(folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}old-", dir=folder.parent))
    try:
        folder.rename(old / "bundle")
        try:
            temporary.rename(folder)
        except OSError:
            (old / "bundle").rename(folder)
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _open_to_others(folder: Path) -> None:
    """The usual permissions, which temporary folders and files do not have."""
    probe = folder / ".probe"
    probe.mkdir()
    allowed = probe.stat().st_mode & 0o777
    probe.rmdir()
    folder.chmod(allowed)
    for entry in folder.rglob("*"):
        entry.chmod(allowed if entry.is_dir() else allowed & 0o666)
