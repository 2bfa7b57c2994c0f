"""Device names: ``cpu``, ``opencl:1``, ``ws://host:port/opencl:0?token=T``, ``browser@8123``. They parse and print.

Not here: whether such a device exists, or opening it (open.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from tapestry.errors import UsageError

#: Kinds that live on this machine, with an index (``cpu`` has none).
LOCAL_KINDS = ("cpu", "opencl", "webgpu", "cuda", "mock")
#: Kinds behind a WebSocket.
REMOTE_KINDS = ("ws", "wss")
_EXPECTED = "cpu, opencl[:N], webgpu[:N], cuda[:N], browser[@PORT] or ws://HOST:PORT/DEVICE?token=T"
_LOCAL = re.compile(r"([a-z]+)(?::([0-9]{1,4}))?")
_BROWSER = re.compile(r"browser(?:@([0-9]{1,5}))?")


@dataclass(frozen=True)
class DeviceName:
    """A parsed name. ``str()`` gives its canonical form, which parses to an equal name.

    ``target`` is the remote device's own name on its agent. ``token`` is a secret: it is never printed, and
    two names that differ only in it are equal.
    """

    kind: str
    index: int = 0
    host: str = ""
    port: int = 0
    target: str = ""
    token: str = field(default="", repr=False, compare=False)

    def __str__(self) -> str:
        if self.kind in REMOTE_KINDS:
            host = f"[{self.host}]" if ":" in self.host else self.host
            return f"{self.kind}://{host}:{self.port}/{self.target}"
        if self.kind == "browser":
            return f"browser@{self.port}" if self.port else "browser"
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    @property
    def remote(self) -> bool:
        """Whether the device is reached over a network, a browser tab included."""
        return self.kind in REMOTE_KINDS or self.kind == "browser"


def parse_device_name(text: str) -> DeviceName:
    """The name that ``text`` means; UsageError, which never quotes a token, for anything else."""
    if text.startswith(("ws://", "wss://")):
        return _parse_remote(text)
    if match := _BROWSER.fullmatch(text):
        return DeviceName("browser", port=_port(int(match[1]), text) if match[1] else 0)
    match = _LOCAL.fullmatch(text)
    if match is None or match[1] not in LOCAL_KINDS:
        raise UsageError(f"{_without_query(text)!r} is not a device name; expected {_EXPECTED}")
    if match[1] == "cpu" and match[2] is not None:
        raise UsageError(f"{text!r} is not a device name: there is one cpu, write 'cpu'")
    return DeviceName(match[1], int(match[2] or 0))


def _parse_remote(text: str) -> DeviceName:
    shown = _without_query(text)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{shown!r} is not a device name: {error}") from None
    if not parts.hostname or port is None or parts.fragment or "@" in parts.netloc:
        raise UsageError(f"{shown!r} is not a device name; expected ws://HOST:PORT/DEVICE?token=T")
    target = parse_device_name(parts.path.removeprefix("/"))
    if target.remote:
        raise UsageError(f"{shown!r} is not a device name: {target} is not a device of the agent's own machine")
    query = parse_qsl(parts.query, keep_blank_values=True)
    unknown = sorted({key for key, _ in query} - {"token"})
    if unknown or len(query) > 1:
        raise UsageError(f"{shown!r}: expected only ?token=T after a device name, got {unknown or 'two tokens'}")
    token = query[0][1] if query else ""
    return DeviceName(parts.scheme, 0, parts.hostname, _port(port, shown), str(target), token)


def _port(port: int, text: str) -> int:
    if not 0 < port < 65536:
        raise UsageError(f"{text!r}: a port is 1 to 65535, got {port}")
    return port


def _without_query(text: str) -> str:
    """What may be quoted in a message: without the token, and not endless."""
    shown = text.split("?", 1)[0].rsplit("@", 1)[-1] if "://" in text else text.split("?", 1)[0]
    return shown[:200]
