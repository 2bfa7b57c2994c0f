"""The append-only record that makes a long job resumable: answers by the key of everything they depend on.

A job asks the journal before it works, and writes each answer as soon as it has it. Killed at any moment, a rerun
finds what was finished. Not here: what the keys are.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import filelock
import msgspec

from tapestry.backends.cache import replace_file
from tapestry.errors import FormatError, UsageError

_FILE = "journal.bin"
#: Before each record: its length and its CRC-32, little-endian.
_HEAD = struct.Struct("<II")
_VERSION = 1
#: Bytes of the largest record: a length above it is a damaged one.
_LARGEST = 1 << 26

StructT = TypeVar("StructT", bound=msgspec.Struct)


class _Record(msgspec.Struct, array_like=True):
    """One record: ``kind`` and ``key`` say what was asked, ``value`` is the answer."""

    kind: str
    key: str
    value: msgspec.Raw


class _Header(msgspec.Struct):
    version: int
    subject: str


class Journal:
    """A journal in a folder, held by one process at a time. Use as a context manager.

    ``subject`` says what the job is about (model and target). UsageError when the folder holds the journal of
    another subject, is in use, or cannot be written; FormatError when it was written by a newer release.
    A damaged record, such as the half record of a killed process, is dropped, and what it answered is worked out again;
    ``damage`` says so.
    """

    def __init__(self, folder: Path, subject: str) -> None:
        self.folder = folder
        self.subject = subject
        self.found = 0
        #: Answers put since the journal was opened, by kind.
        self.put_count: Counter[str] = Counter()
        #: Bytes of the file that were damaged and are not used; their answers are worked out again.
        self.dropped_bytes = 0
        self._answers: dict[tuple[str, str], msgspec.Raw] = {}
        self._file: FileIO | None = None
        self._end = 0
        self._lock = filelock.FileLock(folder / "lock")

    @property
    def damage(self) -> str:
        """What to tell the user about damaged records; empty where there were none."""
        if not self.dropped_bytes:
            return ""
        return (
            f"{self.dropped_bytes:,} bytes of the journal in {self.folder} are damaged and were dropped; "
            "what they answered is run again"
        )

    def __enter__(self) -> Journal:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise UsageError(
                f"the journal in {self.folder} is in use by another process; wait for it to end"
            ) from error
        except OSError as error:
            raise self._cannot_keep(error) from error
        try:
            self._open()
        except OSError as error:
            self._close()
            raise self._cannot_keep(error) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()

    def _cannot_keep(self, error: OSError) -> UsageError:
        return UsageError(f"cannot keep a journal in {self.folder}: {error}; choose another with --journal")

    def get(self, kind: str, key: str, as_type: type[StructT]) -> StructT | None:
        """The answer kept for a question, or None. One that does not read as ``as_type`` counts as none."""
        raw = self._answers.get((kind, key))
        if raw is None:
            return None
        try:
            answer = msgspec.msgpack.decode(raw, type=as_type)
        except msgspec.DecodeError:
            return None
        self.found += 1
        return answer

    def put(self, kind: str, key: str, value: msgspec.Struct) -> None:
        """Keep an answer. It is with the operating system on return, so that killing this process loses nothing.

        UsageError when it cannot be written; what was written before stays.
        """
        raw = msgspec.Raw(msgspec.msgpack.encode(value))
        self._append(_Record(kind, key, raw))
        self._answers[kind, key] = raw
        self.put_count[kind] += 1

    def _append(self, record: _Record) -> None:
        if self._file is None:
            raise UsageError("the journal is not open")
        framed = _framed(record)
        if len(framed) > _LARGEST:
            raise UsageError(f"an answer of {len(framed):,} bytes is too large for a journal, which takes {_LARGEST:,}")
        rest = memoryview(framed)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            # Half a record would hide every later one: take it back.
            with suppress(OSError):
                self._file.truncate(self._end)
                self._file.seek(self._end)
            raise UsageError(f"cannot write the journal in {self.folder}: {error}; free space and run again") from error
        self._end += len(framed)

    def _open(self) -> None:
        path = self.folder / _FILE
        self._end = self._read(path) if path.exists() else 0
        if self.dropped_bytes and self._end:
            self._end = self._rewrite(path)
        # Without a buffer, so that nothing waits to be written when a write fails or the process is killed.
        self._file = path.open("r+b" if self._end else "wb", buffering=0)
        if self._end:
            self._file.truncate(self._end)
            self._file.seek(self._end)
            return
        self._append(_header(self.subject))

    def _read(self, path: Path) -> int:
        """Read the records that are whole; returns where the last one ends, 0 where the header is not whole."""
        data = memoryview(path.read_bytes())
        good = place = 0
        while place < len(data):
            found = _record_at(data, place)
            if found is None:
                if good == 0:
                    break
                place += 1  # a damaged length says nothing: look where the next record begins
                continue
            record, end = found
            if good == 0:
                self._check_header(record)
            else:
                self._answers[record.kind, record.key] = record.value
            self.dropped_bytes += place - good
            good = place = end
        self.dropped_bytes += len(data) - good
        return good

    def _rewrite(self, path: Path) -> int:
        """Write the whole records anew, without what lay damaged between them; returns their bytes."""
        records = [_header(self.subject), *(_Record(*key, value) for key, value in self._answers.items())]
        data = b"".join(map(_framed, records))
        replace_file(path, data)
        return len(data)

    def _check_header(self, record: _Record) -> None:
        try:
            header = msgspec.msgpack.decode(record.value, type=_Header)
        except msgspec.DecodeError as error:
            raise FormatError(f"{self.folder / _FILE} is no journal of this product: {error}; move it away") from error
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


def _header(subject: str) -> _Record:
    return _Record("header", "", msgspec.Raw(msgspec.msgpack.encode(_Header(_VERSION, subject))))


def _framed(record: _Record) -> bytes:
    body = msgspec.msgpack.encode(record)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _record_at(data: memoryview, place: int) -> tuple[_Record, int] | None:
    """The whole record that begins at a place, and where it ends."""
    begin = place + _HEAD.size
    if begin > len(data):
        return None
    length, crc = _HEAD.unpack(data[place:begin])
    # A damaged length may ask for gigabytes.
    if length > min(len(data) - begin, _LARGEST) or zlib.crc32(data[begin : begin + length]) != crc:
        return None
    try:
        # A copy, so that what is kept of it does not hold the whole file.
        return msgspec.msgpack.decode(bytes(data[begin : begin + length]), type=_Record), begin + length
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def remove(folder: Path) -> None:
    """Forget the journal in a folder. UsageError when another process holds it."""
    path = folder / _FILE
    if not path.exists():
        return
    try:
        with filelock.FileLock(folder / "lock", timeout=0):
            path.unlink(missing_ok=True)
    except filelock.Timeout as error:
        raise UsageError(f"the journal in {folder} is in use by another process; wait for it to end") from error
    except OSError as error:
        raise UsageError(f"cannot remove the journal in {folder}: {error}") from error
