"""The serving side of one connection: a message in, at most one answer out. No sockets, no processes.

A worker, an agent and the tests drive it with frames. It trusts nothing it is sent.
"""

from __future__ import annotations

import hmac
import traceback
from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec

from tapestry.errors import DeviceError, DeviceLostError, TapestryError, UnsupportedError, UsageError
from tapestry.runtime.device import Buffer, Call, Command, CopyBuffer, Device, Launch, Loaded
from tapestry.runtime.module import Artifact, KernelModule, Scalar
from tapestry.runtime.protocol import messages as m
from tapestry.runtime.protocol.framing import HANDSHAKE_LIMITS, Frame, FrameLimits, ProtocolError
from tapestry.runtime.protocol.store import ModuleStore, Uploads

#: Opens the device that a hello asks for; "" means the server's own choice. Called once the token is right.
DeviceOpener = Callable[[str], Device]

#: Refuses (by raising) modules that this server does not run.
Admission = Callable[[KernelModule | Artifact], None]

#: Messages that mean nothing once an earlier pipelined command has failed.
_DEPENDENT = (m.Write, m.Fill, m.Read, m.Submit, m.Time, m.Sync)

#: Buffers and modules of one session at most: what they cost beside their content is bounded by it.
MAX_BUFFERS = 1 << 18
MAX_MODULES = 1 << 14

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[m.Request] = msgspec.msgpack.Decoder(m.Request)


class _Envelope(msgspec.Struct):
    """What can be read of a message that is otherwise wrong."""

    op: m.Name = ""
    id: m.RequestId = 0


_envelopes = msgspec.msgpack.Decoder(_Envelope)
_modules: msgspec.msgpack.Decoder[KernelModule | Artifact] = msgspec.msgpack.Decoder(KernelModule | Artifact)


class _Result(NamedTuple):
    value: msgspec.Struct | None = None
    payload: bytes = b""


class _Fault(NamedTuple):
    command: str
    error: Exception


class Session:
    """One client's connection. ``limits`` (of frames) must be applied to what is received, before each frame.

    ``contents`` are kept where ``limits.content_bytes`` is not 0. ``memory_bytes`` bounds what the buffers take
    together. ``hello`` is what the client said of itself, once its token was right.
    """

    def __init__(
        self,
        open_device: DeviceOpener,
        *,
        token: str = "",
        limits: m.ServerLimits | None = None,
        store: ModuleStore | None = None,
        contents: ModuleStore | None = None,
        admit: Admission | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self.finished = False
        self.hello: m.Hello | None = None
        self._open_device = open_device
        self._token = token
        self._limits = limits or m.ServerLimits()
        self._store = store or ModuleStore()
        self._uploads = Uploads(self._store)
        self._contents = contents or ModuleStore(what="content")
        self._content_uploads = Uploads(self._contents)
        #: What was completed last, which stays at hand whatever other sessions send.
        self._newest: tuple[str, bytes] = ("", b"")
        self._memory_bytes = memory_bytes
        self._allocated = 0
        self._admit = admit
        self._opened: Device | None = None
        self._buffers: dict[int, Buffer | None] = {}
        self._loaded: dict[int, Loaded | None] = {}
        self._fault: _Fault | None = None
        self._handlers = cast("dict[type[m.Message], Callable[[m.Message, Frame], _Result]]", {
            m.Info: self._info, m.Alloc: self._alloc, m.Free: self._free, m.Write: self._write, m.Read: self._read,
            m.Module: self._module, m.Load: self._load, m.Unload: self._unload, m.Submit: self._submit,
            m.Have: self._have, m.Content: self._content, m.Fill: self._fill,
            m.Time: self._time, m.Sync: self._sync, m.Log: self._log, m.Stats: self._stats, m.Ping: self._ping,
            m.Close: self._close,
        })  # fmt: skip

    @property
    def limits(self) -> FrameLimits:
        """The largest frame accepted now: a small one until the client has been let in."""
        if self._opened is None:
            return HANDSHAKE_LIMITS
        return FrameLimits(self._limits.header_bytes, self._limits.payload_bytes)

    def handle(self, frame: Frame) -> Frame | None:
        """Carry out one message; the answer to send, if it asked for one. After a fatal one ``finished`` is true."""
        try:
            message = _requests.decode(frame.header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return self._malformed(frame, error)
        if self._opened is None:
            return self._greet(message)
        if self._fault is not None and self._stands_in_the_way(self._fault, message):
            return self._report_fault(message.id)
        command = _operation(message)
        try:
            if isinstance(message, m.Hello):
                raise UsageError("hello may be sent once, as the first message")
            if len(frame.payload) and not isinstance(message, m.Write | m.Module | m.Content):
                raise UsageError(f"{command} takes no payload, got {len(frame.payload)} bytes")
            result = self._handlers[type(message)](message, frame)
        except Exception as error:
            return self._failed(message.id, command, error)
        return _reply(message.id, result) if message.id else None

    def refuse(self, error: ProtocolError) -> Frame:
        """The last answer to a peer that broke the framing."""
        self.finished = True
        return _failure(0, UsageError(str(error)), fatal=True)

    def close(self) -> None:
        """End the session and close its device."""
        self.finished = True
        if self._opened is not None:
            self._opened.close()

    @property
    def _device(self) -> Device:
        assert self._opened is not None, "handlers run after the handshake"
        return self._opened

    def _greet(self, message: m.Request) -> Frame:
        try:
            if not isinstance(message, m.Hello) or not message.id:
                raise UsageError("the first message must be a hello with an id")
            if message.protocol != m.PROTOCOL_VERSION:
                raise UsageError(
                    f"this side speaks protocol {m.PROTOCOL_VERSION}, the client {message.protocol}: "
                    "install the same release of tapestry-ml on both sides"
                )
            if not hmac.compare_digest(message.token.encode(), self._token.encode()):
                raise UsageError("the token is missing or wrong: give the one that the agent was started with")
            self.hello = message
            self._opened = self._open_device(message.device)
        except Exception as error:
            _note(error)
            self.finished = True
            return _failure(message.id, error, "hello", fatal=True)
        welcome = m.Welcome(m.PROTOCOL_VERSION, self._opened.info, self._limits, self._store.digests())
        return _reply(message.id, _Result(welcome))

    def _malformed(self, frame: Frame, error: Exception) -> Frame | None:
        """Unknown commands and bad fields concern one request; what is no message at all ends the connection."""
        try:
            envelope = _envelopes.decode(frame.header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.refuse(ProtocolError(f"a header is not a message: {error}"))
        if self._opened is None:
            self.finished = True
            return _failure(envelope.id, UsageError(f"the first message is wrong: {error}"), "hello", fatal=True)
        return self._failed(envelope.id, envelope.op, UsageError(f"message {envelope.op!r} is wrong: {error}"))

    def _failed(self, id_: int, command: str, error: Exception) -> Frame | None:
        _note(error)
        if id_:
            return _failure(id_, error, command)
        if self._fault is None:
            self._fault = _Fault(command, error)
        return None

    @staticmethod
    def _stands_in_the_way(fault: _Fault, message: m.Request) -> bool:
        """Whether a message gets the error of an earlier one; where the device is gone, every one does."""
        lost = isinstance(fault.error, DeviceLostError) and not isinstance(message, m.Close)
        return lost or isinstance(message, _DEPENDENT)

    def _report_fault(self, id_: int) -> Frame | None:
        fault = self._fault
        if not id_ or fault is None:
            return None
        if not isinstance(fault.error, DeviceLostError):
            self._fault = None
        return _failure(id_, fault.error, fault.command)

    def _info(self, message: m.Info, frame: Frame) -> _Result:
        return _Result(self._device.info)

    def _alloc(self, message: m.Alloc, frame: Frame) -> _Result:
        if message.buffer in self._buffers:
            raise UsageError(f"buffer {message.buffer} exists already")
        if len(self._buffers) >= MAX_BUFFERS:
            raise UnsupportedError(f"{len(self._buffers):,} buffers exist, the limit is {MAX_BUFFERS:,}")
        if not message.id:
            self._buffers[message.buffer] = None  # so that a failure of this one is not followed by one per use
        if self._memory_bytes is not None and self._allocated + message.nbytes > self._memory_bytes:
            left = self._memory_bytes - self._allocated
            raise DeviceError(f"out of memory: {message.nbytes:,} bytes asked for, {left:,} left")
        self._buffers[message.buffer] = self._device.alloc(message.nbytes)
        self._allocated += message.nbytes
        return _Result()

    def _free(self, message: m.Free, frame: Frame) -> _Result:
        if message.buffer not in self._buffers:
            raise UsageError(f"there is no buffer {message.buffer}")
        buffer = self._buffers.pop(message.buffer)
        if buffer is not None:
            self._allocated -= buffer.nbytes
            self._device.free(buffer)
        return _Result()

    def _write(self, message: m.Write, frame: Frame) -> _Result:
        self._device.write(self._buffer(message.buffer), frame.payload, message.offset)
        return _Result()

    def _read(self, message: m.Read, frame: Frame) -> _Result:
        if message.nbytes > self._limits.payload_bytes:
            raise UsageError(f"a read of {message.nbytes:,} bytes is over the limit of {self._limits.payload_bytes:,}")
        return _Result(payload=self._device.read(self._buffer(message.buffer), message.nbytes, message.offset))

    def _module(self, message: m.Module, frame: Frame) -> _Result:
        limit = self._limits.module_bytes
        self._uploads.add_part(message.digest, message.nbytes, message.offset, frame.payload, limit)
        return _Result()

    def _have(self, message: m.Have, frame: Frame) -> _Result:
        return _Result(m.Missing(self._contents.missing(message.digests)))

    def _content(self, message: m.Content, frame: Frame) -> _Result:
        limit = self._limits.content_bytes
        if message.nbytes > limit:
            raise UnsupportedError(f"a content of {message.nbytes:,} bytes is over the limit of {limit:,}")
        data = self._content_uploads.add_part(message.digest, message.nbytes, message.offset, frame.payload, limit)
        if data is not None:
            self._newest = (message.digest, data)
        return _Result()

    def _fill(self, message: m.Fill, frame: Frame) -> _Result:
        buffer = self._buffer(message.buffer)
        newest, data = self._newest
        if newest != message.digest:
            data = self._contents.get(message.digest)
        if data is None:
            raise m.MissingContentError(f"content {message.digest[:12]} is not here: send it, or write its bytes")
        self._device.write(buffer, data, message.offset)
        return _Result()

    def _load(self, message: m.Load, frame: Frame) -> _Result:
        if message.module in self._loaded:
            raise UsageError(f"module {message.module} exists already")
        if len(self._loaded) >= MAX_MODULES:
            raise UnsupportedError(f"{len(self._loaded):,} modules are loaded, the limit is {MAX_MODULES:,}")
        if not message.id:
            self._loaded[message.module] = None
        encoded = self._store.get(message.digest)
        if encoded is None:
            raise m.MissingContentError(f"module {message.digest[:12]} is not here: send it first")
        try:
            module = _modules.decode(encoded)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"module {message.digest[:12]} is not an encoded module: {error}") from error
        if self._admit is not None:
            self._admit(module)
        self._loaded[message.module] = self._device.load(module)
        return _Result()

    def _unload(self, message: m.Unload, frame: Frame) -> _Result:
        if message.module not in self._loaded:
            raise UsageError(f"there is no module {message.module}")
        loaded = self._loaded.pop(message.module)
        if loaded is not None:
            self._device.unload(loaded)
        return _Result()

    def _submit(self, message: m.Submit, frame: Frame) -> _Result:
        self._device.submit([self._command(command) for command in message.commands])
        return _Result()

    def _time(self, message: m.Time, frame: Frame) -> _Result:
        commands = [self._command(command) for command in message.commands]
        return _Result(m.Seconds(tuple(self._device.time(commands, message.repeats))))

    def _sync(self, message: m.Sync, frame: Frame) -> _Result:
        self._device.sync()
        return _Result()

    def _log(self, message: m.Log, frame: Frame) -> _Result:
        return _Result(m.Entries(tuple(self._device.launch_log(message.clear))))

    def _stats(self, message: m.Stats, frame: Frame) -> _Result:
        return _Result(self._device.stats())

    def _ping(self, message: m.Ping, frame: Frame) -> _Result:
        return _Result()

    def _close(self, message: m.Close, frame: Frame) -> _Result:
        self.close()
        return _Result()

    def _buffer(self, id_: int) -> Buffer:
        buffer = self._buffers.get(id_)
        if buffer is None:
            raise UsageError(f"there is no buffer {id_}")
        return buffer

    def _module_handle(self, id_: int) -> Loaded:
        loaded = self._loaded.get(id_)
        if loaded is None:
            raise UsageError(f"there is no module {id_}")
        return loaded

    def _command(self, command: m.WireCommand) -> Command:
        if isinstance(command, m.WireLaunch):
            args = tuple(
                self._buffer(argument) if isinstance(argument, int) else Scalar(argument.dtype, argument.value)
                for argument in command.args
            )
            loaded = self._module_handle(command.module)
            return Launch(loaded, command.kernel, args, command.grid, command.block, command.tag)
        if isinstance(command, m.WireCall):
            inputs = tuple(self._buffer(id_) for id_ in command.inputs)
            outputs = tuple(self._buffer(id_) for id_ in command.outputs)
            return Call(self._module_handle(command.module), inputs, outputs, command.tag)
        source, target = self._buffer(command.source), self._buffer(command.target)
        return CopyBuffer(source, target, command.nbytes, command.source_offset, command.target_offset)


def _reply(id_: int, result: _Result) -> Frame:
    encoded = b"\x80" if result.value is None else _encoder.encode(result.value)
    return Frame(_encoder.encode(m.Reply(id_, msgspec.Raw(encoded))), result.payload)


def _failure(id_: int, error: Exception, command: str = "", *, fatal: bool = False) -> Frame:
    text = str(error) if isinstance(error, TapestryError) else f"{type(error).__name__}: {error}"
    return Frame(_encoder.encode(m.Failure(id_, m.error_kind(error), text[:16_000], command, fatal)))


def _operation(message: m.Request) -> str:
    return str(message.__struct_config__.tag)


def _note(error: Exception) -> None:
    """An error that is not ours to expect leaves its trace where the client can see it: in the worker's stderr."""
    if not isinstance(error, TapestryError):
        traceback.print_exception(error)
