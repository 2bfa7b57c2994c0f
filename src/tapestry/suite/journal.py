"""The append-only record that makes a long job resumable: answers by the key of everything they depend on.

A job asks the journal before it works, and writes each answer as soon as it has it. Killed at any moment, a rerun
finds what was finished. Not here: what the keys are.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeVar

import filelock
import msgspec

from tapestry.errors import FormatError, UsageError

_FILE = "journal.jsonl"
_VERSION = 1

StructT = TypeVar("StructT", bound=msgspec.Struct)


class _Line(msgspec.Struct):
    """One record: ``kind`` and ``key`` say what was asked, ``value`` is the answer, ``crc`` guards the rest."""

    kind: str
    key: str
    value: msgspec.Raw
    crc: int


class _Header(msgspec.Struct):
    version: int
    subject: str


class Journal:
    """A journal in a folder, held by one process at a time. Use as a context manager.

    ``subject`` says what the job is about (model and target). UsageError when the folder holds the journal of
    another subject, is in use, or cannot be written; FormatError when it was written by a newer release.
    A damaged line, such as the half line of a killed process, is dropped with all that follows it.
    """

    def __init__(self, folder: Path, subject: str) -> None:
        self.folder = folder
        self.subject = subject
        self.found = 0
        self._answers: dict[tuple[str, str], msgspec.Raw] = {}
        self._file: BinaryIO | None = None
        self._lock = filelock.FileLock(folder / "lock")

    def __enter__(self) -> Journal:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise UsageError(f"the journal in {self.folder} is in use by another process; wait for it to end") from error
        except OSError as error:
            raise UsageError(f"cannot keep a journal in {self.folder}: {error}; choose another with --journal") from error
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()

    def get(self, kind: str, key: str, as_type: type[StructT]) -> StructT | None:
        """The answer kept for a question, or None. One that does not read as ``as_type`` counts as none."""
        raw = self._answers.get((kind, key))
        if raw is None:
            return None
        try:
            answer = msgspec.json.decode(raw, type=as_type)
        except msgspec.DecodeError:
            return None
        self.found += 1
        return answer

    def put(self, kind: str, key: str, value: msgspec.Struct) -> None:
        """Keep an answer. It is with the operating system on return, so that killing this process loses nothing.

        UsageError when it cannot be written; what was written before stays.
        """
        raw = msgspec.Raw(msgspec.json.encode(value))
        self._answers[kind, key] = raw
        self._append(_Line(kind, key, raw, _crc(kind, key, raw)))

    def _append(self, line: _Line) -> None:
        if self._file is None:
            raise UsageError("the journal is not open")
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        except OSError as error:
            raise UsageError(f"cannot write the journal in {self.folder}: {error}; free space and run again") from error

    def _open(self) -> None:
        path = self.folder / _FILE
        good = 0
        if path.exists():
            good = self._read(path)
        self._file = path.open("r+b" if good else "wb")
        if good:
            self._file.truncate(good)
            self._file.seek(good)
            return
        header = _Header(_VERSION, self.subject)
        raw = msgspec.Raw(msgspec.json.encode(header))
        self._append(_Line("header", "", raw, _crc("header", "", raw)))

    def _read(self, path: Path) -> int:
        """Read the lines that are whole; returns the bytes they take."""
        good = 0
        with path.open("rb") as file:
            for data in file:
                line = _parse(data)
                if line is None:
                    break
                if good == 0:
                    self._check_header(line)
                else:
                    self._answers[line.kind, line.key] = line.value
                good += len(data)
        return good

    def _check_header(self, line: _Line) -> None:
        header = msgspec.json.decode(line.value, type=_Header)
        if header.version > _VERSION:
            raise FormatError(
                f"the journal in {self.folder} is of version {header.version}, this release reads up to {_VERSION}; "
                "update tapestry-ml or choose another with --journal"
            )
        if header.subject != self.subject:
            raise UsageError(
                f"the journal in {self.folder} belongs to another job: expected {self.subject!r}, "
                f"got {header.subject!r}; choose another with --journal"
            )


def _parse(data: bytes) -> _Line | None:
    if not data.endswith(b"\n"):
        return None
    try:
        line = msgspec.json.decode(data, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return line if line.crc == _crc(line.kind, line.key, line.value) else None


def _crc(kind: str, key: str, raw: msgspec.Raw) -> int:
    return zlib.crc32(json.dumps([kind, key]).encode() + bytes(raw))


def remove(folder: Path) -> None:
    """Forget the journal in a folder."""
    for name in (_FILE, "lock"):
        try:
            os.unlink(folder / name)
        except FileNotFoundError:
            continue
