"""One worker process: starting it with one end of a socket pair, reading its stderr, ending it without a zombie.

Not here: what is said over the socket.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Generator, Sequence
from typing import IO

from tapestry.runtime.openmp import VARIABLE

#: How much of a worker's last words is kept, in bytes.
STDERR_BYTES = 16_384
#: Seconds that a worker gets to leave by itself before it is killed.
GRACE_SECONDS = 2.0


class WorkerProcess:
    """A running worker. ``connection`` is the parent's end of the socket pair."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.connection, theirs = socket.socketpair()
        with theirs:
            command = [*worker_command(), "--fd", str(theirs.fileno()), "--parent", str(os.getpid()), *arguments]
            with _interrupts_blocked():
                # A session of its own: Ctrl-C in the terminal reaches the parent only, which then decides.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env=worker_environment(),
                )
        assert self._process.stderr is not None
        self._tail = _Tail(self._process.stderr)
        # Runs at interpreter exit too: no worker outlives its parent, and none stays a zombie.
        self._end = weakref.finalize(self, _end, self._process, self.connection, self._tail, os.getpid())

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Let it leave by itself for a moment, then kill it. May be called again."""
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        self._end()

    def kill(self) -> None:
        """End it now. May be called again."""
        self._end()

    def strike(self) -> None:
        """Kill the process and clean nothing up: what another thread may do while this one waits for the worker."""
        self._process.kill()

    def wait_for_exit(self, seconds: float) -> str:
        """How it ended, in words: the signal's name or the exit code. Kills it when it is still alive after that."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its connection and had to be killed"
        self._tail.join()
        if code < 0:
            return f"was killed by {_signal_name(-code)}"
        return f"exited with code {code}"

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        return self._tail.text()


class _Tail:
    """Drains a pipe in a thread and keeps its end."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._kept = bytearray()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="tapestry-worker-stderr", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the pipe; a grandchild may hold it open, so not for long."""
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def text(self) -> str:
        with self._lock:
            return self._kept.decode("utf-8", "replace").strip()

    def _drain(self) -> None:
        with self._pipe:
            while chunk := os.read(self._pipe.fileno(), 4096):
                with self._lock:
                    self._kept += chunk
                    del self._kept[:-STDERR_BYTES]


def worker_command() -> list[str]:
    """The start of every worker's command line: this interpreter, without the current directory on its path."""
    return [sys.executable, "-P", "-m", "tapestry.runtime.worker"]


def worker_environment() -> dict[str, str]:
    """The environment of a worker: it imports from where this process does, and OpenMP's threads sleep between calls.

    Spinning ones slow whatever runs next on the same processors; OpenMP reads this once, when it is loaded.
    """
    paths = [os.path.abspath(entry) for entry in sys.path if not entry.endswith(".zip")]
    return {VARIABLE: "PASSIVE", **os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@contextlib.contextmanager
def _interrupts_blocked() -> Generator[None]:
    """A child inherits what is blocked, and so do its threads: ignoring would not do, because drivers (LLVM within
    PoCL) install handlers of their own.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(process: subprocess.Popen[bytes], connection: socket.socket, tail: _Tail, owner: int) -> None:
    connection.close()
    if os.getpid() != owner:
        return  # a fork of the owner: the worker is not its child
    if process.poll() is None:
        process.kill()
    process.wait()
    tail.join()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
