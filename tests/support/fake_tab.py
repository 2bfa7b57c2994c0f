"""What a browser's tab does, without a browser: the WebSocket of the agent page, with any device behind it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

from websockets.sync.client import ClientConnection, connect

from support.mock_device import MockDevice
from tapestry.runtime.browser.host import AGENT_PATH, PROTOCOL, TOKEN_PREFIX
from tapestry.runtime.device import Device
from tapestry.runtime.protocol.framing import HANDSHAKE_LIMITS, ChannelClosedError
from tapestry.runtime.protocol.session import Session
from tapestry.runtime.remote.channel import WebSocketChannel, connection_options


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def connect_as_tab(port: int, token: str, origin: str = "", host: str = "localhost") -> Generator[ClientConnection]:
    """The WebSocket as the page opens it. Raises InvalidStatus when the host refuses it."""
    connecting = connect(
        f"ws://{host}:{port}{AGENT_PATH}",
        origin=origin or f"http://localhost:{port}",  # type: ignore[arg-type]
        subprotocols=[PROTOCOL, TOKEN_PREFIX + token],  # type: ignore[list-item]
        open_timeout=10,
        proxy=None,
        **connection_options(),
    )
    with connecting as connection:
        yield connection


@contextmanager
def tab(port: int, token: str, device: Device | None = None) -> Generator[WebSocketChannel]:
    """A tab that serves a (mock) device once, until its end."""
    with connect_as_tab(port, token) as connection:
        channel = WebSocketChannel(connection, HANDSHAKE_LIMITS)
        thread = threading.Thread(target=_serve, args=(channel, device or MockDevice()), daemon=True)
        thread.start()
        try:
            yield channel
        finally:
            channel.cut()
            thread.join(10)


def _serve(channel: WebSocketChannel, device: Device) -> None:
    session = Session(lambda _: device)
    try:
        while not session.finished and (frame := channel.receive()) is not None:
            answer = session.handle(frame)
            channel.limits = session.limits
            if answer is not None:
                channel.send(answer)
    except ChannelClosedError:
        pass  # the host has gone
