from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.runtime.protocol.framing import (
    ChannelClosedError,
    ChannelTimeoutError,
    Frame,
    FrameLimits,
    ProtocolError,
    SocketChannel,
    join_frame,
    parse_frame,
)

LIMITS = FrameLimits(header_bytes=64, payload_bytes=256)


@contextlib.contextmanager
def pair(limits: FrameLimits = LIMITS) -> Iterator[tuple[socket.socket, SocketChannel]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, SocketChannel(theirs, limits)


@given(st.binary(min_size=1, max_size=64), st.binary(max_size=256))
def test_frames_survive_both_ways(header: bytes, payload: bytes) -> None:
    frame = parse_frame(join_frame(Frame(header, payload)), LIMITS)
    assert (bytes(frame.header), bytes(frame.payload)) == (header, payload)
    with pair() as (ours, channel):
        SocketChannel(ours, LIMITS).send(Frame(header, payload))
        got = channel.receive(time.monotonic() + 5)
        assert got is not None
        assert (bytes(got.header), bytes(got.payload)) == (header, payload)


@given(st.binary(max_size=400))
def test_any_message_is_one_frame_or_an_error(message: bytes) -> None:
    try:
        frame = parse_frame(message, LIMITS)
    except ProtocolError:
        return
    assert join_frame(frame) == message


@given(st.binary(min_size=1, max_size=64), st.binary(max_size=100), st.integers(1, 2**32 - 1), st.booleans())
def test_lying_lengths_are_refused(header: bytes, payload: bytes, lie: int, on_header: bool) -> None:
    message = bytearray(join_frame(Frame(header, payload)))
    honest = len(header) if on_header else len(payload)
    struct.pack_into("<I", message, 0 if on_header else 4, lie)
    if lie == honest:
        return
    with pytest.raises(ProtocolError):
        parse_frame(message, LIMITS)


@pytest.mark.parametrize(("header", "payload"), [(0, 0), (65, 0), (2**32 - 1, 0), (1, 257), (1, 2**32 - 1)])
def test_oversized_frames_are_refused_from_the_prefix_alone(header: int, payload: int) -> None:
    with pair() as (ours, channel):
        ours.sendall(struct.pack("<II", header, payload))  # nothing follows: it must not wait for more
        with pytest.raises(ProtocolError, match=r"a (header|payload) of"):
            channel.receive(time.monotonic() + 5)


@pytest.mark.parametrize("cut", [1, 7, 8, 10, 14])
def test_a_truncated_frame_is_no_frame(cut: int) -> None:
    with pair() as (ours, channel):
        ours.sendall(join_frame(Frame(b"abc", b"defg"))[:cut])
        ours.close()
        with pytest.raises(ChannelClosedError, match="inside a frame"):
            channel.receive(time.monotonic() + 5)


def test_an_orderly_end_is_none() -> None:
    with pair() as (ours, channel):
        ours.close()
        assert channel.receive(time.monotonic() + 5) is None


def test_deadlines_bound_the_whole_frame_not_each_byte() -> None:
    message = join_frame(Frame(b"h" * 60, b"p" * 200))
    with pair() as (ours, channel):
        stop = threading.Event()

        def dribble() -> None:
            for byte in message:
                if stop.wait(0.05):
                    return
                ours.sendall(bytes([byte]))

        thread = threading.Thread(target=dribble)
        thread.start()
        with pytest.raises(ChannelTimeoutError):
            channel.receive(time.monotonic() + 0.3)
        stop.set()
        thread.join()


def test_a_peer_that_takes_nothing_is_a_timeout() -> None:
    with pair() as (_, channel), pytest.raises(ChannelTimeoutError, match="does not take"):
        channel.send(Frame(b"h", bytes(32 << 20)), time.monotonic() + 0.2)


def test_a_peer_that_is_gone_is_closed() -> None:
    with pair() as (ours, channel):
        ours.close()
        with pytest.raises(ChannelClosedError):
            channel.send(Frame(b"h", bytes(1 << 20)), time.monotonic() + 5)
