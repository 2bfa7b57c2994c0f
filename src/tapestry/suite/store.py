"""Suites on disk: a directory with ``suite.json`` and the tensors file it names, checksummed, replaced atomically.

Not here: what a suite is (case). Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tapestry.errors import FormatError, UsageError
from tapestry.suite.case import SAME_AS_SOURCE, Case, LeftOut, Suite, SuiteInfo

FORMAT = "tapestry-suite"
#: Version 2 has derived cases, whose tensors are not stored.
VERSION = 2
_MANIFEST = "suite.json"
#: Tensors files are named by content, so that a new one never overwrites the one that the old manifest names.
_TENSORS = re.compile(r"tensors-[0-9a-f]{16}\.safetensors")
_TEMPORARY = ".writing-"
#: A folder with this file is a repro bundle, which has a suite inside.
_BUNDLE = "repro.json"
_PAIRS = ".pairs"
#: Stands for the manifest's own checksum while it is computed.
_NO_CHECKSUM = "0" * 64


class _Manifest(msgspec.Struct):
    format: str
    version: int
    manifest_sha256: str
    tensors_file: str
    tensors_sha256: str
    info: SuiteInfo
    cases: list[Case]
    left_out: list[LeftOut]


class _Header(msgspec.Struct):
    """The part of the manifest that every version has."""

    format: str = ""
    version: int = 0


def save_suite(suite: Suite, path: Path) -> int:
    """Write the suite to a directory, replacing what a suite there held; returns its bytes on disk.

    Whatever happens on the way, there is the whole new suite afterwards or the old one: the manifest is replaced in
    one step, after the tensors that it names. One process may write to a directory at a time. UsageError when the
    path cannot be written or holds something else.
    """
    fresh = not path.exists()
    if not fresh and (not path.is_dir() or not _is_ours(path)):
        raise UsageError(f"expected a new directory or an old suite at {path}, got something else; choose another path")
    try:
        path.mkdir(parents=True, exist_ok=True)
        return _write(suite, path)
    except OSError as error:
        raise UsageError(f"cannot store a suite at {path}: {error}; what was there is untouched") from error
    finally:
        _clean(path, fresh)


def _is_ours(path: Path) -> bool:
    names = {entry.name for entry in path.iterdir()}
    return _MANIFEST in names or all(_TENSORS.fullmatch(name) or name.startswith(_TEMPORARY) for name in names)


def _write(suite: Suite, path: Path) -> int:
    temporary = path / f"{_TEMPORARY}tensors"
    try:
        save_file(_apart(_real(suite.tensors)), temporary)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    checksum = file_sha256(temporary)
    tensors_file = path / f"tensors-{checksum[:16]}.safetensors"
    _move(temporary, tensors_file)
    manifest = _Manifest(
        FORMAT, VERSION, _NO_CHECKSUM, tensors_file.name, checksum, suite.info, list(suite.cases), list(suite.left_out)
    )
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    data = data.replace(_NO_CHECKSUM.encode(), hashlib.sha256(data).hexdigest().encode(), 1)
    temporary = path / f"{_TEMPORARY}manifest"
    temporary.write_bytes(data)
    _move(temporary, path / _MANIFEST)
    return tensors_file.stat().st_size + len(data)


def _move(temporary: Path, target: Path) -> None:
    """Bring a file to the disk, then to its name."""
    with temporary.open("rb") as handle:
        os.fsync(handle.fileno())
    temporary.replace(target)


def _clean(path: Path, fresh: bool) -> None:
    """Remove what no manifest names: temporary files and other tensors, of this run and of ones that were killed."""
    try:
        kept = msgspec.json.decode((path / _MANIFEST).read_bytes(), type=_Manifest).tensors_file
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        kept = ""
    try:
        for entry in path.iterdir():
            if entry.name != kept and (_TENSORS.fullmatch(entry.name) or entry.name.startswith(_TEMPORARY)):
                entry.unlink()
        if fresh and not kept:
            path.rmdir()
    except OSError:
        return  # litter is harmless, and the next save tries again


def _real(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Complex tensors as pairs of real numbers under a marked name: safetensors has no complex128."""
    found: dict[str, torch.Tensor] = {}
    for digest, tensor in tensors.items():
        if tensor.is_complex():
            found[digest + _PAIRS] = torch.view_as_real(tensor.resolve_conj())
        else:
            found[digest] = tensor
    return found


def _complex(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name.removesuffix(_PAIRS): torch.view_as_complex(tensor) if name.endswith(_PAIRS) else tensor
        for name, tensor in tensors.items()
    }


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


def load_suite(path: Path) -> Suite:
    """Read a suite, or the one in a repro bundle.

    UsageError when there is none; FormatError when it is damaged, truncated or of a newer version.
    """
    if (path / _BUNDLE).is_file() and not (path / _MANIFEST).exists():
        path = path / "suite"
    if not path.is_dir() or not (path / _MANIFEST).exists():
        raise UsageError(
            f"expected a suite (a directory with {_MANIFEST}) at {path}, got none; `tapestry carve` makes one"
        )
    manifest = _read_manifest(path / _MANIFEST)
    tensors_file = path / manifest.tensors_file
    if not _TENSORS.fullmatch(manifest.tensors_file) or not tensors_file.is_file():
        raise FormatError(f"{path} has no file {manifest.tensors_file!r}: the suite is incomplete; carve it again")
    try:
        found = file_sha256(tensors_file)
        if found != manifest.tensors_sha256:
            raise FormatError(
                f"{tensors_file} is damaged: expected sha256 {manifest.tensors_sha256[:12]}…, got {found[:12]}…; "
                "carve it again or restore the file"
            )
        tensors = _complex(load_file(tensors_file))
    except (OSError, SafetensorError) as error:
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
            f"{file}: this release reads suites up to version {VERSION}, got version {header.version}; "
            "update tapestry-ml"
        )
    try:
        manifest = msgspec.json.decode(data, type=_Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{file} is not a whole suite manifest: {error}; carve the suite again") from error
    plain = data.replace(manifest.manifest_sha256.encode(), _NO_CHECKSUM.encode(), 1)
    if hashlib.sha256(plain).hexdigest() != manifest.manifest_sha256:
        raise FormatError(f"{file} was changed after it was written (its checksum differs); carve the suite again")
    return manifest


def _check_references(cases: list[Case], tensors: dict[str, torch.Tensor], path: Path) -> None:
    for case in cases:
        wanted = {*case.inputs, *(entry for entry in (*case.source, *case.oracle) if entry)} - {SAME_AS_SOURCE}
        missing = wanted - tensors.keys()
        if missing:
            raise FormatError(f"{path}: case {case.id} names tensors that are not stored; carve the suite again")


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
