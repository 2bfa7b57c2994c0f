"""What a client knows of the contents (of constants) that the serving side keeps, and how it has buffers filled.

Not here: who decides which buffers are filled so (runtime.resident), and keeping them (store).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from tapestry.runtime.protocol import messages as m

#: Below this many bytes, asking whether a content is there costs more than sending it.
SMALLEST_CONTENT = 4096
#: Digests in one question at most.
DIGESTS_PER_MESSAGE = 1024


class _Empty(msgspec.Struct):
    """The result of fill."""


class Ask(Protocol):
    """Sends a request and waits for its result."""

    def __call__(self, message: m.Message, result: type[Any]) -> tuple[Any, object]: ...


class KeptContents:
    """Fills buffers from what the other side keeps, over one connection after the other."""

    def __init__(
        self, ask: Ask, post: Callable[[m.Message, bytes | memoryview], None], next_id: Callable[[], int]
    ) -> None:
        self._ask = ask
        self._post = post
        self._next_id = next_id
        self._there: set[str] = set()
        #: All that was ever used, so that after a restart one question tells which are still there.
        self._used: set[str] = set()

    def reconnected(self, keeps: bool) -> None:
        """A new connection, to a side that keeps contents or not: what is there is asked anew."""
        self._there = set()
        wanted = sorted(self._used) if keeps else []
        for start in range(0, len(wanted), DIGESTS_PER_MESSAGE):
            part = wanted[start : start + DIGESTS_PER_MESSAGE]
            self._there.update(set(part) - self._missing(part))

    def fill(self, buffer: int, digest: str, make_bytes: Callable[[], bytes | memoryview], payload_bytes: int) -> None:
        """Fill a whole buffer; ``make_bytes`` is called only when its bytes must travel, in parts of that size."""
        self._used.add(digest)
        if digest not in self._there and self._missing([digest]):
            self._send(buffer, digest, make_bytes(), payload_bytes)
            return
        try:
            self._ask(m.Fill(id=self._next_id(), buffer=buffer, digest=digest), _Empty)
            self._there.add(digest)
        except m.MissingContentError:  # it was dropped meanwhile
            self._send(buffer, digest, make_bytes(), payload_bytes)

    def _send(self, buffer: int, digest: str, data: bytes | memoryview, payload_bytes: int) -> None:
        for message, part in parts_of(m.Content, digest, data, payload_bytes):
            self._post(message, part)
        self._post(m.Fill(buffer=buffer, digest=digest), b"")  # what was sent last is there
        self._there.add(digest)

    def _missing(self, digests: list[str]) -> set[str]:
        result, _ = self._ask(m.Have(id=self._next_id(), digests=tuple(digests)), m.Missing)
        return set(result.missing)


def parts_of(
    kind: type[m.Module | m.Content], digest: str, data: bytes | memoryview, payload_bytes: int
) -> Iterator[tuple[m.Message, memoryview]]:
    """The messages, with their payloads, that bring ``data`` over."""
    view = memoryview(data).cast("B")
    for start in range(0, view.nbytes, payload_bytes):
        part = view[start : start + payload_bytes]
        yield kind(digest=digest, nbytes=view.nbytes, offset=start), part
