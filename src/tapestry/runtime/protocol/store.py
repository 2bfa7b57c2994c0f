"""The serving side's encoded modules, by digest: parts are put together, checked, and kept for the next load.

A reconnecting client sends only what is missing here. Holds nothing that a device has compiled.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from tapestry.errors import UsageError


class ModuleStore:
    """Encoded modules, least recently used first. Over ``capacity`` bytes the oldest go, never the newest."""

    def __init__(self, capacity: int = 256 << 20) -> None:
        self._capacity = capacity
        self._modules: OrderedDict[str, bytes] = OrderedDict()
        self._uploads: dict[str, tuple[int, bytearray]] = {}
        self._bytes = 0

    def digests(self) -> tuple[str, ...]:
        """What is complete, at most the 256 most recently used."""
        return tuple(self._modules)[-256:]

    def get(self, digest: str) -> bytes | None:
        encoded = self._modules.get(digest)
        if encoded is not None:
            self._modules.move_to_end(digest)
        return encoded

    def add_part(self, digest: str, nbytes: int, offset: int, part: bytes | bytearray | memoryview, limit: int) -> None:
        """Take one part. UsageError when it does not continue what came before, or the whole is not the digest's.

        ``limit`` bounds the whole, and all unfinished uploads together, in bytes.
        """
        if offset == 0:
            self._uploads.pop(digest, None)
            self._check_room(digest, nbytes, limit)
            self._uploads[digest] = (nbytes, bytearray())
        expected, data = self._uploads.get(digest, (-1, bytearray()))
        size = memoryview(part).nbytes
        if expected != nbytes or offset != len(data) or offset + size > nbytes or not size:
            self._uploads.pop(digest, None)
            raise UsageError(
                f"a part of module {digest[:12]} does not fit: bytes {offset} to {offset + size} of {nbytes}, "
                f"after {len(data)} of {max(expected, 0)}"
            )
        data += part
        if len(data) == nbytes:
            del self._uploads[digest]
            self._finish(digest, bytes(data))

    def _check_room(self, digest: str, nbytes: int, limit: int) -> None:
        pending = sum(size for size, _ in self._uploads.values())
        if nbytes + pending > limit:
            raise UsageError(
                f"module {digest[:12]} has {nbytes:,} bytes and {pending:,} are being uploaded; the limit is {limit:,}"
            )

    def _finish(self, digest: str, encoded: bytes) -> None:
        actual = hashlib.sha256(encoded).hexdigest()
        if actual != digest:
            raise UsageError(f"a module declared as {digest[:12]} has the content of {actual[:12]}")
        if digest in self._modules:
            return
        self._modules[digest] = encoded
        self._bytes += len(encoded)
        while self._bytes > self._capacity and len(self._modules) > 1:
            _, oldest = self._modules.popitem(last=False)
            self._bytes -= len(oldest)
