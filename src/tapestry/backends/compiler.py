"""Compiling regions: from the cache, or in child processes that may crash or hang without harm.

Not here: any compiler, and which regions to compile.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, cast

import msgspec

from tapestry.backends.base import Backend, Options
from tapestry.backends.cache import CompileCache, Refused, cache_key
from tapestry.backends.compile_child import Answer, Failed, Finished, Job, read_frame, write_frame
from tapestry.errors import CompileError, UnsupportedError
from tapestry.program.graph import Graph
from tapestry.program.serial import dumps, loads
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Compiled

#: Seconds after which a compiler counts as hung.
TIMEOUT = 120.0
#: Seconds for the compiler's process to start.
START_TIMEOUT = 120.0


class Compiler:
    """Compiles regions, each once. Use as a context manager, or close it."""

    def __init__(self, cache: CompileCache | None = None, workers: int = 2, timeout: float = TIMEOUT) -> None:
        self.cache = cache or CompileCache()
        self.timeout = timeout
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tapestry-compile")
        self._local = threading.local()
        self._children: list[_Child] = []
        self._futures: dict[str, Future[Compiled]] = {}
        self._lock = threading.Lock()
        self._closed = False
        # One that is forgotten, or open when Python ends, takes its processes along.
        self._finalizer = weakref.finalize(self, _end, self._pool, self._children)

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the children; what is still being compiled is dropped."""
        with self._lock:
            self._closed = True
        self._finalizer()

    def compile(self, backend: Backend, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        """The compiled region. Raises UnsupportedError or CompileError with the backend's reason."""
        return self.start(backend, graph, info, options).result()

    def start(self, backend: Backend, graph: Graph, info: DeviceInfo, options: Options) -> Future[Compiled]:
        """The same in the background."""
        body = dumps(graph)
        key = self._key(backend, graph, body, info, options)
        with self._lock:
            known = self._futures.get(key)
            if known is not None:
                return known
            future = self._pool.submit(self._compile, key, backend, body, info, options)
            self._futures[key] = future
            return future

    def key(self, backend: Backend, graph: Graph, info: DeviceInfo, options: Options) -> str:
        """The cache key: what everything that depends on this compiled region depends on."""
        return self._key(backend, graph, dumps(graph), info, options)

    def _key(self, backend: Backend, graph: Graph, body: bytes, info: DeviceInfo, options: Options) -> str:
        fingerprint = backend.fingerprint_for(graph, info, options)
        return cache_key(_text_key(body), fingerprint, f"{backend.name} {options}", info)

    def _compile(self, key: str, backend: Backend, body: bytes, info: DeviceInfo, options: Options) -> Compiled:
        found = self.cache.get(key)
        if found is None:
            found = self._fresh(backend, body, info, options)
            self.cache.put(key, found)
        if isinstance(found, Compiled):
            return found
        raise (UnsupportedError if found.kind == "unsupported" else CompileError)(found.reason)

    def _fresh(self, backend: Backend, body: bytes, info: DeviceInfo, options: Options) -> Compiled | Refused:
        if not backend.isolated:
            return _in_process(backend, body, info, options)
        job = Job(_address(type(backend)), body, info, msgspec.msgpack.encode(options), self.timeout)
        reply = self._child().ask(job, self.timeout)
        if isinstance(reply, Failed):
            raise CompileError(f"{backend.name} failed: {reply.reason}")
        return reply.compiled if isinstance(reply, Finished) else reply

    def _child(self) -> _Child:
        child = cast("_Child | None", getattr(self._local, "child", None))
        if child is None:
            child = _Child()
            self._local.child = child
            with self._lock:
                self._children.append(child)
                if self._closed:
                    child.kill()
        return child


def _text_key(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _address(kind: type[Backend]) -> str:
    """The class as ``module:name``. CompileError when a process of its own could not import it."""
    top = kind.__module__.partition(".")[0]
    if top == "__main__" or "<locals>" in kind.__qualname__ or not _importable(kind.__module__):
        raise CompileError(
            f"backend {kind.name} compiles in a process of its own, which cannot import {kind.__qualname__} from "
            f"{kind.__module__}; define it at the top of a module on the path, or set isolated = False in it"
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def _importable(module: str) -> bool:
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return False
    return found is not None


def _in_process(backend: Backend, body: bytes, info: DeviceInfo, options: Options) -> Compiled | Refused:
    try:
        return backend.compile(loads(body), info, options)
    except UnsupportedError as error:
        return Refused("unsupported", str(error))
    except CompileError as error:
        return Refused("error", str(error))
    except Exception as error:
        raise CompileError(f"{backend.name} failed: {type(error).__name__}: {error}") from error


def _end(pool: ThreadPoolExecutor, children: list[_Child]) -> None:
    """Stop the processes, wait for the threads that spoke to them, close the files."""
    pool.shutdown(wait=False, cancel_futures=True)
    for child in list(children):
        child.kill()
    pool.shutdown(wait=True)
    for child in children:
        child.dispose()


class _Child:
    """One child process, started when first asked and again after it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._ready = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as this object)

    def ask(self, job: Job, timeout: float) -> Answer:
        """The answer. CompileError when the process dies or does not answer within ``timeout`` seconds."""
        process = self._running()
        late = threading.Event()
        # Starting the interpreter and importing torch is not the compiler's time.
        body: bytes | None = b""
        if not self._ready:
            body = _exchange(process, None, START_TIMEOUT, late)
            self._ready = body is not None
        if body is not None:
            body = _exchange(process, msgspec.msgpack.encode(job), timeout, late)
        if body is not None:
            with contextlib.suppress(msgspec.DecodeError):
                return msgspec.msgpack.decode(body, type=Answer)
        code = _ended(process)
        _close_pipes(process)
        if self._closed:
            raise CompileError("the compiler was closed")
        if late.is_set():
            raise CompileError(f"the compiler did not finish within {timeout:.0f} s and was stopped")
        raise CompileError(f"the compiler's process died ({_exit_words(code)}){self._last_words()}")

    def _last_words(self) -> str:
        """The end of what the process wrote to standard error."""
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        return f": {text[-1000:]}" if text else ""

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise CompileError("the compiler was closed")
            return self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            if self._process is not None:
                _close_pipes(self._process)
            command = [sys.executable, "-P", "-m", "tapestry.backends.compile_child"]
            paths = [os.path.abspath(entry) for entry in sys.path if entry]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
            self._errors.seek(0)
            self._errors.truncate(0)
            self._ready = False
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                start_new_session=True,
            )
        return self._process

    def kill(self) -> None:
        """Stop the process for good; a thread that waits for its answer gets CompileError."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            _kill(process)
            process.wait()

    def dispose(self) -> None:
        """Close the files. After ``kill``, when no thread asks any more."""
        if self._process is not None:
            _close_pipes(self._process)
        self._errors.close()


def _exchange(
    process: subprocess.Popen[bytes], question: bytes | None, timeout: float, late: threading.Event
) -> bytes | None:
    """Send a frame, if any, and read the next one; None when the process has died, or was killed for being late."""
    stdin, stdout = cast("BinaryIO", process.stdin), cast("BinaryIO", process.stdout)
    timer = threading.Timer(timeout, _expire(process, late))
    timer.daemon = True
    timer.start()
    try:
        if question is not None:
            write_frame(stdin, question)
        return read_frame(stdout)
    except (BrokenPipeError, ValueError):  # it died, or its pipes were closed
        return None
    finally:
        timer.cancel()


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _expire(process: subprocess.Popen[bytes], late: threading.Event) -> Callable[[], None]:
    def expire() -> None:
        late.set()
        _kill(process)

    return expire


def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process that has closed its output; it is killed when it does not end by itself."""
    try:
        return process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        _kill(process)
        return process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that has not been waited for, with all that it has forked: it leads a group of its own."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}"
