"""The child's side of a worker: serves one client's device over a socket until it closes, or the parent is gone."""

from __future__ import annotations

import faulthandler
import os
import socket
import threading
import time

from tapestry.errors import UsageError
from tapestry.runtime.device import Device
from tapestry.runtime.drivers.registry import open_driver
from tapestry.runtime.names import parse_device_name
from tapestry.runtime.protocol.framing import (
    HANDSHAKE_LIMITS,
    Channel,
    ChannelClosedError,
    ProtocolError,
    SocketChannel,
)
from tapestry.runtime.protocol.session import Session

#: Seconds between two looks at whether the parent still lives.
PARENT_POLL_SECONDS = 0.5


def serve(fd: int, parent: int) -> None:
    """Serve the socket ``fd`` until its end. Exits the process when ``parent`` is no longer the parent."""
    faulthandler.enable()  # a crash says where on stderr, which the parent quotes
    threading.Thread(target=_leave_with, args=(parent,), name="tapestry-parent", daemon=True).start()
    with socket.socket(fileno=fd) as connection:
        serve_channel(SocketChannel(connection, HANDSHAKE_LIMITS), Session(_open))


def serve_channel(channel: Channel, session: Session) -> None:
    """Answer frames until either side ends the conversation."""
    try:
        while not session.finished:
            channel.limits = session.limits
            try:
                frame = channel.receive()
            except ProtocolError as error:
                channel.send(session.refuse(error))
                break
            if frame is None:
                break
            answer = session.handle(frame)
            if answer is not None:
                channel.send(answer)
    except ChannelClosedError:
        pass  # the client is gone; there is nobody to tell
    finally:
        session.close()


def _open(name: str) -> Device:
    device = parse_device_name(name)
    if device.remote:
        raise UsageError(f"a worker drives devices of this machine, not {device}")
    return open_driver(device)


def _leave_with(parent: int) -> None:
    """End with the parent, also in the middle of a hung kernel, where nobody reads the socket's end.

    Not prctl(PR_SET_PDEATHSIG): that fires when the *thread* that started the worker ends.
    """
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    os._exit(1)
