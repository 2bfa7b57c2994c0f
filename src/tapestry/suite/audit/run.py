"""Auditing: every fault of a file in worker processes, resumable. Not here: what a worker does (worker)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

import msgspec

import tapestry
from tapestry.errors import TapestryError, UsageError
from tapestry.numerics.verdict import Verdict
from tapestry.suite.audit.faults import Fault, FaultFile, read_faults
from tapestry.suite.audit.result import AuditResult, FaultResult, summarise
from tapestry.suite.audit.worker import Answer, Job
from tapestry.suite.journal import Journal
from tapestry.suite.variants.derive import GENERATION

#: Seconds for trying one fault. A worker that has not answered long after that is killed: it cannot even notice by
#: itself that a call hangs.
SECONDS = 60.0
_GRACE = 300.0

Progress = Callable[[str, int, int], None]


def audit(
    suite: Path | None,
    faults: Path,
    names: Iterable[str] = (),
    variants: bool = True,
    seconds: float = SECONDS,
    workers: int | None = None,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Try every fault of a file, or the named ones, against a stored suite and what its operators' schemas give.

    ``variants``: derived cases take part. ``seconds`` bounds one fault. Faults that the journal knows are not tried
    again. UsageError or FormatError for unfit files, EnvironmentProblem when operators have to be made from schemas
    and the extra for it is missing.
    """
    file = read_faults(faults, tuple(names))
    job = Job(str(faults.resolve()), str(suite.resolve()) if suite else "", variants, seconds)
    tell = progress or (lambda what, done, total: None)
    keys = {fault.name: _key(job, file, fault) for fault in file.faults}
    found: dict[str, FaultResult] = {}
    for fault in file.faults:
        known = journal.get("fault", keys[fault.name], FaultResult) if journal is not None else None
        if known is not None:
            found[fault.name] = known
    for result in _tried(job, [fault for fault in file.faults if fault.name not in found], workers or _cores()):
        found[result.fault] = result
        if journal is not None:
            journal.put("fault", keys[result.fault], result)
        tell("faults", len(found), len(file.faults))
    return summarise((found[fault.name] for fault in file.faults), variants)


def _cores() -> int:
    return max(1, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


def _key(job: Job, file: FaultFile, fault: Fault) -> str:
    suite = (Path(job.suite) / "suite.json").read_bytes() if job.suite else b""
    about = f"{tapestry.__version__} {GENERATION} {file.digest} {fault.name} {job.variants} {job.seconds} "
    return hashlib.sha256(about.encode() + suite).hexdigest()


def _tried(job: Job, faults: list[Fault], workers: int) -> Iterable[FaultResult]:
    """The results as they come in, from as many workers as there is work for."""
    waiting: queue.SimpleQueue[Fault] = queue.SimpleQueue()
    for fault in faults:
        waiting.put(fault)
    done: queue.SimpleQueue[FaultResult | Exception] = queue.SimpleQueue()
    stop = threading.Event()
    threads = [
        threading.Thread(target=_work, args=(job, waiting, done, stop), daemon=True)
        for _ in range(min(workers, len(faults)))
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in faults:
            result = done.get()
            if isinstance(result, Exception):
                raise result
            yield result
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _work(
    job: Job,
    waiting: queue.SimpleQueue[Fault],
    done: queue.SimpleQueue[FaultResult | Exception],
    stop: threading.Event,
) -> None:
    try:
        with _Worker(job, stop) as worker:
            while not stop.is_set():
                try:
                    fault = waiting.get_nowait()
                except queue.Empty:
                    return
                done.put(worker.attempt(fault))
    except Exception as error:  # the thread that waits raises it
        done.put(error)


class _Worker:
    """One worker process, started again when a fault has taken it down."""

    def __init__(self, job: Job, stop: threading.Event) -> None:
        self._job = job
        self._stop = stop
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def attempt(self, fault: Fault) -> FaultResult:
        """What became of a fault. A worker that dies or does not answer is a verdict on it."""
        begin = time.perf_counter()
        process = self._started()
        if process.stdin is None or process.stdout is None:
            raise UsageError("the audit's worker has no pipes")
        with contextlib.suppress(BrokenPipeError):  # a worker that is gone has nothing to read: found below
            process.stdin.write(msgspec.json.encode(fault.name) + b"\n")
            process.stdin.flush()
        line = self._line(process, self._job.seconds + _GRACE)
        if line is None or not line.endswith(b"\n"):
            code = None if line is None else process.wait()
            self._end()
            if code is not None and code >= 0:  # no signal: Python ended it, and has said why
                raise TapestryError(f"the audit's worker ended with code {code} at fault {fault.name}; see above")
            verdict = Verdict.TIMEOUT if line is None else Verdict.CRASHED
            why = f"no answer after {self._job.seconds + _GRACE:.0f} s" if line is None else "its process died"
            seconds = time.perf_counter() - begin
            return FaultResult(fault.name, fault.fault_class, fault.subject, True, "", str(verdict), 0, 0, why, seconds)
        answer = msgspec.json.decode(line, type=Answer)
        if answer.result is None:
            raise TapestryError(f"fault {fault.name}: {answer.problem}")
        return answer.result

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            command = [sys.executable, "-m", "tapestry.suite.audit.worker"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if self._process.stdin is not None:
                self._process.stdin.write(msgspec.json.encode(self._job) + b"\n")
        return self._process

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        """The next line, or what there is of it when the process has ended; None when there is none in time."""
        end = time.monotonic() + seconds
        found = bytearray()
        with selectors.DefaultSelector() as selector:
            if process.stdout is None:
                return b""
            selector.register(process.stdout, selectors.EVENT_READ)
            while not found.endswith(b"\n"):
                if self._stop.is_set() or time.monotonic() > end:
                    return None
                if not selector.select(0.2):
                    continue
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    return bytes(found)
                found += part
        return bytes(found)

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()
        self._process = None
