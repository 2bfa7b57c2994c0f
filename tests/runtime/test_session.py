"""The serving side, sent right and wrong messages. The device is a mock; there is no socket."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.mock_device import MockDevice, mock_module
from tapestry.errors import UsageError
from tapestry.runtime.device import DeviceStats
from tapestry.runtime.module import Artifact, KernelModule
from tapestry.runtime.protocol.framing import HANDSHAKE_LIMITS, Frame, ProtocolError
from tapestry.runtime.protocol.messages import PROTOCOL_VERSION, ServerLimits
from tapestry.runtime.protocol.session import Session
from tapestry.runtime.protocol.store import ENTRY_BYTES, ModuleStore, Uploads

encode = msgspec.msgpack.encode


class Peer:
    """Sends maps to a session, as an agent's client in any language would, and reads its answers as maps."""

    def __init__(self, **options: Any) -> None:
        self.device = MockDevice()
        self.opened: list[str] = []
        self.session = Session(self._open, **options)

    def _open(self, name: str) -> MockDevice:
        self.opened.append(name)
        return self.device

    def send(self, payload: bytes = b"", **fields: Any) -> dict[str, Any] | None:
        return self.raw(encode(fields), payload)

    def raw(self, header: bytes, payload: bytes = b"") -> dict[str, Any] | None:
        answer = self.session.handle(Frame(header, payload))
        if answer is None:
            return None
        return {**msgspec.msgpack.decode(answer.header), "payload": bytes(answer.payload)}

    def hello(self, **fields: Any) -> dict[str, Any]:
        answer = self.send(**{"op": "hello", "id": 1, "protocol": PROTOCOL_VERSION, "device": "mock:0", **fields})
        assert answer is not None
        return answer

    def load(self, module_id: int, module: KernelModule | Artifact) -> dict[str, Any]:
        encoded = encode(module)
        digest = hashlib.sha256(encoded).hexdigest()
        assert self.send(encoded, op="module", digest=digest, nbytes=len(encoded)) is None
        answer = self.send(op="load", id=5, module=module_id, digest=digest)
        assert answer is not None
        return answer


@pytest.fixture
def peer() -> Peer:
    peer = Peer()
    assert peer.hello()["op"] == "reply"
    return peer


def failed(answer: dict[str, Any] | None, kind: str, id_: int | None = None) -> str:
    assert answer is not None
    assert (answer["op"], answer["kind"]) == ("error", kind), answer
    assert id_ is None or answer["id"] == id_
    return str(answer["message"])


def test_hello_tells_what_the_device_is() -> None:
    peer = Peer()
    result = peer.hello()["result"]
    assert result["protocol"] == PROTOCOL_VERSION
    assert result["info"]["kind"] == "mock"
    assert result["limits"] == {
        "header_bytes": 4 << 20, "payload_bytes": 8 << 20, "module_bytes": 2 << 30, "content_bytes": 0,
        "window_bytes": 0,
    }  # fmt: skip
    assert peer.opened == ["mock:0"]


def test_before_hello_little_is_accepted_and_nothing_is_opened() -> None:
    peer = Peer()
    assert peer.session.limits == HANDSHAKE_LIMITS
    assert "hello" in failed(peer.send(op="alloc", id=3, buffer=1, nbytes=1 << 30), "usage", 3)
    assert peer.session.finished
    assert peer.opened == []


@pytest.mark.parametrize("version", [0, 2, 2**40])
def test_other_versions_are_told_both(version: int) -> None:
    peer = Peer()
    message = failed(peer.hello(protocol=version), "usage", 1)
    assert str(version) in message
    assert str(PROTOCOL_VERSION) in message
    assert peer.session.finished
    assert peer.opened == []


@pytest.mark.parametrize("token", ["", "sesam", "sesame ", "Sesame"])
def test_a_wrong_token_opens_nothing(token: str) -> None:
    peer = Peer(token="sesame")
    assert "sesam" not in failed(peer.hello(token=token), "usage", 1)
    assert peer.opened == []
    assert Peer(token="sesame").hello(token="sesame")["op"] == "reply"


def test_a_hello_without_a_version_or_an_id_is_refused() -> None:
    for fields in ({"op": "hello", "id": 1}, {"op": "hello", "protocol": PROTOCOL_VERSION}, {"op": "helo", "id": 1}):
        peer = Peer()
        failed(peer.send(**fields), "usage")
        assert peer.session.finished
        assert peer.opened == []


def test_a_second_hello_is_refused(peer: Peer) -> None:
    failed(peer.hello(), "usage", 1)
    assert not peer.session.finished


def test_buffers_hold_what_is_written(peer: Peer) -> None:
    assert peer.send(op="alloc", buffer=7, nbytes=8) is None
    assert peer.send(b"abcdef", op="write", buffer=7, offset=2) is None
    answer = peer.send(op="read", id=2, buffer=7, nbytes=4, offset=3)
    assert answer == {"op": "reply", "id": 2, "result": {}, "payload": b"bcde"}
    assert peer.send(op="free", buffer=7) is None
    assert peer.device.stats() == DeviceStats()


def test_a_read_fits_into_one_payload(peer: Peer) -> None:
    peer.send(op="alloc", buffer=1, nbytes=(8 << 20) + 1)
    assert "over the limit" in failed(peer.send(op="read", id=2, buffer=1, nbytes=(8 << 20) + 1), "usage", 2)
    answer = peer.send(op="read", id=3, buffer=1, nbytes=8 << 20)
    assert answer is not None
    assert len(answer["payload"]) == 8 << 20


@pytest.mark.parametrize(
    "message",
    [
        {"op": "alloc", "buffer": 1, "nbytes": -1},
        {"op": "alloc", "buffer": 0, "nbytes": 1},
        {"op": "alloc", "buffer": -5, "nbytes": 1},
        {"op": "alloc", "buffer": 2**53, "nbytes": 1},
        {"op": "alloc", "buffer": 1, "nbytes": 2**53},
        {"op": "alloc", "buffer": 1, "nbytes": "1"},
        {"op": "alloc", "buffer": 1, "nbytes": 1.5},
        {"op": "alloc", "buffer": 1},
        {"op": "read", "buffer": 1, "nbytes": 2**50},
        {"op": "read", "buffer": 1, "nbytes": -1},
        {"op": "free", "buffer": 1},
        {"op": "unload", "module": 1},
        {"op": "load", "module": 1, "digest": "../../etc"},
        {"op": "module", "digest": "0" * 64, "nbytes": 2**52},
        {"op": "submit", "commands": [["jump", 1]]},
        {"op": "submit", "commands": [["launch", 1]]},
        {"op": "submit", "commands": [["launch", 1, "k", [], [-1, 1, 1], [1, 1, 1], ""]]},
        {"op": "submit", "commands": [["launch", 1, "k", [], [1, 1, 1], [1, 1, 1], ""]]},
        {"op": "submit", "commands": [["launch", 1, "k" * 600, [], [1, 1, 1], [1, 1, 1], ""]]},
        {"op": "submit", "commands": [["copy", 1, 2, 4, 0, 0]]},
        {"op": "submit", "commands": 3},
        {"op": "time", "commands": [], "repeats": 0},
        {"op": "time", "commands": [], "repeats": 10**9},
        {"op": "explode"},
        {"op": 3},
        {},
    ],
    ids=str,
)
def test_wrong_messages_are_errors_of_their_request_only(peer: Peer, message: dict[str, Any]) -> None:
    if message.get("op") == 3:
        failed(peer.send(id=9, **message), "usage")
        assert peer.session.finished
        return
    failed(peer.send(id=9, **message), "usage", 9)
    assert not peer.session.finished
    assert peer.send(op="ping", id=10) == {"op": "reply", "id": 10, "result": {}, "payload": b""}
    assert peer.device.stats() == DeviceStats()


def test_payloads_only_where_they_belong(peer: Peer) -> None:
    assert "takes no payload" in failed(peer.send(b"x", op="sync", id=4), "usage", 4)


@pytest.mark.parametrize(
    "header", [b"", b"\xc1", b"\x01", b"\x93\x01\x02", b"\x81\xa2op", b"\xdf\xff\xff\xff\xff", b"\xa3"]
)
def test_headers_that_are_no_map_end_the_session(peer: Peer, header: bytes) -> None:
    answer = peer.raw(header)
    failed(answer, "usage", 0)
    assert answer is not None
    assert answer["fatal"]
    assert peer.session.finished


def test_deep_nesting_is_survived(peer: Peer) -> None:
    failed(peer.raw(b"\x81\xa2op" + b"\x91" * 100_000 + b"\x00"), "usage")


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=5))
def test_random_headers_never_raise(headers: list[bytes]) -> None:
    peer = Peer()
    peer.hello()
    for header in headers:
        peer.raw(header)


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
operations = st.sampled_from(
    ["hello", "info", "alloc", "free", "write", "read", "module", "load", "unload", "submit", "time", "sync", "log",
     "stats", "ping"]
)  # fmt: skip
fields = st.dictionaries(
    st.sampled_from(["buffer", "nbytes", "offset", "module", "digest", "commands", "repeats", "clear", "id", "token"]),
    junk | st.integers(0, 20),
    max_size=6,
)


@given(st.lists(st.tuples(operations, fields, st.binary(max_size=20)), max_size=12))
def test_random_messages_never_raise_and_the_session_stays_usable(messages: list[Any]) -> None:
    peer = Peer()
    peer.hello()
    for op, extra, payload in messages:
        peer.send(payload, **{**extra, "op": op})
    if not peer.session.finished:
        peer.send(op="sync", id=98)  # takes the error of a pipelined message, if there was one
        answer = peer.send(op="sync", id=99)
        assert answer is not None
        assert (answer["op"], answer["id"]) == ("reply", 99)


def test_errors_of_pipelined_commands_come_with_the_next_read_sync_or_time(peer: Peer) -> None:
    peer.device.memory_bytes = 100
    assert peer.send(op="alloc", buffer=1, nbytes=101) is None
    assert peer.send(b"x", op="write", buffer=1) is None
    assert peer.send(op="alloc", buffer=2, nbytes=10) is None
    assert peer.send(op="free", buffer=1) is None
    assert peer.send(op="free", buffer=77) is None  # a second fault: the first one is the cause
    for quiet in ("ping", "stats", "log", "info"):
        answer = peer.send(op=quiet, id=3)
        assert answer is not None
        assert answer["op"] == "reply"
    answer = peer.send(op="read", id=4, buffer=2, nbytes=10)
    assert "out of memory" in failed(answer, "device", 4)
    assert answer is not None
    assert answer["command"] == "alloc"
    assert peer.send(op="sync", id=5) == {"op": "reply", "id": 5, "result": {}, "payload": b""}
    assert peer.device.stats() == DeviceStats(1, 10, 0)


def test_after_a_failed_submit_nothing_runs_until_it_is_reported(peer: Peer) -> None:
    assert peer.load(1, mock_module("raise", "fill"))["op"] == "reply"
    peer.send(op="alloc", buffer=1, nbytes=4)
    fill = ["launch", 1, "fill", [1, ["float32", 2.0]], [1, 1, 1], [1, 1, 1], "t"]
    peer.send(op="submit", commands=[["launch", 1, "raise", [1], [1, 1, 1], [1, 1, 1], "t"]])
    peer.send(op="submit", commands=[fill])
    assert peer.device.started == ["raise"]
    assert "raise" in failed(peer.send(op="sync", id=2), "device", 2)
    peer.send(op="submit", commands=[fill])
    assert peer.device.started == ["raise", "fill"]


def test_load_errors_are_those_of_the_load(peer: Peer) -> None:
    peer.send(op="free", buffer=1)  # a fault is waiting
    assert "syntax error" in failed(peer.load(1, mock_module(source="syntax error")), "device", 5)
    assert "wgsl" in failed(peer.load(1, KernelModule("wgsl", "", ())), "unsupported", 5)
    assert peer.load(1, mock_module())["op"] == "reply"


def test_modules_come_in_parts_in_order_and_true(peer: Peer) -> None:
    encoded = encode(mock_module(source="x" * 50))
    digest = hashlib.sha256(encoded).hexdigest()

    def part(offset: int, data: bytes, **fields: Any) -> dict[str, Any] | None:
        return peer.send(
            data, **{"op": "module", "id": 3, "digest": digest, "nbytes": len(encoded), "offset": offset, **fields}
        )

    failed(peer.send(op="load", id=2, module=1, digest=digest), "missing", 2)
    part(0, encoded[:20])
    failed(part(21, encoded[21:]), "usage", 3)
    failed(part(20, encoded[20:]), "usage", 3)  # the upload was given up
    part(0, encoded[:20])
    failed(part(20, encoded[20:] + b"!"), "usage", 3)
    part(0, encoded[:20])
    failed(part(20, b"", nbytes=len(encoded)), "usage", 3)
    part(0, encoded[:20])
    failed(part(20, b"\0" * (len(encoded) - 20)), "usage", 3)  # another content
    part(0, encoded[:20])
    assert part(20, encoded[20:]) == {"op": "reply", "id": 3, "result": {}, "payload": b""}
    assert peer.send(op="load", id=2, module=1, digest=digest) == {"op": "reply", "id": 2, "result": {}, "payload": b""}


def test_uploads_are_bounded_together() -> None:
    peer = Peer(limits=ServerLimits(module_bytes=100))
    peer.hello()
    assert peer.send(b"a", op="module", id=2, digest="a" * 64, nbytes=60)
    assert "limit is 100" in failed(peer.send(b"b", op="module", id=3, digest="b" * 64, nbytes=60), "usage", 3)


def test_what_is_no_module_is_not_loaded(peer: Peer) -> None:
    data = encode({"type": "pickle", "payload": b""})
    digest = hashlib.sha256(data).hexdigest()
    peer.send(data, op="module", digest=digest, nbytes=len(data))
    assert "not an encoded module" in failed(peer.send(op="load", id=2, module=1, digest=digest), "usage", 2)


def test_a_server_may_refuse_modules() -> None:
    def refuse_native(module: KernelModule | Artifact) -> None:
        if isinstance(module, Artifact):
            raise UsageError("native code needs --allow-native")

    peer = Peer(admit=refuse_native)
    peer.hello()
    assert "--allow-native" in failed(peer.load(1, Artifact("mock:x", b"")), "usage", 5)
    assert peer.device.loads == 0


def test_the_store_keeps_the_most_recent_within_its_capacity() -> None:
    store = ModuleStore(capacity=100 + 2 * ENTRY_BYTES)
    digests = []
    for letter in b"abc":
        data = bytes([letter]) * 40
        digests.append(hashlib.sha256(data).hexdigest())
        Uploads(store).add_part(digests[-1], 40, 0, data, 1000)
        store.get(digests[0])
    assert store.digests() == (digests[2], digests[0])  # b went when c came: a had been used since


def test_a_broken_frame_ends_the_session(peer: Peer) -> None:
    answer = peer.session.refuse(ProtocolError("a header of 9 bytes"))
    assert msgspec.msgpack.decode(answer.header)["fatal"]
    assert peer.session.finished


def test_close_closes_the_device(peer: Peer) -> None:
    assert peer.send(op="close", id=2) == {"op": "reply", "id": 2, "result": {}, "payload": b""}
    assert peer.session.finished
