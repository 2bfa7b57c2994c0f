"""The host of a browser device: serves the agent page on loopback and takes the WebSockets that it opens.

Who gets in: requests whose ``Host`` is this host's own name (a name that is rebound to 127.0.0.1 is another one),
WebSockets with this host's own origin and the token. Not here: what is said over them (device.py).
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from tapestry.errors import EnvironmentProblem
from tapestry.runtime.browser.pages import HEADERS, pages
from tapestry.runtime.protocol.framing import FrameLimits
from tapestry.runtime.remote.channel import WebSocketChannel, connection_options

if TYPE_CHECKING:
    from websockets.http11 import Request, Response
    from websockets.sync.server import Server, ServerConnection

#: The WebSocket's address on the host, and the subprotocols by which a tab says what it speaks and that it may.
AGENT_PATH = "/agent"
PROTOCOL = "tapestry.1"
TOKEN_PREFIX = "token."

#: Seconds for a connection to become a WebSocket or a request for a page.
OPENING_SECONDS = 10.0
#: Seconds that a tab on offer has to show that it is still there.
ALIVE_SECONDS = 5.0
#: Tabs that may wait to be used; further ones are closed.
MOST_WAITING = 16

_LOOPBACK = "127.0.0.1"


class TabHost:
    """Serves on loopback from its creation to ``close``. ``port`` 0 takes a free one.

    EnvironmentProblem when the port is in use or the library for WebSockets is missing.
    """

    def __init__(self, port: int = 0, token: str = "") -> None:
        self.token = token or secrets.token_urlsafe(24)
        self._waiting: list[ServerConnection] = []
        self._came = threading.Condition()
        self._closed = threading.Event()
        self._socket = _listen(port)
        self.port = int(self._socket.getsockname()[1])
        self._server = self._serve()
        # A daemon, and so are the threads that it starts for connections: none keeps the interpreter from its end.
        self._thread = threading.Thread(target=self._server.serve_forever, name="tapestry-tabs", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address to open, with the token in the fragment, which a browser never sends."""
        return f"http://localhost:{self.port}/#token={quote(self.token)}"

    def take(self, seconds: float) -> WebSocketChannel | None:
        """A tab that nobody uses and that answers; None when none comes within ``seconds``."""
        deadline = time.monotonic() + seconds
        while (connection := self._next(deadline)) is not None:
            if _answers(connection):
                return WebSocketChannel(connection, FrameLimits())
        return None

    def _next(self, deadline: float) -> ServerConnection | None:
        with self._came:
            self._came.wait_for(lambda: self._waiting, max(0.0, deadline - time.monotonic()))
            return self._waiting.pop(0) if self._waiting else None

    def close(self) -> None:
        """Stop serving and end all connections. May be called again."""
        if not self._closed.is_set():
            self._closed.set()
            self._server.shutdown()
            self._thread.join()

    def _serve(self) -> Server:
        try:
            from websockets.sync.server import serve
        except ImportError as error:
            self._socket.close()
            raise EnvironmentProblem(
                f"a browser as a device needs websockets ({error}): pip install 'tapestry-ml[remote]'"
            ) from error
        return serve(
            self._offer,
            sock=self._socket,
            process_request=self._answer,
            select_subprotocol=lambda _, offered: PROTOCOL if PROTOCOL in offered else None,  # type: ignore[arg-type, return-value]
            open_timeout=OPENING_SECONDS,
            server_header=None,
            **connection_options(),
        )

    def _offer(self, connection: ServerConnection) -> None:
        """A tab has come in: it waits until a device takes it. The connection ends with this function."""
        with self._came:
            if len(self._waiting) >= MOST_WAITING:
                return
            self._waiting.append(connection)
            self._came.notify_all()
        connection.recv_events_thread.join()
        with self._came, contextlib.suppress(ValueError):  # taken, most likely
            self._waiting.remove(connection)

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """None lets a WebSocket in; everything else is a page or a refusal."""
        names = {f"localhost:{self.port}", f"{_LOOPBACK}:{self.port}"}
        if _header(request, "Host") not in names:
            return _refuse(connection, HTTPStatus.MISDIRECTED_REQUEST, "this host answers to its own name only")
        path = request.path.partition("?")[0]
        if path != AGENT_PATH:
            return _page(connection, path)
        if not self._has_token(request):
            return _refuse(connection, HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
        if _header(request, "Origin") not in {f"http://{name}" for name in names}:
            return _refuse(connection, HTTPStatus.FORBIDDEN, "a page of another origin is not let in")
        return None

    def _has_token(self, request: Request) -> bool:
        offered = [part.strip() for part in _header(request, "Sec-WebSocket-Protocol").split(",")]
        given = next((part.removeprefix(TOKEN_PREFIX) for part in offered if part.startswith(TOKEN_PREFIX)), "")
        return hmac.compare_digest(given.encode(), self.token.encode())


def _listen(port: int) -> socket.socket:
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((_LOOPBACK, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise EnvironmentProblem(
            f"port {port} on this machine cannot be used ({error.strerror}): choose another, browser@PORT"
        ) from error
    return listening


def _answers(connection: ServerConnection) -> bool:
    from websockets.exceptions import ConnectionClosed

    try:
        return connection.ping().wait(ALIVE_SECONDS)
    except ConnectionClosed:
        return False


def _header(request: Request, name: str) -> str:
    """A header's value; nothing where it stands twice."""
    values = request.headers.get_all(name)
    return values[0] if len(values) == 1 else ""


def _page(connection: ServerConnection, path: str) -> Response:
    page = pages().get(path)
    if page is None:
        return _refuse(connection, HTTPStatus.NOT_FOUND, "there is no such page here")
    response = connection.respond(HTTPStatus.OK, "")
    del response.headers["Content-Type"]
    del response.headers["Content-Length"]
    response.headers.update({"Content-Type": page.content_type, "Content-Length": str(len(page.body)), **HEADERS})
    response.body = page.body
    return response


def _refuse(connection: ServerConnection, status: HTTPStatus, why: str) -> Response:
    response = connection.respond(status, f"{why}\n")
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response
