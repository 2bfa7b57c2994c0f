"""The zip archive of a .pt2 file: listed and judged entry by entry before anything in it is read.

Not here: what the entries mean (program, payload, samples).
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tapestry.errors import FormatError, UsageError

#: What torch.export.save of torch 2.13 writes, below the archive's root folder.
_PLAIN = re.compile(
    r"archive_format|archive_version|byteorder|\.data/[\w.]+|version|extra/.*"
    r"|models/[\w.-]+\.json"
    r"|data/weights/(weight_\d+|[\w.-]+_weights_config\.json)"
    r"|data/constants/(tensor_\d+|[\w.-]+_constants_config\.json)"
    r"|data/sample_inputs/[\w.-]+\.pt",
    re.ASCII,
)
#: Entries that must never be read, and why.
_REFUSED = (
    (r"serialized_(exported_program\.json|(state_dict|constants|example_inputs)\.(pt|json))", "the legacy layout"),
    (r"data/(weights|constants)/[\w.-]+\.pt", "a pickle of the legacy layout"),
    (r"data/constants/(custom_obj|opaque_obj)_.*", "a custom object, stored as a pickle"),
    (r"(.*/)?data\.pkl|.*\.(pkl|pickle)", "a pickle"),
    (r"data/aotinductor/.*|.*\.(so|cubin|o)", "native code"),
    (r"data/executorch/.*|.*\.pte", "an ExecuTorch program"),
    (r"(.*/)?code/.*\.py.*", "TorchScript code"),
)
#: The most that a JSON record may hold, in bytes.
JSON_LIMIT = 1 << 30
RESAVE = "save the program again with torch.export.save of torch 2.13, holding dense tensors only"


def refused(path: Path, entry: str, why: str, do: str = RESAVE) -> UsageError:
    """The error for an entry that is not read: which, why, and what to do."""
    return UsageError(
        f"{path}: entry {entry!r} is {why}, and reading it could run code from the file; {do}, or pass "
        "--trust-pickle if you trust whoever made the file"
    )


@dataclass(frozen=True)
class Archive:
    """An open archive whose entries all have known, harmless kinds. ``entries`` are named below the root folder."""

    path: Path
    entries: Mapping[str, zipfile.ZipInfo]
    _zip: zipfile.ZipFile

    def read(self, name: str) -> bytes:
        """The bytes of an entry. FormatError when it is missing or damaged."""
        info = self.entries.get(name)
        if info is None:
            raise FormatError(f"{self.path}: expected an entry {name!r}, got none; the file is damaged")
        if name.endswith(".json") and info.file_size > JSON_LIMIT:
            raise FormatError(f"{self.path}: entry {name!r} has {info.file_size} bytes, over the limit of {JSON_LIMIT}")
        try:
            return self._zip.read(info)
        except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
            raise FormatError(f"{self.path}: entry {name!r} cannot be read: {error}") from error

    def text(self, name: str) -> str:
        """A short text entry, stripped."""
        return self.read(name).decode("utf-8", errors="replace").strip()

    def model_name(self) -> str:
        """The one program in the archive: ``model`` for ``models/model.json``."""
        found = [name for name in self.entries if name.startswith("models/")]
        if len(found) != 1:
            raise UsageError(f"{self.path}: expected one program, got {len(found)}: {', '.join(found) or 'none'}")
        return PurePosixPath(found[0]).stem


@contextmanager
def open_archive(path: Path) -> Generator[Archive]:
    """List an archive and judge every entry by its name. Nothing is unpacked.

    UsageError naming the first entry that is refused; FormatError for a file that is no such archive.
    """
    try:
        opened = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
        raise FormatError(_not_an_archive(path)) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    with opened:
        infos = opened.infolist()
        _check_sizes(path, infos)
        for info in infos:
            _check_legacy(path, info.filename)
        archive = Archive(path, _below_root(path, infos), opened)
        for name in archive.entries:
            _check_name(path, name)
        _check_version(archive)
        yield archive


def _not_an_archive(path: Path) -> str:
    with path.open("rb") as handle:
        start = handle.read(4)
    expected = f"{path}: expected a zip archive written by torch.export.save, got "
    if start[:1] == b"\x80":
        return expected + "a bare pickle, which is never read"
    if start[:2] == b"PK":
        return expected + "one that is cut short or damaged"
    return expected + ("an empty file" if not start else "something else")


def _check_sizes(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    """Entries are stored as they are, so the parts can't be larger than the whole: neither bombs nor overlaps."""
    if not infos or min(info.header_offset for info in infos):
        # A file that is cut short may end in the archive of its sample inputs, which would be found instead.
        raise FormatError(f"{path}: the archive does not begin where the file begins; it is cut short or damaged")
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise FormatError(
                f"{path}: entry {info.filename!r} is compressed ({info.compress_size} → {info.file_size} bytes), which "
                "torch.export.save never does; save the program again with torch.export.save"
            )
        if info.flag_bits & 1:
            raise FormatError(f"{path}: entry {info.filename!r} is encrypted")
    total = sum(info.file_size for info in infos)
    if total > path.stat().st_size:
        raise FormatError(f"{path}: the entries claim {total} bytes, more than the file has: they overlap")


def _check_legacy(path: Path, name: str) -> None:
    if re.fullmatch(_REFUSED[0][0], name):
        raise refused(path, name, "of the legacy layout, which keeps tensors as pickles")


def _below_root(path: Path, infos: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    entries: dict[str, zipfile.ZipInfo] = {}
    roots: set[str] = set()
    for info in infos:
        root, _, name = info.filename.partition("/")
        parts = name.split("/")
        if info.filename.startswith("/") or "\\" in info.filename or ".." in (root, *parts):
            raise FormatError(f"{path}: entry {info.filename!r} points outside the archive")
        if info.is_dir():
            continue
        if not name:
            raise FormatError(f"{path}: entry {info.filename!r} lies in no folder; torch.export.save makes one")
        if name in entries:
            raise FormatError(f"{path}: entry {name!r} occurs twice")
        roots.add(root)
        entries[name] = info
    if len(roots) > 1:
        raise FormatError(f"{path}: expected one root folder, got {', '.join(sorted(roots))}")
    return entries


def _check_name(path: Path, name: str) -> None:
    if _PLAIN.fullmatch(name):
        return
    for pattern, why in _REFUSED:
        if re.fullmatch(pattern, name, re.DOTALL):
            raise refused(path, name, why)
    raise FormatError(f"{path}: entry {name!r} is none that torch.export.save writes")


def _check_version(archive: Archive) -> None:
    if archive.text("archive_format") != "pt2":
        raise FormatError(f"{archive.path}: expected the archive format pt2, got {archive.text('archive_format')!r}")
    if archive.text("archive_version") != "0":
        raise FormatError(f"{archive.path}: expected archive version 0, got {archive.text('archive_version')!r}")
    if archive.text("byteorder") != "little":
        raise FormatError(f"{archive.path}: expected little-endian tensors, got {archive.text('byteorder')!r}")
