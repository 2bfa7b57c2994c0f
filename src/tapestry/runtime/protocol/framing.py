"""Frames: two lengths, a MessagePack header, a binary payload. Lengths are checked before anything is allocated.

Not here: what a header means (messages.py).
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from typing import Protocol

from tapestry.errors import TapestryError

#: Header length and payload length, in bytes: two little-endian unsigned 32-bit numbers.
PREFIX = struct.Struct("<II")


class ProtocolError(TapestryError):
    """The other side broke the protocol; the connection is of no further use."""


class ChannelClosedError(TapestryError):
    """The connection ended."""


class ChannelTimeoutError(TapestryError):
    """The other side did not answer, or did not take what was sent, in time."""


@dataclass(frozen=True)
class FrameLimits:
    """The largest frame a side accepts, in bytes."""

    header_bytes: int = 4 << 20
    payload_bytes: int = 8 << 20


#: Until the handshake is done: room for a hello, nothing else.
HANDSHAKE_LIMITS = FrameLimits(header_bytes=4096, payload_bytes=0)


@dataclass(frozen=True)
class Frame:
    """One message: the encoded header and the payload that belongs to it."""

    header: bytes | bytearray
    payload: bytes | bytearray | memoryview = b""


def parse_frame(message: bytes | bytearray | memoryview, limits: FrameLimits) -> Frame:
    """The one frame that a whole message (of a WebSocket) is. ProtocolError unless the lengths add up."""
    view = memoryview(message)
    if view.nbytes < PREFIX.size:
        raise ProtocolError(f"a message of {view.nbytes} bytes is too short for a frame")
    header, payload = _check_lengths(bytes(view[: PREFIX.size]), limits)
    if view.nbytes != PREFIX.size + header + payload:
        raise ProtocolError(f"a message of {view.nbytes} bytes declares {header} of header and {payload} of payload")
    middle = PREFIX.size + header
    return Frame(bytes(view[PREFIX.size : middle]), view[middle:])


def join_frame(frame: Frame) -> bytes:
    """The bytes of a frame, as one message."""
    return b"".join((PREFIX.pack(len(frame.header), memoryview(frame.payload).nbytes), frame.header, frame.payload))


class Channel(Protocol):
    """Where frames go and come from. ``deadline`` is a time.monotonic() value; None waits without end."""

    @property
    def limits(self) -> FrameLimits:
        """What bounds a received frame; may be replaced at any time."""
        ...

    @limits.setter
    def limits(self, limits: FrameLimits) -> None: ...

    def send(self, frame: Frame, deadline: float | None = None) -> None:
        """Hand a frame over. ChannelTimeoutError: the other side does not take it; ChannelClosedError: it is gone."""
        ...

    def receive(self, deadline: float | None = None) -> Frame | None:
        """The next frame, None at an orderly end. ProtocolError: over the limits; ChannelClosedError: cut short."""
        ...

    def close(self) -> None: ...


class SocketChannel:
    """Frames over a connected stream socket. ``limits`` bound what is received and may be replaced at any time."""

    def __init__(self, connection: socket.socket, limits: FrameLimits) -> None:
        self.limits = limits
        self._socket = connection

    def send(self, frame: Frame, deadline: float | None = None) -> None:
        payload = memoryview(frame.payload).cast("B") if len(frame.payload) else memoryview(b"")
        start = PREFIX.pack(len(frame.header), payload.nbytes) + frame.header
        parts = [memoryview(start), payload] if payload.nbytes else [memoryview(start)]
        while parts:
            self._socket.settimeout(_remaining(deadline))
            try:
                sent = self._socket.sendmsg(parts)
            except TimeoutError as error:
                raise ChannelTimeoutError("the other side does not take what is sent") from error
            except OSError as error:
                raise ChannelClosedError(f"the connection broke while sending: {error}") from error
            while parts and sent >= parts[0].nbytes:
                sent -= parts.pop(0).nbytes
            if parts:
                parts[0] = parts[0][sent:]

    def receive(self, deadline: float | None = None) -> Frame | None:
        prefix = bytearray(PREFIX.size)
        if not self._fill(prefix, deadline, may_end=True):
            return None
        header_bytes, payload_bytes = _check_lengths(prefix, self.limits)
        header, payload = bytearray(header_bytes), bytearray(payload_bytes)
        self._fill(header, deadline)
        self._fill(payload, deadline)
        return Frame(header, payload)

    def close(self) -> None:
        self._socket.close()

    def _fill(self, target: bytearray, deadline: float | None, *, may_end: bool = False) -> bool:
        """Fill ``target``; False when the connection ended before its first byte and ``may_end`` allows that."""
        view = memoryview(target)
        done = 0
        while done < len(target):
            self._socket.settimeout(_remaining(deadline))
            try:
                got = self._socket.recv_into(view[done:])
            except TimeoutError as error:
                raise ChannelTimeoutError("no answer came in time") from error
            except OSError as error:
                raise ChannelClosedError(f"the connection broke while receiving: {error}") from error
            if not got:
                if may_end and not done:
                    return False
                raise ChannelClosedError(f"the connection ended inside a frame, {len(target) - done} bytes short")
            done += got
        return True


def _check_lengths(prefix: bytes | bytearray, limits: FrameLimits) -> tuple[int, int]:
    header, payload = PREFIX.unpack(prefix)
    if not 0 < header <= limits.header_bytes:
        raise ProtocolError(f"a header of {header} bytes; expected 1 to {limits.header_bytes}")
    if payload > limits.payload_bytes:
        raise ProtocolError(f"a payload of {payload} bytes; at most {limits.payload_bytes} are accepted")
    return header, payload


def _remaining(deadline: float | None) -> float | None:
    """Seconds left for a socket operation. Never 0, which would mean non-blocking."""
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise ChannelTimeoutError("no answer came in time")
    return left
