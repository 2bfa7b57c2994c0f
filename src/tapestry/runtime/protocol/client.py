"""The calling side: a Device whose commands travel over a channel. Subclasses say how to connect and to give up.

Commands without a result are sent without waiting; what is surely wrong is refused here, before it travels.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

import msgspec

from tapestry.errors import DeviceLostError, TapestryError, UsageError
from tapestry.runtime.device import (
    Buffer,
    Call,
    Command,
    DeviceInfo,
    DeviceStats,
    Loaded,
    LogEntry,
)
from tapestry.runtime.limits import check_buffer_bytes
from tapestry.runtime.module import Artifact, KernelModule
from tapestry.runtime.protocol import messages as m
from tapestry.runtime.protocol.asking import Asking, Empty
from tapestry.runtime.protocol.contents import SMALLEST_CONTENT, KeptContents, parts_of
from tapestry.runtime.protocol.framing import (
    Channel,
    Frame,
)
from tapestry.runtime.protocol.wire import to_wire

#: Commands in one submit message at most: bounds the server's latency, not the batch.
COMMANDS_PER_MESSAGE = 1024

#: Parts of one read that are asked for together.
READS_AHEAD = 16

#: Who this is, for the server's log and for others who find the device taken: a process is one client.
CLIENT = f"tapestry on {platform.node()[:64] or 'an unnamed host'}, process {os.getpid()} ({os.urandom(4).hex()})"

#: Seconds that a server gets to answer a close.
CLOSE_SECONDS = 2.0

#: Seconds for an artifact to bind its constants (the second stage of a compiler, which gets as long for the first),
#: and more for every MiB of them.
BIND_SECONDS = 120.0
BIND_SECONDS_PER_MIB = 1.0

_encoder = msgspec.msgpack.Encoder()


class ProtocolDevice(Asking):
    """A Device behind the protocol. ``timeout``: seconds that a request may take, all work before it included.

    Only binding constants may take longer: ``bind_timeout`` seconds more, and BIND_SECONDS_PER_MIB for their size.
    """

    def __init__(self, device: str, token: str = "", *, timeout: float, start_timeout: float) -> None:
        super().__init__(device, timeout)
        self.bind_timeout = BIND_SECONDS
        self._start_timeout = start_timeout
        #: Sent with hello: which use of the device this is.
        self._session = ""
        self._token = token
        self._lock = threading.RLock()
        self._generation = 0
        self._known: set[str] = set()
        self._contents = KeptContents(self._ask, self._post, self._next_id)
        #: The loaded artifacts that bind constants.
        self._binders: set[int] = set()
        self._info: DeviceInfo | None = None

    @abstractmethod
    def _connect(self) -> Channel:
        """A fresh connection. EnvironmentProblem when there can be none."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Release what _connect made, after a close that the server answered or not."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def info(self) -> DeviceInfo:
        assert self._info is not None, "the handshake sets it before anyone has this object"
        return self._info

    @property
    def generation(self) -> int:
        return self._generation

    def alloc(self, nbytes: int) -> Buffer:
        with self._lock:
            check_buffer_bytes(nbytes, self.info.limits)
            self._require_connected()
            buffer = self._handles.new_buffer(nbytes)
            self._post(m.Alloc(buffer=buffer.id, nbytes=nbytes))
            return buffer

    def free(self, buffer: Buffer) -> None:
        with self._lock:
            if self._channel is None:
                return
            if self._handles.drop_buffer(buffer):
                self._give_back(m.Free(buffer=buffer.id))

    def write(self, buffer: Buffer, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        with self._lock:
            self._require_connected()
            self._handles.check_span(buffer, view.nbytes, offset)
            for start in range(0, view.nbytes, self._server.payload_bytes):
                part = view[start : start + self._server.payload_bytes]
                self._post(m.Write(buffer=buffer.id, offset=offset + start), part)

    def read(self, buffer: Buffer, nbytes: int, offset: int = 0) -> bytes:
        with self._lock:
            self._require_connected()
            self._handles.check_span(buffer, nbytes, offset)
            most = self._server.payload_bytes
            starts = range(0, max(nbytes, 1), most)
            requests = [
                m.Read(id=self._next_id(), buffer=buffer.id, nbytes=min(most, nbytes - start), offset=offset + start)
                for start in starts
            ]
            parts: list[bytes | bytearray | memoryview] = []
            for first in range(0, len(requests), READS_AHEAD):
                parts += self._read_parts(requests[first : first + READS_AHEAD])
            return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    @property
    def content_bytes(self) -> int:
        """The largest content that the serving side keeps for ``fill``; 0 where it keeps none."""
        return self._server.content_bytes

    def fill(self, buffer: Buffer, digest: str, make_bytes: Callable[[], bytes | memoryview]) -> None:
        """Write a whole buffer. Its bytes, whose SHA-256 is ``digest``, travel only where they are missing.

        ``make_bytes`` is then called for them. A buffer that is small, or larger than ``content_bytes``, is written.
        """
        with self._lock:
            self._require_connected()
            self._handles.check_span(buffer, buffer.nbytes, 0)
            if SMALLEST_CONTENT <= buffer.nbytes <= self._server.content_bytes:
                self._contents.fill(buffer.id, digest, make_bytes, self._server.payload_bytes)
            else:
                self.write(buffer, make_bytes())

    def load(self, module: KernelModule | Artifact) -> Loaded:
        encoded = _encoder.encode(module)
        digest = hashlib.sha256(encoded).hexdigest()
        with self._lock:
            self._require_connected()
            if digest not in self._known:
                self._send_module(digest, encoded)
            loaded = self._handles.new_module(digest, module)
            try:
                self._ask_load(loaded, encoded)
            except TapestryError:
                if self._channel is not None:
                    self._handles.drop_module(loaded)
                raise
            if isinstance(module, Artifact) and module.binds:
                self._binders.add(loaded.id)
            return loaded

    def unload(self, loaded: Loaded) -> None:
        with self._lock:
            if self._channel is None:
                return
            if self._handles.drop_module(loaded):
                self._give_back(m.Unload(module=loaded.id))

    def submit(self, commands: Sequence[Command]) -> None:
        with self._lock:
            self._require_connected()
            self._handles.check_commands(commands, self.info.limits)
            self._binding += sum(self._seconds_to_bind(command) for command in commands)
            for start in range(0, len(commands), COMMANDS_PER_MESSAGE):
                self._post_commands([to_wire(command) for command in commands[start : start + COMMANDS_PER_MESSAGE]])

    def time(self, commands: Sequence[Command], repeats: int) -> list[float]:
        if repeats < 1:
            raise UsageError(f"repeats must be 1 or more, got {repeats}")
        with self._lock:
            self._require_connected()
            self._handles.check_commands(commands, self.info.limits)
            wire = tuple(to_wire(command) for command in commands)
            request = m.Time(id=self._next_id(), commands=wire, repeats=repeats)
            result, _ = self._ask(request, m.Seconds)
            return list(result.seconds)

    def sync(self) -> None:
        with self._lock:
            self._require_connected()
            self._ask(m.Sync(id=self._next_id()), Empty)

    def launch_log(self, clear: bool = False) -> list[LogEntry]:
        with self._lock:
            self._require_connected()
            result, _ = self._ask(m.Log(id=self._next_id(), clear=clear), m.Entries)
            return list(result.entries)

    def stats(self) -> DeviceStats:
        """What is alive on the serving side, by its own count."""
        with self._lock:
            self._require_connected()
            return self._ask(m.Stats(id=self._next_id()), DeviceStats)[0]

    def ping(self) -> float:
        """Seconds of a round trip that waits for nothing but the messages before it."""
        with self._lock:
            self._require_connected()
            start = time.perf_counter()
            self._ask(m.Ping(id=self._next_id()), Empty)
            return time.perf_counter() - start

    def restart(self) -> None:
        with self._lock:
            self.close()
            self._generation += 1
            self._start()

    def close(self) -> None:
        with self._lock:
            self._handles.restart()
            if self._channel is not None:
                with contextlib.suppress(TapestryError):  # it is going away either way
                    self._ask(m.Close(id=self._next_id()), Empty, seconds=min(self.timeout, CLOSE_SECONDS))
            self._channel = None
            self._lost = None
            self._disconnect()

    def _start(self) -> None:
        """Connect and shake hands; to be called once by the subclass's constructor."""
        self._channel = self._connect()
        self._lost = None
        self._known = set()
        self._unanswered = 0
        hello = m.Hello(
            id=self._next_id(),
            protocol=m.PROTOCOL_VERSION,
            device=self._device_name,
            token=self._token,
            client=CLIENT,
            session=self._session,
            timeout_ms=round(1000 * self.timeout),
        )
        try:
            welcome, _ = self._ask(hello, m.Welcome, seconds=self._start_timeout)
        except TapestryError:
            self.close()
            raise
        self._binders = set()
        self._binding = 0.0
        self._info = welcome.info
        self._server = welcome.limits
        self._known.update(welcome.modules)
        self._contents.reconnected(bool(self.content_bytes))

    def _give_back(self, message: m.Free | m.Unload) -> None:
        with contextlib.suppress(DeviceLostError):  # what is lost needs no freeing; the next command tells
            self._post(message)

    def _send_module(self, digest: str, encoded: bytes) -> None:
        if len(encoded) > self._server.module_bytes:
            raise UsageError(f"a module of {len(encoded):,} bytes is over the limit of {self._server.module_bytes:,}")
        for message, part in parts_of(m.Module, digest, encoded, self._server.payload_bytes):
            self._post(message, part)
        self._known.add(digest)

    def _ask_load(self, loaded: Loaded, encoded: bytes) -> None:
        try:
            self._ask(m.Load(id=self._next_id(), module=loaded.id, digest=loaded.digest), Empty)
        except m.MissingContentError:  # the server has dropped it meanwhile
            self._send_module(loaded.digest, encoded)
            self._ask(m.Load(id=self._next_id(), module=loaded.id, digest=loaded.digest), Empty)

    def _post_commands(self, commands: Sequence[m.WireCommand]) -> None:
        """One submit message, or several where the header would be too long."""
        header = _encoder.encode(m.Submit(commands=tuple(commands)))
        if len(header) <= self._server.header_bytes:
            self._stay_in_window(len(header))
            self._send(Frame(header), "submit", self._patience)
            return
        if len(commands) == 1:
            raise UsageError(f"one command takes {len(header):,} bytes, the limit is {self._server.header_bytes:,}")
        middle = len(commands) // 2
        self._post_commands(commands[:middle])
        self._post_commands(commands[middle:])

    def _seconds_to_bind(self, command: Command) -> float:
        """What a command adds to the patience: a call of the constants alone binds them."""
        if not isinstance(command, Call) or command.outputs or command.loaded.id not in self._binders:
            return 0.0
        return self.bind_timeout + BIND_SECONDS_PER_MIB * sum(buffer.nbytes for buffer in command.inputs) / 2**20
