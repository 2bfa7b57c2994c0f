"""Whom an agent lets in, and what strangers and hostile clients can do to it: nothing."""

from __future__ import annotations

import random
import struct
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from websockets.exceptions import ConnectionClosed

from support.mock_device import mock_module
from support.raw_client import answer_of, ask, encode, frame, greeted, hello, http, raw
from support.serving import TOKEN, AgentProcess, address, connected, opened, serving, without_token
from tapestry.errors import EnvironmentProblem, UsageError
from tapestry.runtime.module import Artifact
from tapestry.runtime.protocol.framing import PREFIX
from tapestry.runtime.remote.agent import Agent
from tapestry.runtime.remote.device import RemoteDevice
from tapestry.runtime.remote.guard import Guard, loopback_only

EAGER = "tapestry.backends.eager:load"


def port(agent: Agent) -> int:
    return agent.address[1]


def still_works(agent: Agent) -> None:
    with connected(agent) as device:
        device.load(mock_module())
        device.sync()


# ------------------------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.lower(), "x" * 1024])
def test_without_the_token_nothing_is_opened(agent: Agent, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.runtime.remote.agent.WorkerDevice", None)  # opening one would fail otherwise
    with raw(port(agent)) as connection:
        answer = ask(connection, **hello(token=token))
        assert (answer["op"], answer["kind"], answer["fatal"]) == ("error", "usage", True)
        assert "token is missing or wrong" in answer["message"]
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=5)


def test_tokens_are_compared_in_constant_time(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, right: bytes) -> bool:
        compared.append((given, right))
        return False

    monkeypatch.setattr("tapestry.runtime.protocol.session.hmac.compare_digest", compare)
    with raw(port(agent)) as connection:
        ask(connection, **hello())
    assert compared == [(TOKEN.encode(), TOKEN.encode())]


def test_a_wrong_token_in_a_name_is_not_repeated(agent: Agent) -> None:
    with pytest.raises(UsageError, match="token is missing or wrong") as caught:
        opened(address(agent, token="ANOTHER-" + TOKEN))
    assert "ANOTHER" not in str(caught.value)
    assert str(port(agent)) in str(caught.value)


def test_nothing_that_is_said_or_raised_holds_the_token(mock_driver: None) -> None:
    lines: list[str] = []
    with serving(lines=lines) as agent:
        with connected(agent) as device:
            device.sync()
            texts = [repr(device.info), str(device._name), repr(agent.options)]  # noqa: SLF001
        with raw(port(agent)) as connection:
            ask(connection, **hello(client=f"\x1b[31m{'x' * 500}"))
    assert without_token([*lines, *texts])
    assert lines
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("fields", [{"protocol": 2}, {"protocol": 0}, {"protocol": 10**6}])
def test_another_version_is_refused_with_both_numbers(agent: Agent, fields: dict[str, int]) -> None:
    with raw(port(agent)) as connection:
        answer = ask(connection, **hello(**fields))
    assert answer["fatal"]
    assert f"speaks protocol 1, the client {fields['protocol']}" in answer["message"]


# -------------------------------------------------------------------------------------------------- pages and names


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:8000", "http://127.0.0.1", ""])
def test_web_pages_are_refused(agent: Agent, origin: str) -> None:
    text = http(port(agent), f"Host: 127.0.0.1:{port(agent)}", f"Origin: {origin}")
    assert text.startswith("HTTP/1.1 403")
    assert "--origin" in text


def test_listed_pages_are_let_in(mock_driver: None) -> None:
    with serving(guard=Guard.of(["https://mine.example"], (), False)) as agent:
        host = f"Host: 127.0.0.1:{port(agent)}"
        assert http(port(agent), host, "Origin: https://mine.example").startswith("HTTP/1.1 101")
        assert http(port(agent), host, "Origin: https://mine.example.evil").startswith("HTTP/1.1 403")
        two = http(port(agent), host, "Origin: https://mine.example", "Origin: https://evil.example")
        assert not two.startswith("HTTP/1.1 101")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8790", 101), ("localhost", 101), ("LOCALHOST:1", 101), ("[::1]:8790", 101), ("192.168.1.7", 101),
        ("evil.example", 403), ("evil.example:8790", 403), ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("", 403), ("[::1", 403), ("a@127.0.0.1", 403),
    ],
)  # fmt: skip
def test_names_that_are_not_ours_are_refused(agent: Agent, host: str, status: int) -> None:
    assert http(port(agent), f"Host: {host}").startswith(f"HTTP/1.1 {status}")


def test_a_request_needs_one_host(agent: Agent) -> None:
    assert http(port(agent)).startswith("HTTP/1.1 4")
    assert not http(port(agent), "Host: localhost", "Host: evil.example").startswith("HTTP/1.1 101")


def test_further_names_may_be_given() -> None:
    guard = Guard.of((), ["Lab.Example"], False)
    assert guard.refuses("/", ["lab.example:1"], []) is None
    assert guard.refuses("/", ["lab.example."], []) is None
    assert guard.refuses("/", ["other.example"], []) is not None


@pytest.mark.parametrize("path", ["/x", "/../../etc/passwd", "/?token=x", "//", "/%2e%2e/"])
def test_there_is_one_path(agent: Agent, path: str) -> None:
    assert http(port(agent), "Host: localhost", path=path).startswith("HTTP/1.1 404")


@pytest.mark.parametrize(
    ("host", "only"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("192.0.2.1", False),
     ("no.such.name.invalid", False)],
)  # fmt: skip
def test_what_is_loopback(host: str, only: bool) -> None:
    assert loopback_only(host) == only


# ------------------------------------------------------------------------------------------------------------ frames


def refused(connection: Any, *words: str) -> None:
    """The connection ends: with a reason, or for what is not even read with the close code of a message too big, or
    with a reset, where the rest of that message was still on its way.
    """
    try:
        answer = answer_of(connection.recv(timeout=10))
    except ConnectionClosed as error:
        assert error.rcvd is None or error.rcvd.code == 1009  # noqa: PT017
        return
    assert answer["op"] == "error"
    assert answer["fatal"]
    assert any(word in answer["message"] for word in words), answer
    with pytest.raises(ConnectionClosed):
        connection.recv(timeout=10)


BROKEN = {
    "empty": b"",
    "no prefix": b"\x01\x00",
    "truncated": frame(op="ping", id=5)[:-3],
    "too long": frame(op="ping", id=5) + b"more",
    "a header that lies": PREFIX.pack(1 << 31, 0) + b"x",
    "a payload that lies": PREFIX.pack(2, (1 << 32) - 1) + b"\x80\x80",
    "no header": PREFIX.pack(0, 0),
    "not MessagePack": PREFIX.pack(4, 0) + b"\xc1\xc1\xc1\xc1",
    "no map": PREFIX.pack(1, 0) + b"\x01",
    "deep": PREFIX.pack(4000, 0) + b"\x91" * 4000,
    "a map of 4 billion": PREFIX.pack(5, 0) + b"\xdf\xff\xff\xff\xff",
    "no UTF-8": PREFIX.pack(6, 0) + b"\x81\xa2op\xa1\xff",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_frame_ends_the_connection_not_the_agent(agent: Agent, name: str) -> None:
    for say_hello in (False, True):
        with raw(port(agent)) as connection:
            if say_hello:
                assert ask(connection, **hello())["op"] == "reply"
            connection.send(BROKEN[name])
            refused(connection, "frame", "header", "payload", "message", "too short")
    still_works(agent)


def test_a_text_message_is_none(agent: Agent) -> None:
    with greeted(port(agent)) as connection:
        connection.send("hello")
        refused(connection, "text message")
    still_works(agent)


def test_what_is_too_large_is_not_even_read(agent: Agent) -> None:
    with raw(port(agent)) as connection:
        connection.send(frame(b"", op="hello", id=1, padding="x" * 5000))
        refused(connection, "over the limit")
    with greeted(port(agent)) as connection:
        connection.send(frame(b"x" * ((8 << 20) + 1), op="write", buffer=1))
        refused(connection, "over the limit")
    with greeted(port(agent)) as connection:
        # A frame of the WebSocket that announces 2**62 bytes and brings none.
        connection.socket.sendall(b"\x82\xff" + struct.pack("!Q", 1 << 62) + b"\0\0\0\0")
        refused(connection)
    still_works(agent)


def test_one_who_says_nothing_is_not_waited_for(mock_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.runtime.remote.agent.HELLO_SECONDS", 0.3)
    with serving() as agent, raw(port(agent)) as connection:
        begin = time.monotonic()
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=10)
        assert time.monotonic() - begin < 5


def test_many_silent_connections_leave_room(mock_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.runtime.remote.agent.HELLO_SECONDS", 1.0)
    monkeypatch.setattr("tapestry.runtime.remote.agent.MAX_CONNECTIONS", 3)
    with serving() as agent, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(raw(port(agent)))
        with raw(port(agent)) as fourth, pytest.raises(ConnectionClosed):
            fourth.recv(timeout=10)
        time.sleep(1.5)
        still_works(agent)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"op": "shutdown"}, "shutdown"),
        ({"op": "alloc", "buffer": 1, "nbytes": -1}, "nbytes"),
        ({"op": "alloc", "buffer": 1, "nbytes": 2**53}, "nbytes"),
        ({"op": "alloc", "buffer": 0, "nbytes": 1}, "buffer"),
        ({"op": "alloc", "buffer": "1", "nbytes": 1}, "buffer"),
        ({"op": "read", "buffer": 1, "nbytes": 2**50}, "limit"),
        ({"op": "free", "buffer": 99}, "no buffer 99"),
        ({"op": "load", "module": 1, "digest": "../../../../etc/passwd"}, "digest"),
        ({"op": "load", "module": 1, "digest": "A" * 64}, "digest"),
        ({"op": "fill", "buffer": 1, "digest": "/etc/passwd"}, "digest"),
        ({"op": "have", "digests": ["a" * 64] * 5000}, "digests"),
        ({"op": "content", "digest": "a" * 64, "nbytes": 2**52}, "over the limit"),
        ({"op": "module", "digest": "a" * 64, "nbytes": 2**52}, "limit"),
        ({"op": "time", "commands": [], "repeats": 10**9}, "repeats"),
        ({"op": "submit", "commands": [["launch", 1, "x" * 600, [], [1, 1, 1], [1, 1, 1]]]}, "commands[0][2]"),
        ({"op": "hello", "protocol": 1}, "once"),
    ],
)  # fmt: skip
def test_a_wrong_message_costs_that_message(agent: Agent, fields: dict[str, Any], word: str) -> None:
    with greeted(port(agent)) as connection:
        answer = ask(connection, **{"id": 2, **fields})
        assert answer["op"] == "error"
        assert word in answer["message"] or word in str(answer["command"]), answer
        assert ask(connection, op="ping", id=3)["op"] == "reply"


@pytest.mark.parametrize(
    "device", ["../mock", "mock:0/../../x", "cpu", "ws://127.0.0.1:1/cpu", "mock:0\n", "MOCK:0", "x" * 512]
)
def test_only_the_agents_own_device(agent: Agent, device: str) -> None:
    with raw(port(agent)) as connection:
        answer = ask(connection, **hello(device=device))
    assert answer["fatal"]
    assert "this agent serves mock:0" in answer["message"]


# ------------------------------------------------------------------------------------------------------- native code


def load(device: RemoteDevice, loader: str, payload: bytes = b"", native: bool = False) -> None:
    device.load(Artifact(loader, payload, native=native))


def graph_of(operator: str) -> bytes:
    call = ["c", operator, [], {}, [["float32", [1], [1]]], False]
    return msgspec.json.encode({"inputs": [], "calls": [call], "outputs": [["c", 0]]})


def test_native_artifacts_are_refused_whatever_they_say(mock_driver: None, tmp_path: Path) -> None:
    with serving("cpu") as agent, connected(agent) as device:
        for loader in ("tapestry.backends.host.inductor:load", "os:system", "tapestry.backends.eager:loads", EAGER):
            with pytest.raises(UsageError, match="--allow-native"):
                load(device, loader, b"", native=True)
        for loader in (
            "tapestry.backends.host.inductor:load",
            "builtins:eval",
            "../x:y",
            "tapestry.backends.eager:load\0",
        ):
            with pytest.raises(UsageError, match="--allow-native"):
                load(device, loader, native=False)
        with pytest.raises(UsageError, match="do not decode"):
            load(device, EAGER, b"\xff")
        for operator in ("aten.from_file.default", "c10d.allreduce_.default", "mylib.op.default"):
            with pytest.raises(UsageError, match=r"refuses the operator .*--allow-native"):
                load(device, EAGER, graph_of(operator))


@pytest.mark.slow
def test_what_is_interpreted_is_let_in(mock_driver: None) -> None:
    with serving("cpu") as agent, connected(agent, timeout=60) as device:
        call = ["c", "aten.zeros.default", [[1]], {}, [["float32", [1], [1]]], False]
        payload = msgspec.json.encode({"inputs": [], "calls": [call], "outputs": [["c", 0]]})
        load(device, EAGER, payload)


def test_native_artifacts_are_let_in_where_allowed(mock_driver: None) -> None:
    with (
        serving(guard=Guard.of((), (), True)) as agent,
        connected(agent) as device,
        pytest.raises(Exception, match="mock"),
    ):
        load(device, "other:x", native=True)  # it is the device that does not know the loader


# ------------------------------------------------------------------------------------------------------ hostile peers

OPS = (
    "hello", "info", "alloc", "free", "write", "read", "module", "load", "unload", "submit", "time", "sync", "log",
    "stats", "ping", "have", "content", "fill", "nothing",
)  # fmt: skip
FIELDS = (
    "buffer", "nbytes", "offset", "digest", "digests", "module", "commands", "repeats", "clear", "protocol", "token",
    "device", "timeout_ms",
)  # fmt: skip


def value(generator: random.Random, depth: int = 0) -> object:
    """Anything, and often what almost fits."""
    kind = generator.randrange(10 if depth < 3 else 7)
    if kind < 3:
        return generator.choice((0, 1, 2, 3, -1, 4096, 1 << 20, 1 << 31, 1 << 40, 2**53 - 1, 2**53, 2**63, -(2**63)))
    if kind == 3:
        return generator.choice((True, None, 1.5, float("nan"), float("inf")))
    if kind == 4:
        return generator.choice(
            ("", "fill", "a" * 64, "f" * 64, "../x", "mock:0", "\x00", "x" * 600, "launch", "float32")
        )
    if kind == 5:
        return generator.randbytes(generator.randrange(40))
    if kind == 6:
        return generator.choice(([1, 1, 1], [1, 1], ["call", 1, [1], [2]], ["copy", 1, 2, 64], ["copy", 1, 1, 2**40]))
    if kind == 7:
        return {str(place): value(generator, depth + 1) for place in range(generator.randrange(4))}
    return [value(generator, depth + 1) for _ in range(generator.randrange(6))]


def hostile(generator: random.Random) -> bytes:
    """A frame: wrong in its bytes, in its fields, or right by chance."""
    fields: dict[str, object] = {"op": generator.choice(OPS)}
    if generator.random() < 0.6:
        fields["id"] = generator.choice((1, 2, 77, 0, -1, 2**53))
    for name in generator.sample(FIELDS, generator.randrange(5)):
        fields[name] = value(generator)
    header, payload = encode(fields), generator.randbytes(generator.choice((0, 0, 0, 16, 5000)))
    kind = generator.randrange(1500)  # what ends the connection is rare, so that the rest is met at all
    if kind == 0:
        return generator.randbytes(generator.randrange(200))
    if kind == 1:
        return PREFIX.pack(generator.getrandbits(32), generator.getrandbits(32)) + header
    if kind > 1485:
        at = generator.randrange(len(header))
        header = header[:at] + generator.randbytes(1) + header[at + 1 :]
    data = PREFIX.pack(len(header), len(payload)) + header + payload
    return data[: generator.randrange(len(data))] if kind == 3 else data


def memory(process: psutil.Process) -> int:
    """Resident bytes of a process and its workers."""
    total = 0
    for entry in (process, *process.children(recursive=True)):
        try:
            total += entry.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def all_taken(connection: Any) -> None:
    """Wait until the agent has answered all that it was sent; ConnectionClosed when it has had enough."""
    connection.send(frame(op="ping", id=2**50))
    while answer_of(connection.recv(timeout=60))["id"] != 2**50:
        pass


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ten_thousand_hostile_frames(mock_driver: None) -> None:
    """From two kinds of peers: those with the token and those without. The seed is fixed."""
    generator = random.Random(8)
    with AgentProcess("cpu") as agent:
        process = psutil.Process(agent.pid)
        before, highest, sent, connections = memory(process), 0, 0, 0
        while sent < 10_000:
            connections += 1
            with raw(agent.port) as connection:
                try:
                    if connections % 10:
                        assert ask(connection, **hello(device="cpu"))["op"] == "reply"
                    while sent < 10_000:
                        for _ in range(50):
                            sent += 1
                            connection.send(hostile(generator))
                        all_taken(connection)
                except (ConnectionClosed, EnvironmentProblem):
                    pass
            highest = max(highest, memory(process))
        device = opened(agent.address)
        buffer = device.alloc(1 << 20)
        device.write(buffer, b"ab" * (1 << 19))
        assert device.read(buffer, 1 << 20) == b"ab" * (1 << 19)
        device.close()
        assert process.is_running()
        assert process.pid == agent.pid
    # One worker (40 MiB and what it was allowed to allocate) comes and goes; 64 MiB may wait in the inbox.
    assert highest - before < 300 << 20, f"{before >> 20} MiB before, {highest >> 20} MiB at most"


def test_tiny_things_do_not_add_up(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.runtime.protocol.session.MAX_BUFFERS", 100)
    with greeted(port(agent)) as connection:
        for place in range(1, 101):
            connection.send(frame(op="alloc", buffer=place, nbytes=0))
        assert "the limit is 100" in ask(connection, op="alloc", id=5, buffer=101, nbytes=0)["message"]
        for place in range(64):
            connection.send(frame(b"x", op="content", digest=f"{place:064x}", nbytes=2))
        assert "unfinished" in ask(connection, b"x", op="content", id=6, digest="f" * 64, nbytes=2)["message"]
