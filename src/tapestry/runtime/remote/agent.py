"""The serving side: an agent listens, lets one client in, and drives the device for it in worker processes.

Whatever a client sends or a driver does costs at most a worker. Not here: the command line, and what may come in.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tapestry.errors import EnvironmentProblem, TapestryError, UsageError
from tapestry.runtime.device import Device
from tapestry.runtime.names import DeviceName
from tapestry.runtime.protocol import messages as m
from tapestry.runtime.protocol.framing import HANDSHAKE_LIMITS, FrameLimits, ProtocolError
from tapestry.runtime.protocol.session import Session
from tapestry.runtime.protocol.store import ModuleStore
from tapestry.runtime.remote.channel import WebSocketChannel, connection_options
from tapestry.runtime.remote.guard import Guard
from tapestry.runtime.remote.holders import Holder, Holders
from tapestry.runtime.remote.inbox import Inbox
from tapestry.runtime.worker.device import DEFAULT_TIMEOUT, WorkerDevice

if TYPE_CHECKING:
    from websockets.http11 import Request, Response
    from websockets.sync.server import ServerConnection

#: Parts of 1 MiB: a ping waits behind one of them at most.
PAYLOAD_BYTES = 1 << 20
#: The largest module: kernels and programs, whose weights travel apart from them.
MODULE_BYTES = 512 << 20
#: What a client may send while the device is busy, and what is read ahead for it.
WINDOW_BYTES = 32 << 20
#: Contents of constants that are kept between connections, if nothing else is said.
QUOTA_BYTES = 1 << 30
#: Seconds for the opening of a WebSocket, and again for the hello.
HELLO_SECONDS = 10.0
#: Connections at a time, those that have not shown a token yet included.
MAX_CONNECTIONS = 32
#: Seconds before a wrong token is answered.
WRONG_TOKEN_SECONDS = 0.25
#: The longest that a client may let a request take.
MAX_TIMEOUT = 24 * 3600.0


@dataclass(frozen=True)
class AgentOptions:
    """What an agent serves and to whom. ``quota_bytes`` of contents are kept; ``listen`` is a host and a port (0: any
    free one).
    """

    device: DeviceName
    token: str = field(repr=False)
    listen: tuple[str, int] = ("127.0.0.1", 0)
    guard: Guard = field(default_factory=Guard)
    quota_bytes: int = QUOTA_BYTES


class Agent:
    """A listening agent, which serves until ``stop``.

    ``tell`` gets a line for people whenever a client comes or goes; it holds no secret.

    Raises EnvironmentProblem when it cannot listen there, or the device cannot be opened.
    """

    def __init__(self, options: AgentOptions, tell: Callable[[str], None] = lambda line: None) -> None:
        if not options.token:
            raise UsageError("an agent needs a token")
        from websockets.sync.server import serve

        self.options = options
        self._tell = tell
        self._modules = ModuleStore()
        self._contents = ModuleStore(options.quota_bytes, "content")
        self._holders = Holders()
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        with WorkerDevice(options.device) as device:
            self.info = device.info
        self._server = serve(
            self._serve,
            sock=_listening(options.listen),
            process_request=self._let_in,
            server_header=None,
            open_timeout=HELLO_SECONDS,
            **connection_options(HANDSHAKE_LIMITS),
        )
        self._stopping = threading.Event()
        # Not in the main thread, where an interrupt may come at any place.
        self._accepting = threading.Thread(target=self._server.serve_forever, name="tapestry-agent")
        self._accepting.start()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port where it listens."""
        host, port = self._server.socket.getsockname()[:2]
        return host, port

    def serve_forever(self) -> None:
        """Wait until ``stop`` is called from another thread, or an exception interrupts it, which stops it too."""
        try:
            self._stopping.wait()
        finally:
            self.stop()

    def stop(self) -> None:
        """End all connections and their workers. May be called again."""
        self._stopping.set()
        self._holders.end_all()
        self._server.shutdown()
        self._accepting.join()

    def _let_in(self, connection: ServerConnection, request: Request) -> Response | None:
        """An HTTP answer for whom the guard refuses, before anything is upgraded."""
        headers = request.headers
        refusal = self.options.guard.refuses(request.path, headers.get_all("Host"), headers.get_all("Origin"))
        if refusal is None:
            return None
        return connection.respond(refusal.status, refusal.text)

    def _serve(self, connection: ServerConnection) -> None:
        if not self._connections.acquire(blocking=False):
            return
        channel = WebSocketChannel(connection, HANDSHAKE_LIMITS)
        try:
            with contextlib.suppress(TapestryError):  # the client is gone; there is nobody to tell
                self._greet(channel)
        finally:
            self._connections.release()
            channel.close_quietly()

    def _greet(self, channel: WebSocketChannel) -> None:
        """The handshake; then the session."""
        holder = Holder(channel)
        session = Session(
            lambda name: self._open(name, session, holder),
            token=self.options.token,
            limits=self._limits(),
            store=self._modules,
            contents=self._contents,
            admit=self.options.guard.admit,
            memory_bytes=self.info.limits.memory_bytes or None,
        )
        try:
            frame = channel.receive(time.monotonic() + HELLO_SECONDS)
            answer = session.handle(frame) if frame is not None else None
        except ProtocolError as error:
            answer = session.refuse(error)
        if session.hello is None:
            self._tell(f"refused {channel.peer}, which came without the right token")
            time.sleep(WRONG_TOKEN_SECONDS)
        try:
            # Before the client hears that it may send more.
            channel.limits = session.limits
            if answer is not None:
                channel.send(answer, time.monotonic() + HELLO_SECONDS)
            if not session.finished and answer is not None:
                self._converse(channel, session, holder)
        finally:
            session.close()
            self._holders.release(holder)

    def _converse(self, channel: WebSocketChannel, session: Session, holder: Holder) -> None:
        self._tell(f"{holder.client} connected from {channel.peer}")
        inbox = Inbox(channel, 2 * WINDOW_BYTES, holder.end)
        try:
            while not session.finished and (frame := inbox.get()) is not None:
                answer = session.handle(frame)
                if answer is not None:
                    channel.send(answer, time.monotonic() + holder.timeout)
            if isinstance(inbox.reason, ProtocolError):
                channel.send(session.refuse(inbox.reason), time.monotonic() + HELLO_SECONDS)
        finally:
            holder.leaving = True
            inbox.stop()
            why = f": {inbox.reason}" if inbox.reason is not None else ""
            self._tell(f"{holder.client} is gone{why}")

    def _open(self, name: str, session: Session, holder: Holder) -> Device:
        """The device for a client that has shown the token."""
        if name not in {"", str(self.options.device)}:
            raise UsageError(f"this agent serves {self.options.device}, not {name!r}")
        assert session.hello is not None, "the session sets it before it opens the device"
        hello = session.hello
        seconds = hello.timeout_ms / 1000 or DEFAULT_TIMEOUT
        self._holders.claim(holder, hello.client, hello.session, min(seconds, MAX_TIMEOUT))
        worker = WorkerDevice(self.options.device, timeout=holder.timeout)
        holder.give(worker)
        return worker

    def _limits(self) -> m.ServerLimits:
        return m.ServerLimits(
            header_bytes=FrameLimits().header_bytes,
            payload_bytes=PAYLOAD_BYTES,
            module_bytes=MODULE_BYTES,
            content_bytes=self.options.quota_bytes // 2,
            window_bytes=WINDOW_BYTES,
        )


def _listening(address: tuple[str, int]) -> socket.socket:
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address with --listen"
        ) from error
