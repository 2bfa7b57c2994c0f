"""The headers of the protocol's messages: what each field may hold. Documented for other languages in docs/protocol.md.

Not here: bytes on the wire (framing.py), or what a server does with a message (session.py).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tapestry.errors import (
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
    EnvironmentProblem,
    TapestryError,
    UnsupportedError,
    UsageError,
)
from tapestry.runtime.device import DeviceInfo, LogEntry

#: Changes whenever an older peer could misread a message. Fields and messages that are added do not change it.
PROTOCOL_VERSION = 1

#: The largest id, size or offset: what a JavaScript number holds exactly.
MAX_NUMBER = 2**53 - 1

#: Numbers a request; 0 asks for no reply.
RequestId = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Id = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
Size = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Name = Annotated[str, Meta(max_length=512)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
Triple = tuple[Size, Size, Size]


class WireScalar(msgspec.Struct, array_like=True, frozen=True):
    """A scalar argument: ``[dtype, value]``."""

    dtype: Name
    value: int | float


class WireLaunch(msgspec.Struct, array_like=True, frozen=True, tag="launch"):
    """``["launch", module, kernel, [buffer or scalar…], grid, block, tag]``."""

    module: Id
    kernel: Name
    args: Annotated[tuple[Id | WireScalar, ...], Meta(max_length=1024)]
    grid: Triple
    block: Triple
    tag: Name = ""


class WireCall(msgspec.Struct, array_like=True, frozen=True, tag="call"):
    """``["call", module, [input…], [output…], tag]``."""

    module: Id
    inputs: tuple[Id, ...]
    outputs: tuple[Id, ...]
    tag: Name = ""


class WireCopy(msgspec.Struct, array_like=True, frozen=True, tag="copy"):
    """``["copy", source, target, nbytes, source_offset, target_offset]``."""

    source: Id
    target: Id
    nbytes: Size
    source_offset: Size = 0
    target_offset: Size = 0


WireCommand = WireLaunch | WireCall | WireCopy


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", omit_defaults=True):
    """Base of everything a client sends. Without an ``id`` it is pipelined: it gets no reply."""

    id: RequestId = 0


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """The first message, with the device wanted and the secret that lets the client in.

    ``client`` is who asks; ``session`` names this use of the device, and comes again when it reconnects.
    ``timeout_ms`` is how long the client waits for one request: a device that takes longer is given up.
    """

    protocol: Size
    device: Name = ""
    token: Annotated[str, Meta(max_length=1024)] = ""
    client: Name = ""
    session: Name = ""
    timeout_ms: Size = 0


class Info(Message, frozen=True, kw_only=True, tag="info"):
    """What the device is."""


class Alloc(Message, frozen=True, kw_only=True, tag="alloc"):
    """Make a buffer under an id that the client chooses and has never used on this connection."""

    buffer: Id
    nbytes: Size


class Free(Message, frozen=True, kw_only=True, tag="free"):
    """Give a buffer back once submitted work no longer needs it."""

    buffer: Id


class Write(Message, frozen=True, kw_only=True, tag="write"):
    """The payload goes into the buffer."""

    buffer: Id
    offset: Size = 0


class Read(Message, frozen=True, kw_only=True, tag="read"):
    """The reply's payload is that part of the buffer."""

    buffer: Id
    nbytes: Size
    offset: Size = 0


class Module(Message, frozen=True, kw_only=True, tag="module"):
    """One part of an encoded module: parts come in order, ``nbytes`` is the size of the whole."""

    digest: Digest
    nbytes: Size
    offset: Size = 0


class Load(Message, frozen=True, kw_only=True, tag="load"):
    """Compile or load a module whose content the server has; error ``missing`` when it has not."""

    module: Id
    digest: Digest


class Unload(Message, frozen=True, kw_only=True, tag="unload"):
    """Forget a loaded module; its content stays with the server."""

    module: Id


class Have(Message, frozen=True, kw_only=True, tag="have"):
    """Which of these contents must be sent before they can fill a buffer."""

    digests: Annotated[tuple[Digest, ...], Meta(max_length=4096)]


class Content(Message, frozen=True, kw_only=True, tag="content"):
    """One part of a content (of a constant): parts come in order, ``nbytes`` is the size of the whole."""

    digest: Digest
    nbytes: Size
    offset: Size = 0


class Fill(Message, frozen=True, kw_only=True, tag="fill"):
    """Write a content that the server has into a buffer; error ``missing`` when it has it not."""

    buffer: Id
    digest: Digest
    offset: Size = 0


class Submit(Message, frozen=True, kw_only=True, tag="submit"):
    """Start commands in order."""

    commands: tuple[WireCommand, ...]


class Time(Message, frozen=True, kw_only=True, tag="time"):
    """Measure the commands: one run to warm up, then one per repeat."""

    commands: tuple[WireCommand, ...]
    repeats: Annotated[int, Meta(ge=1, le=100_000)]


class Sync(Message, frozen=True, kw_only=True, tag="sync"):
    """Wait for all submitted work."""


class Log(Message, frozen=True, kw_only=True, tag="log"):
    """How often which kernel was launched, per tag; ``clear`` starts the count again."""

    clear: bool = False


class Stats(Message, frozen=True, kw_only=True, tag="stats"):
    """What is alive on the device."""


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """Answered at once, in order with the other messages."""


class Close(Message, frozen=True, kw_only=True, tag="close"):
    """End the session: the device is closed, then the connection."""


Request = (
    Hello | Info | Alloc | Free | Write | Read | Module | Load | Unload | Have | Content | Fill
    | Submit | Time | Sync | Log | Stats | Ping | Close
)  # fmt: skip


class ServerLimits(msgspec.Struct, frozen=True):
    """What a server accepts, in bytes: one header, one payload, one encoded module.

    ``content_bytes``: the largest content that it keeps, 0 where it keeps none. ``window_bytes``: how much a client
    may send between two answers and still be sure that the server reads on, 0 where it need not care.
    """

    header_bytes: int = 4 << 20
    payload_bytes: int = 8 << 20
    module_bytes: int = 2 << 30
    content_bytes: int = 0
    window_bytes: int = 0


class Welcome(msgspec.Struct, frozen=True):
    """The result of hello. ``modules``: digests of modules that the server has already."""

    protocol: int
    info: DeviceInfo
    limits: ServerLimits
    modules: tuple[str, ...] = ()


class Seconds(msgspec.Struct, frozen=True):
    """The result of time: one number of seconds per repeat."""

    seconds: tuple[float, ...]


class Missing(msgspec.Struct, frozen=True):
    """The result of have."""

    missing: tuple[Digest, ...]


class Entries(msgspec.Struct, frozen=True):
    """The result of log."""

    entries: tuple[LogEntry, ...]


class Reply(msgspec.Struct, frozen=True, tag_field="op", tag="reply"):
    """A request was carried out. ``result`` is a map whose fields depend on the request, empty for most."""

    id: int
    result: msgspec.Raw = msgspec.Raw(b"\x80")


class Failure(msgspec.Struct, frozen=True, tag_field="op", tag="error", omit_defaults=True):
    """A request failed, or an earlier pipelined command did: ``command`` is the one at fault.

    ``kind``: unsupported, device, lost, timeout, usage, environment, busy or missing. After a ``fatal`` one
    the server closes.
    """

    id: int
    kind: str
    message: str
    command: str = ""
    fatal: bool = False


Answer = Reply | Failure


class MissingContentError(TapestryError):
    """The server does not have the module's content: send it, then load again."""


class DeviceBusyError(EnvironmentProblem):
    """Another client has the server's device; the message says who."""


_KINDS: tuple[tuple[type[TapestryError], str], ...] = (
    (MissingContentError, "missing"),
    (UnsupportedError, "unsupported"),
    (DeviceTimeoutError, "timeout"),
    (DeviceLostError, "lost"),
    (DeviceError, "device"),
    (DeviceBusyError, "busy"),
    (EnvironmentProblem, "environment"),
    (UsageError, "usage"),
)


def error_kind(error: BaseException) -> str:
    """The kind under which an exception travels. A fault of ours is the device's error."""
    return next((kind for base, kind in _KINDS if isinstance(error, base)), "device")


def error_from(failure: Failure) -> TapestryError:
    """The exception that a failure stands for; a kind of a later protocol counts as the device's error."""
    base = next((base for base, kind in _KINDS if kind == failure.kind), DeviceError)
    return base(failure.message)
