"""Messages out and answers in, over one channel after the other: time limits, the server's window, and loss.

Not here: what is asked (client.py), and how a channel is made.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from tapestry.errors import DeviceLostError, TapestryError, UsageError
from tapestry.runtime.handles import Handles
from tapestry.runtime.protocol import messages as m
from tapestry.runtime.protocol.framing import (
    Channel,
    ChannelClosedError,
    ChannelTimeoutError,
    Frame,
    ProtocolError,
)

#: What a message counts in the server's window beside its payload.
MESSAGE_BYTES = 512

StructT = TypeVar("StructT", bound=msgspec.Struct)
_encoder = msgspec.msgpack.Encoder()
_answers: msgspec.msgpack.Decoder[m.Answer] = msgspec.msgpack.Decoder(m.Answer)


class Empty(msgspec.Struct):
    """The result of requests that return nothing."""


class Asking(ABC):
    """The calling end of a channel; None when there is none. ``_handles`` are void once it is lost."""

    def __init__(self, device: str, timeout: float) -> None:
        self.timeout = timeout
        self._device_name = device
        self._handles = Handles()
        self._channel: Channel | None = None
        self._lost: DeviceLostError | None = None
        self._last_id = 0
        #: Bytes sent since the last answer.
        self._unanswered = 0
        #: Seconds granted to the binding of constants that may still go on.
        self._binding = 0.0
        self._server = m.ServerLimits()

    @abstractmethod
    def _abandon(self, reason: TapestryError, during: str) -> DeviceLostError:
        """Give the connection up (kill the worker); the error to raise. ``during`` names the command."""

    def _post(self, message: m.Message, payload: bytes | memoryview = b"") -> None:
        self._stay_in_window(memoryview(payload).nbytes)
        self._send(Frame(_encoder.encode(message), payload), operation(message), self._patience)

    def _stay_in_window(self, nbytes: int) -> None:
        """Wait for the server where it might stop reading, and with that stop answering the connection's pings."""
        nbytes += MESSAGE_BYTES
        if self._server.window_bytes and self._unanswered + nbytes > self._server.window_bytes:
            self._ask(m.Ping(id=self._next_id()), Empty)
        self._unanswered += nbytes

    def _ask(
        self, message: m.Message, result: type[StructT], *, payload_bytes: int = 0, seconds: float | None = None
    ) -> tuple[StructT, bytes | bytearray | memoryview]:
        command = operation(message)
        header = _encoder.encode(message)
        if len(header) > self._server.header_bytes:
            raise UsageError(f"a {command} message of {len(header):,} bytes is over {self._server.header_bytes:,}")
        allowed = self._patience if seconds is None else seconds
        deadline = time.monotonic() + allowed
        self._send(Frame(header), command, allowed)
        return self._take(message, result, payload_bytes, deadline)

    def _read_parts(self, requests: Sequence[m.Read]) -> list[bytes | bytearray | memoryview]:
        """All asked for before the first is waited for: one round trip. The first error of them is raised."""
        parts: list[bytes | bytearray | memoryview] = []
        failed: TapestryError | None = None
        for request in requests:
            self._send(Frame(_encoder.encode(request)), "read", self._patience)
        for request in requests:
            try:
                parts.append(self._take(request, Empty, request.nbytes, time.monotonic() + self._patience)[1])
            except DeviceLostError:
                raise
            except TapestryError as error:
                failed = failed or error  # the answers to the others are still to be taken
        if failed is not None:
            raise failed
        return parts

    def _take(
        self, message: m.Message, result: type[StructT], payload_bytes: int, deadline: float
    ) -> tuple[StructT, bytes | bytearray | memoryview]:
        """The answer to a message that was sent; those to earlier ones have been taken."""
        command = operation(message)
        frame = self._receive(command, deadline)
        self._unanswered = 0
        self._binding = 0.0  # it answers in order: what was submitted before has run
        try:
            answer = _answers.decode(frame.header)
            if isinstance(answer, m.Reply):
                if answer.id != message.id or len(frame.payload) != payload_bytes:
                    raise ProtocolError(
                        f"expected reply {message.id} with {payload_bytes} bytes, "
                        f"got {answer.id} with {len(frame.payload)}"
                    )
                return msgspec.msgpack.decode(answer.result, type=result), frame.payload
        except (msgspec.DecodeError, UnicodeDecodeError, ProtocolError) as error:
            raise self._lose(ProtocolError(f"its answer is wrong: {error}"), command) from error
        error = m.error_from(answer)
        if command != "hello" and (answer.fatal or isinstance(error, DeviceLostError)):
            raise self._lose(error, command) from error
        raise error

    def _send(self, frame: Frame, command: str, seconds: float) -> None:
        channel = self._require_connected()
        try:
            channel.send(frame, time.monotonic() + seconds)
        except (ChannelClosedError, ChannelTimeoutError) as error:
            raise self._lose(error, command) from error
        except BaseException:  # Ctrl-C: half a frame may have gone out
            self._lose(ProtocolError("interrupted"), command)
            raise

    def _receive(self, command: str, deadline: float) -> Frame:
        channel = self._require_connected()
        try:
            frame = channel.receive(deadline)
        except (ChannelClosedError, ChannelTimeoutError, ProtocolError) as error:
            raise self._lose(error, command) from error
        except BaseException:  # Ctrl-C: the answer would be taken for that of the next request
            self._lose(ProtocolError("interrupted"), command)
            raise
        if frame is None:
            raise self._lose(ChannelClosedError("the connection ended"), command)
        return frame

    def _lose(self, reason: TapestryError, command: str) -> DeviceLostError:
        self._channel = None
        self._handles.restart()
        self._lost = self._abandon(reason, command)
        self._binding = 0.0
        return self._lost

    @property
    def _patience(self) -> float:
        """Seconds for a request, with those granted to binding that it may have to wait for."""
        return self.timeout + self._binding

    def _require_connected(self) -> Channel:
        if self._channel is not None:
            return self._channel
        if self._lost is not None:
            raise type(self._lost)(f"the device is gone, call restart(): {self._lost}")
        raise DeviceLostError(f"device {self._device_name} is closed; call restart() or open it again")

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def operation(message: m.Message) -> str:
    """What a message is called in errors."""
    return str(message.__struct_config__.tag)
