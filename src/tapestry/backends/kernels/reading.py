"""Which files kernels are made of: what is read while a kernel file is loaded, and while its kernels are written.

An audit hook of Python sees every file that is opened, by an import or by the kernel's own code, without the author
having to name any. Not here: loading (loading), and looking whether a file has changed.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import source_from_cache
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar


@dataclass(frozen=True)
class Stamp:
    """When a file was written (nanoseconds since 1970) and its size in bytes: what changes when it is saved."""

    written: int
    size: int

    #: Of a file that is not there.
    NONE: ClassVar[Stamp]

    @staticmethod
    def of(path: str | Path) -> Stamp:
        """The stamp of a file as it is now."""
        try:
            found = os.stat(path)
        except OSError:
            return Stamp.NONE
        return Stamp(found.st_mtime_ns, found.st_size)


Stamp.NONE = Stamp(-1, -1)

#: Kernel file → the files that it is made of, by real path, each with its stamp when it was read last.
_read: dict[str, dict[str, Stamp]] = {}
_watched = threading.local()
_lock = threading.Lock()


def files_read(file: str) -> Mapping[str, Stamp]:
    """The files that a kernel file was made of when it was loaded and used last, itself among them."""
    with _lock:
        return MappingProxyType(dict(_read.get(file, {})))


@contextmanager
def reading(file: str) -> Generator[None]:
    """What this thread opens to read meanwhile belongs to a kernel file."""
    _install()
    outer: str | None = getattr(_watched, "file", None)
    _watched.file = file
    try:
        yield
    finally:
        _watched.file = outer


@contextmanager
def reading_anew(file: str) -> Generator[None]:
    """As ``reading``, and what belonged to the file before no longer does, unless this raises."""
    with _lock:
        before = _read.pop(file, {})
    try:
        with reading(file):
            yield
    except BaseException:
        with _lock:
            _read[file] = {**before, **_read.get(file, {})}
        raise


@cache
def _install() -> None:
    sys.addaudithook(_audit)  # for the life of the process: hooks cannot be taken out


def _audit(event: str, args: tuple[object, ...]) -> None:
    if event != "open":
        return
    file: str | None = getattr(_watched, "file", None)
    if file is None:
        return
    path, mode, flags = args
    if not isinstance(path, str | bytes | os.PathLike) or _writes(mode, flags):
        return
    _watched.file = None  # nothing that is opened here is the kernel's
    try:
        _note(file, os.fsdecode(path))
    finally:
        _watched.file = file


def _writes(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def _note(file: str, path: str) -> None:
    if path.endswith(".pyc"):
        try:
            path = source_from_cache(path)
        except (NotImplementedError, ValueError):
            return
    real = os.path.realpath(path)
    if not os.path.isfile(real) or real.startswith(_installed()):
        return
    with _lock:
        _read.setdefault(file, {})[real] = Stamp.of(real)


@cache
def _installed() -> tuple[str, ...]:
    """Folders whose files are not the author's: Python, what is installed, this package, the system."""
    found = sysconfig.get_paths()
    paths = [found[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    real = {os.path.realpath(path) for path in (*paths, Path(__file__).parents[2])}
    return (*(f"{path}{os.sep}" for path in sorted(real)), "/proc/", "/sys/", "/dev/")
