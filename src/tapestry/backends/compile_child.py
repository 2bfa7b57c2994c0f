"""The child process that compiles: jobs come in on standard input, answers go out on standard output.

A compiler that crashes or hangs takes down this process only. Not here: who starts it and what happens then
(compiler). The first frame says that it is ready. Frames are a 4-byte little-endian length and a MessagePack body.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import struct
import sys
import threading
import time
from typing import BinaryIO, NoReturn, cast

import msgspec

from tapestry.backends.base import Backend
from tapestry.backends.cache import Refused
from tapestry.errors import CompileError, UnsupportedError
from tapestry.program.serial import loads
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Compiled

_LENGTH = struct.Struct("<I")
#: Seconds beyond a job's time limit after which the process ends by itself, should nobody have ended it.
_GRACE = 10.0


class Job(msgspec.Struct, frozen=True):
    """One region to compile. ``backend`` is the class as ``module:name``; ``options`` its options in MessagePack,
    ``timeout`` the seconds that it may take.
    """

    backend: str
    graph: bytes
    info: DeviceInfo
    options: bytes
    timeout: float = 120.0


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A job that compiled."""

    compiled: Compiled


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A job that ended in an exception that is neither of the expected ones: a fault of the backend."""

    reason: str


Answer = Finished | Refused | Failed


def write_frame(stream: BinaryIO, body: bytes) -> None:
    """Write one frame and flush."""
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame, or None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


def load_backend(address: str) -> Backend:
    """The backend class at ``module:name``, made."""
    module, _, name = address.partition(":")
    return cast("type[Backend]", getattr(importlib.import_module(module), name))()


def answer(job: Job) -> Answer:
    """Compile one job; every exception becomes an answer."""
    try:
        backend = load_backend(job.backend)
        options = msgspec.msgpack.decode(job.options, type=type(backend.options()[0]))
        finished = Finished(backend.compile(loads(job.graph), job.info, options))
        msgspec.msgpack.encode(finished)  # a backend may have put something into it that is no plain data
        return finished
    except UnsupportedError as error:
        return Refused("unsupported", str(error))
    except CompileError as error:
        return Refused("error", str(error))
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}"[:4000])


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, also in the middle of a job."""
    while os.getppid() == parent:
        time.sleep(1.0)
    _end_all(1)


def _end_all(code: int) -> NoReturn:
    """End this process with all that a compiler has forked off it: such a child may wait for a lock for ever."""
    if os.getpid() == os.getpgrp():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
    os._exit(code)


def main() -> None:
    """Answer jobs until standard input ends. What the compiler prints goes to standard error."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError:
        pass
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    write_frame(out, b"ready")
    while (body := read_frame(sys.stdin.buffer)) is not None:
        job = msgspec.msgpack.decode(body, type=Job)
        # Whoever asked may be gone, and a compiler that hangs may hold the GIL: this timer needs neither.
        faulthandler.dump_traceback_later(job.timeout + _GRACE, exit=True)
        reply = msgspec.msgpack.encode(answer(job))
        faulthandler.cancel_dump_traceback_later()
        write_frame(out, reply)
    _end_all(0)


if __name__ == "__main__":
    main()
