"""Suites on disk: ``suite.json`` and ``tensors.safetensors`` in one directory, checksummed, written atomically.

Not here: what a suite is (case). Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tapestry.errors import FormatError, UsageError
from tapestry.suite.case import SAME_AS_SOURCE, Case, LeftOut, Suite, SuiteInfo

FORMAT = "tapestry-suite"
VERSION = 1
_MANIFEST = "suite.json"
_TENSORS = "tensors.safetensors"


class _Manifest(msgspec.Struct):
    format: str
    version: int
    info: SuiteInfo
    cases: list[Case]
    left_out: list[LeftOut]
    tensors_sha256: str
    cases_sha256: str


class _Header(msgspec.Struct):
    """The part of the manifest that every version has."""

    format: str = ""
    version: int = 0


def save_suite(suite: Suite, path: Path) -> int:
    """Write the suite to a directory, replacing what a suite there held; returns its bytes on disk.

    Either the whole new suite is there afterwards or the old one. UsageError when the path cannot be written or
    holds something else.
    """
    if path.exists() and not (path / _MANIFEST).exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"expected a new directory or an old suite at {path}, got something else; choose another path")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise UsageError(f"cannot store a suite at {path}: {error}") from error
    try:
        written = _write(suite, fresh)
        _swap(fresh, path)
    except OSError as error:
        raise UsageError(f"cannot store a suite at {path}: {error}; the old content is untouched") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return written


def _write(suite: Suite, folder: Path) -> int:
    tensors_file = folder / _TENSORS
    try:
        save_file(_apart(suite.tensors), tensors_file)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    manifest = _Manifest(
        FORMAT, VERSION, suite.info, list(suite.cases), list(suite.left_out), file_sha256(tensors_file),
        _cases_digest(suite.cases),
    )  # fmt: skip
    manifest_file = folder / _MANIFEST
    manifest_file.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    for file in (tensors_file, manifest_file):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    return tensors_file.stat().st_size + manifest_file.stat().st_size


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors contiguous and in memory of their own, which is what safetensors takes; copied only where needed."""
    taken: set[int] = set()
    found: dict[str, torch.Tensor] = {}
    for digest, tensor in tensors.items():
        plain = tensor.contiguous()
        if plain.untyped_storage().data_ptr() in taken:
            plain = plain.clone()
        taken.add(plain.untyped_storage().data_ptr())
        found[digest] = plain
    return found


def _swap(fresh: Path, path: Path) -> None:
    if not path.exists():
        fresh.rename(path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
    path.rename(old / "suite")
    try:
        fresh.rename(path)
    except OSError:
        (old / "suite").rename(path)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def load_suite(path: Path) -> Suite:
    """Read a suite. UsageError when there is none; FormatError when it is damaged, truncated or of a newer version."""
    if not path.is_dir() or not (path / _MANIFEST).exists():
        raise UsageError(f"expected a suite (a directory with {_MANIFEST}) at {path}, got none; `tapestry carve` makes one")
    manifest = _read_manifest(path / _MANIFEST)
    tensors_file = path / _TENSORS
    if not tensors_file.exists():
        raise FormatError(f"{path} has no {_TENSORS}: the suite is incomplete; carve it again")
    found = file_sha256(tensors_file)
    if found != manifest.tensors_sha256:
        raise FormatError(
            f"{tensors_file} is damaged: expected sha256 {manifest.tensors_sha256[:12]}…, got {found[:12]}…; "
            "carve it again or restore the file"
        )
    try:
        tensors = load_file(tensors_file)
    except SafetensorError as error:
        raise FormatError(f"{tensors_file} cannot be read: {error}; carve it again") from error
    _check_references(manifest.cases, tensors, path)
    return Suite(manifest.info, tuple(manifest.cases), tensors, tuple(manifest.left_out))


def _read_manifest(file: Path) -> _Manifest:
    try:
        data = file.read_bytes()
        header = msgspec.json.decode(data, type=_Header)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{file} is not a suite manifest: {error}; carve the suite again") from error
    if header.format != FORMAT:
        raise FormatError(f"{file}: expected format {FORMAT!r}, got {header.format!r}")
    if header.version > VERSION:
        raise FormatError(
            f"{file}: this release reads suites up to version {VERSION}, got version {header.version}; update tapestry-ml"
        )
    try:
        manifest = msgspec.json.decode(data, type=_Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{file} is not a whole suite manifest: {error}; carve the suite again") from error
    if _cases_digest(tuple(manifest.cases)) != manifest.cases_sha256:
        raise FormatError(f"{file} was changed after it was written (its checksum differs); carve the suite again")
    return manifest


def _check_references(cases: list[Case], tensors: dict[str, torch.Tensor], path: Path) -> None:
    for case in cases:
        wanted = {*case.inputs, *(entry for entry in (*case.source, *case.oracle) if entry)} - {SAME_AS_SOURCE}
        missing = wanted - tensors.keys()
        if missing:
            raise FormatError(f"{path}: case {case.id} names tensors that are not stored; carve the suite again")


def _cases_digest(cases: tuple[Case, ...]) -> str:
    return hashlib.sha256(msgspec.json.encode(cases)).hexdigest()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
