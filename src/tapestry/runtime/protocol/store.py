"""What the serving side keeps by digest: encoded modules, and contents of constants, put together from their parts.

A reconnecting client sends only what is missing here. Holds nothing that a device has compiled.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable

from tapestry.errors import UsageError

#: Bytes that an entry counts beside its content, so that many tiny ones stay within the capacity too.
ENTRY_BYTES = 256
#: Unfinished uploads of one session at most.
MAX_UPLOADS = 64


class ModuleStore:
    """Bytes by their SHA-256, least recently used first. Over ``capacity`` bytes the oldest go, never the newest.

    ``what`` is what errors call an entry. Several sessions may share one store.
    """

    def __init__(self, capacity: int = 256 << 20, what: str = "module") -> None:
        self.what = what
        self._capacity = capacity
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """What is held now, with ENTRY_BYTES for each entry."""
        return self._bytes

    def digests(self) -> tuple[str, ...]:
        """What is complete, at most the 256 most recently used."""
        with self._lock:
            return tuple(self._entries)[-256:]

    def get(self, digest: str) -> bytes | None:
        with self._lock:
            data = self._entries.get(digest)
            if data is not None:
                self._entries.move_to_end(digest)
            return data

    def missing(self, digests: Iterable[str]) -> tuple[str, ...]:
        """Those that are not here; the others count as used now."""
        return tuple(digest for digest in digests if self.get(digest) is None)

    def put(self, digest: str, data: bytes) -> None:
        """Keep ``data``. UsageError when its digest is another one."""
        actual = hashlib.sha256(data).hexdigest()
        if actual != digest:
            raise UsageError(f"a {self.what} declared as {digest[:12]} has the content of {actual[:12]}")
        with self._lock:
            if digest in self._entries:
                return
            self._entries[digest] = data
            self._bytes += len(data) + ENTRY_BYTES
            while self._bytes > self._capacity and len(self._entries) > 1:
                _, oldest = self._entries.popitem(last=False)
                self._bytes -= len(oldest) + ENTRY_BYTES


class Uploads:
    """What one session is sending to a store, part by part. What it leaves unfinished goes with it."""

    def __init__(self, store: ModuleStore) -> None:
        self._store = store
        self._open: dict[str, tuple[int, bytearray]] = {}

    def add_part(
        self, digest: str, nbytes: int, offset: int, part: bytes | bytearray | memoryview, limit: int
    ) -> bytes | None:
        """Take one part; the whole, when it was the last.

        UsageError when it does not continue what came before, or the whole is not the digest's.

        ``limit`` bounds the whole, and all unfinished uploads together, in bytes.
        """
        if offset == 0:
            self._open.pop(digest, None)
            self._check_room(digest, nbytes, limit)
            self._open[digest] = (nbytes, bytearray())
        expected, data = self._open.get(digest, (-1, bytearray()))
        size = memoryview(part).nbytes
        if expected != nbytes or offset != len(data) or offset + size > nbytes or not size:
            self._open.pop(digest, None)
            raise UsageError(
                f"a part of {self._store.what} {digest[:12]} does not fit: bytes {offset} to {offset + size} of "
                f"{nbytes}, after {len(data)} of {max(expected, 0)}"
            )
        data += part
        if len(data) < nbytes:
            return None
        del self._open[digest]
        whole = bytes(data)
        self._store.put(digest, whole)
        return whole

    def _check_room(self, digest: str, nbytes: int, limit: int) -> None:
        pending = sum(size for size, _ in self._open.values())
        if nbytes + pending > limit:
            raise UsageError(
                f"{self._store.what} {digest[:12]} has {nbytes:,} bytes and {pending:,} are being uploaded; "
                f"the limit is {limit:,}"
            )
        if len(self._open) >= MAX_UPLOADS:
            raise UsageError(f"{len(self._open)} uploads are unfinished, and at most {MAX_UPLOADS} may be: finish one")
