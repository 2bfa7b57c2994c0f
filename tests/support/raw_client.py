"""A client of an agent that says whatever it likes: what another implementation, or an attacker, would send."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from websockets.sync.client import ClientConnection, connect

from support.serving import TOKEN
from tapestry.runtime.protocol.framing import PREFIX, Frame, join_frame
from tapestry.runtime.protocol.messages import PROTOCOL_VERSION

encode = msgspec.msgpack.encode


@contextmanager
def raw(port: int, **options: Any) -> Iterator[ClientConnection]:
    """An open WebSocket, nothing said yet."""
    settings = {"compression": None, "max_size": None, "open_timeout": 10, "close_timeout": 1, "proxy": None, **options}
    with connect(f"ws://127.0.0.1:{port}/", **settings) as connection:
        yield connection


@contextmanager
def greeted(port: int, **fields: Any) -> Iterator[ClientConnection]:
    """One that has been let in."""
    with raw(port) as connection:
        assert ask(connection, **hello(**fields))["op"] == "reply"
        yield connection


def hello(**fields: Any) -> dict[str, Any]:
    """A hello that is let in, unless a field says otherwise."""
    return {"op": "hello", "id": 1, "protocol": PROTOCOL_VERSION, "token": TOKEN, **fields}


def frame(payload: bytes = b"", **fields: Any) -> bytes:
    """A message of the protocol."""
    return join_frame(Frame(encode(fields), payload))


def answer_of(message: bytes | str) -> dict[str, Any]:
    """The header of an answer, with its payload."""
    assert isinstance(message, bytes)
    header, _ = PREFIX.unpack(message[: PREFIX.size])
    middle = PREFIX.size + header
    return {**msgspec.msgpack.decode(message[PREFIX.size : middle]), "payload": message[middle:]}


def ask(connection: ClientConnection, payload: bytes = b"", **fields: Any) -> dict[str, Any]:
    """Send a message and wait for the answer."""
    connection.send(frame(payload, **fields))
    return answer_of(connection.recv(timeout=20))


def http(port: int, *headers: str, path: str = "/") -> str:
    """The status line and the text that a request for a WebSocket gets, with these headers besides the usual."""
    lines = [
        f"GET {path} HTTP/1.1", "Upgrade: websocket", "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13", *headers, "", "",
    ]  # fmt: skip
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall("\r\n".join(lines).encode())
        received = b""
        with contextlib.suppress(TimeoutError):
            connection.settimeout(10)
            while b"\r\n\r\n" not in received or b" 101 " not in received.split(b"\r\n")[0]:
                data = connection.recv(4096)
                if not data:
                    break
                received += data
    return received.decode()
