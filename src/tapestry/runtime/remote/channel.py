"""Frames over an open WebSocket of the websockets library (its threading flavour), client or server side.

Each binary message is one frame. Not here: connecting, listening, and what frames mean.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

from tapestry.runtime.protocol.framing import (
    PREFIX,
    ChannelClosedError,
    ChannelTimeoutError,
    Frame,
    FrameLimits,
    ProtocolError,
    join_frame,
    parse_frame,
)

if TYPE_CHECKING:
    from websockets.sync.connection import Connection

#: Seconds between two pings of the WebSocket, and for the other side's answer: how long a half-open connection lasts.
PING_SECONDS = 10.0
PONG_SECONDS = 30.0
#: Seconds for the closing handshake of the WebSocket.
CLOSE_SECONDS = 1.0
#: Bytes that the system may hold back for sending: a ping never waits behind more than that.
SEND_BUFFER_BYTES = 1 << 20
#: Messages that wait unread in the library before it stops reading from the network.
QUEUED_MESSAGES = 4

#: The library logs what peers do wrong and what they sent; we say what matters ourselves.
_silent = logging.Logger("tapestry.websocket", logging.CRITICAL + 1)

#: The close code of a message over the limits (RFC 6455, 7.4.1).
_TOO_BIG = 1009


def connection_options(limits: FrameLimits | None = None) -> dict[str, Any]:
    """What ``connect`` and ``serve`` of websockets.sync must be given for a channel. Compression is off: it costs
    more time than it saves on tensors, and lets a small message be a large one.
    """
    return {
        "logger": _silent,
        "compression": None,
        "max_size": message_bytes(limits or FrameLimits()),
        "max_queue": QUEUED_MESSAGES,
        "ping_interval": PING_SECONDS,
        "ping_timeout": PONG_SECONDS,
        "close_timeout": CLOSE_SECONDS,
    }


def message_bytes(limits: FrameLimits) -> int:
    """The largest message that a frame within the limits is."""
    return PREFIX.size + limits.header_bytes + limits.payload_bytes


class WebSocketChannel:
    """A Channel over ``connection``, which it owns. One thread may send while another receives.

    ``limits`` bound what is received and may be replaced at any time; what is over them is refused by its length,
    before it is read.
    """

    def __init__(self, connection: Connection, limits: FrameLimits) -> None:
        self._connection = connection
        self._limits = limits
        self._send_seconds: int | None = None
        self.limits = limits
        with contextlib.suppress(OSError):
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    @property
    def limits(self) -> FrameLimits:
        return self._limits

    @limits.setter
    def limits(self, limits: FrameLimits) -> None:
        self._limits = limits
        protocol: Any = self._connection.protocol
        name = "max_message_size" if hasattr(protocol, "max_message_size") else "max_size"  # the latter before 16
        setattr(protocol, name, message_bytes(limits))

    @property
    def peer(self) -> str:
        """The other side's address, for people."""
        try:
            host, port = self._connection.remote_address[:2]
        except (OSError, TypeError, ValueError):
            return "an unknown address"
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"

    def send(self, frame: Frame, deadline: float | None = None) -> None:
        from websockets.exceptions import ConnectionClosed

        self._let_sending_take(deadline)
        try:
            self._connection.send(join_frame(frame))
        except ConnectionClosed as error:
            if isinstance(error.__cause__, BlockingIOError | TimeoutError):
                raise ChannelTimeoutError("the other side does not take what is sent") from error
            raise ChannelClosedError(f"the connection broke while sending: {_reason(error)}") from error

    def receive(self, deadline: float | None = None) -> Frame | None:
        from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

        try:
            message = self._connection.recv(None if deadline is None else deadline - time.monotonic())
        except TimeoutError as error:
            raise ChannelTimeoutError("no answer came in time") from error
        except ConnectionClosedOK:
            return None
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == _TOO_BIG and not error.rcvd_then_sent:
                raise ProtocolError(f"a message over the limit of {message_bytes(self._limits)} bytes") from error
            raise ChannelClosedError(f"the connection broke: {_reason(error)}") from error
        if isinstance(message, str):
            raise ProtocolError("a text message; frames travel in binary ones")
        return parse_frame(message, self._limits)

    def close(self) -> None:
        """End the connection; waits for the other side's agreement for CLOSE_SECONDS at most."""
        self._let_sending_take(time.monotonic() + CLOSE_SECONDS)
        self._connection.close()

    def close_quietly(self) -> None:
        """``close``, also where sending is past its time."""
        with contextlib.suppress(ChannelTimeoutError):
            self.close()

    def cut(self) -> None:
        """End the connection at once, from any thread, without a word to the other side."""
        # It wakes whoever sends or receives; close() would wait for a sender.
        with contextlib.suppress(OSError):
            self._connection.socket.shutdown(socket.SHUT_RDWR)

    def _let_sending_take(self, deadline: float | None) -> None:
        """Bound how long the system may make no progress while sending: the library has no timeout for that."""
        seconds = 0 if deadline is None else math.ceil(deadline - time.monotonic())
        if deadline is not None and seconds <= 0:
            raise ChannelTimeoutError("no answer came in time")
        if seconds == self._send_seconds:
            return
        with contextlib.suppress(OSError):  # closed: sending tells
            value = struct.pack("@ll", seconds, 0)  # struct timeval; 0 waits without end
            self._connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
            self._send_seconds = seconds


def _reason(error: Exception) -> str:
    cause = error.__cause__
    return f"{error} ({cause})" if cause is not None else str(error)
