"""Compiled regions on disk, by region key, backend fingerprint, options and device. A damaged entry is a miss.

What a compiler refused is kept too, with its reason, so that it is not asked again. Not here: compiling.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import msgspec
import platformdirs

from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Compiled

#: Raised whenever Compiled or the meaning of a key changes.
_FORMAT = 2


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """What a backend said instead of compiling: ``unsupported`` or ``error``, and its words."""

    kind: str
    reason: str


class _Done(msgspec.Struct, frozen=True, tag="done"):
    compiled: Compiled


def default_folder() -> Path:
    """Where compiled regions are kept unless told otherwise: under the user's cache directory."""
    return Path(platformdirs.user_cache_dir("tapestry")) / "compiled"


def cache_key(graph_key: str, fingerprint: str, options: str, info: DeviceInfo) -> str:
    """The name of an entry: everything that shapes a compiled region."""
    device = [
        info.kind, info.fingerprint, msgspec.to_builtins(info.limits), sorted(info.dtypes), sorted(info.features)
    ]  # fmt: skip
    parts = [_FORMAT, graph_key, fingerprint, options, device]
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def replace_file(path: Path, data: bytes) -> None:
    """Write beside the path, then rename over it; nothing is left behind when that fails. OSError when it does.

    A path that is there and is no regular file (a pipe, /dev/stdout) is written to as it is.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    beside = path.with_name(f".{path.name[:64]}.{os.getpid()}-{threading.get_ident()}")
    try:
        with beside.open("xb") as file:
            file.write(data)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


class CompileCache:
    """A folder of entries, safe to share between processes. Counts hits and misses."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()
        self.hits = 0
        self.misses = 0

    def get(self, key: str) -> Compiled | Refused | None:
        """The entry, or None when there is none or it is damaged."""
        found = self._read(key)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        return found

    def _read(self, key: str) -> Compiled | Refused | None:
        try:
            data = self._file(key).read_bytes()
        except OSError:
            return None
        digest, body = data[:32], data[32:]
        if hashlib.sha256(body).digest() != digest:
            return None
        try:
            entry = msgspec.msgpack.decode(body, type=_Done | Refused)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return entry.compiled if isinstance(entry, _Done) else entry

    def put(self, key: str, entry: Compiled | Refused) -> None:
        """Store an entry atomically. A folder that cannot be written only costs the caching."""
        body = msgspec.msgpack.encode(_Done(entry) if isinstance(entry, Compiled) else entry)
        file = self._file(key)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, hashlib.sha256(body).digest() + body)
        except OSError:
            return

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / key
