"""Who has an agent's device: one client at a time, which may open it more than once and may come back.

Not here: tokens, and what a client does with the device.
"""

from __future__ import annotations

import os
import threading
import time

from tapestry.runtime.protocol.messages import DeviceBusyError
from tapestry.runtime.remote.channel import WebSocketChannel
from tapestry.runtime.worker.device import DEFAULT_TIMEOUT, WorkerDevice

#: Workers that one client may have at a time (a migration opens a second device for repro bundles).
MAX_SESSIONS = 4
#: Seconds that a client is kept waiting before it hears that the device is taken: the one before may just have left.
BUSY_SECONDS = 1.0
#: Seconds for an old session to end that is about to: its client has left, or has come back.
TAKEOVER_SECONDS = 10.0
#: Characters of a client's name that are repeated.
SHOWN = 120


class Holder:
    """One session: its connection, whose it is, and its worker."""

    def __init__(self, channel: WebSocketChannel) -> None:
        self.channel = channel
        self.client = ""
        #: Tells clients apart: those that do not say who they are differ from each other.
        self.identity = os.urandom(8).hex()
        self.session = ""
        self.timeout = DEFAULT_TIMEOUT
        self.since = time.monotonic()
        #: Set once nothing more is done for it: what is left is to close its worker.
        self.leaving = False
        self._worker: WorkerDevice | None = None
        self._ended = False
        self._lock = threading.Lock()

    def give(self, worker: WorkerDevice) -> None:
        """The worker that ends with this session."""
        with self._lock:
            self._worker = worker
            ended = self._ended
        if ended:
            worker.kill()

    def end(self) -> None:
        """The connection has ended or is to end: so does the worker, whatever it is doing. From any thread."""
        self.leaving = True
        with self._lock:
            self._ended = True
            worker = self._worker
        self.channel.cut()
        if worker is not None:
            worker.kill()


class Holders:
    """The sessions that have the device now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holders: list[Holder] = []

    def claim(self, holder: Holder, client: str, session: str, timeout: float) -> None:
        """Make ``holder`` one of them. DeviceBusyError, which says who, while another client has the device.

        The same session of the same client comes after a broken connection: the old one, which may not have noticed,
        is ended.
        """
        holder.client, holder.session, holder.timeout = _shown(client), session, timeout
        holder.identity = client or holder.identity
        with self._changed:
            for old in self._same_session(holder):
                old.end()
            begin = time.monotonic()
            while blocking := self._blocking(holder):
                seconds = TAKEOVER_SECONDS if all(entry.leaving for entry in blocking) else BUSY_SECONDS
                left = begin + seconds - time.monotonic()
                if left <= 0:
                    raise DeviceBusyError(_taken(blocking))
                self._changed.wait(min(left, BUSY_SECONDS / 4))
            holder.since = time.monotonic()
            self._holders.append(holder)

    def release(self, holder: Holder) -> None:
        """Its session is over."""
        with self._changed:
            if holder in self._holders:
                self._holders.remove(holder)
            self._changed.notify_all()

    def end_all(self) -> None:
        with self._changed:
            for holder in self._holders:
                holder.end()

    def _blocking(self, holder: Holder) -> list[Holder]:
        """What keeps it out now: other clients, its own old session, or too many of its own."""
        others = [entry for entry in self._holders if entry.identity != holder.identity]
        full = self._holders if len(self._holders) >= MAX_SESSIONS else []
        return [*others, *self._same_session(holder)] or list(full)

    def _same_session(self, holder: Holder) -> list[Holder]:
        key = (holder.identity, holder.session)
        return [entry for entry in self._holders if holder.session and (entry.identity, entry.session) == key]


def _taken(holders: list[Holder]) -> str:
    first = holders[0]
    seconds = time.monotonic() - first.since
    return (
        f"the device is in use by {first.client} at {first.channel.peer}, for {seconds:.0f} s now; an agent serves one "
        "client at a time: wait for it, or start another agent"
    )


def _shown(client: str) -> str:
    """A client's own name for itself, fit for a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in client[:SHOWN]) or "an unnamed client"
