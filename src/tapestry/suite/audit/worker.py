"""A process that tries faults: ``python -m tapestry.suite.audit.worker``, one JSON line in, one out.

A fault is code that may crash, hang or eat memory; here it takes down this process and not the audit.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from tapestry.errors import TapestryError
from tapestry.numerics.verdict import Verdict
from tapestry.suite.audit.faults import Fault, read_faults
from tapestry.suite.audit.mutants import try_fault
from tapestry.suite.audit.result import FaultResult
from tapestry.suite.audit.sources import Sources
from tapestry.suite.store import load_suite

#: Seconds after which one call of a fault counts as hung.
CALL_SECONDS = 20.0


class Job(msgspec.Struct, frozen=True):
    """What a worker is told when it starts. ``seconds`` bounds one fault; an empty ``suite`` means none."""

    faults: str
    suite: str
    variants: bool
    seconds: float


class Answer(msgspec.Struct, frozen=True):
    """What became of one fault; ``problem`` is set when it could not be tried."""

    result: FaultResult | None = None
    problem: str = ""


def attempt(fault: Fault, sources: Sources, seconds: float) -> Answer:
    """Try one fault."""
    try:
        if fault.ops:
            from tapestry.suite.audit.chains import try_chains

            return Answer(try_chains(fault, sources, seconds))
        return Answer(try_fault(fault, sources.calls(fault), seconds))
    except TapestryError as error:
        return Answer(problem=str(error))


class Watchdog:
    """Ends this process, with a verdict, when one call of a fault takes too long: nothing can cancel it in-process."""

    def __init__(self, send: Callable[[Answer], None], seconds: float = CALL_SECONDS) -> None:
        self._send = send
        self._seconds = seconds
        self._since: float | None = None
        self._fault: Fault | None = None
        threading.Thread(target=self._look, daemon=True).start()

    def watched(self, fault: Fault) -> Fault:
        """The same fault, looked at while it computes."""

        def apply(*given: object) -> object:
            self._since, self._fault = time.monotonic(), fault
            try:
                return fault.apply(*given)
            finally:
                self._since = None

        functools.update_wrapper(apply, fault.apply)
        return replace(fault, apply=apply)

    def _look(self) -> None:
        while True:
            time.sleep(0.5)
            since, fault = self._since, self._fault
            if since is not None and fault is not None and time.monotonic() - since > self._seconds:
                why = f"one call took over {self._seconds:.0f} s"
                verdict, spent = str(Verdict.TIMEOUT), self._seconds
                self._send(Answer(FaultResult(
                    fault.name, fault.fault_class, fault.subject, True, "", verdict, 0, 0, why, spent
                )))  # fmt: skip
                os._exit(1)


def main() -> None:
    """Read a job, then the names of faults; answer each."""
    # What a fault or a library prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    faults = {fault.name: fault for fault in read_faults(Path(job.faults)).faults}

    def send(answer: Answer) -> None:
        answers.write(msgspec.json.encode(answer) + b"\n")

    watchdog = Watchdog(send)
    sources = Sources(load_suite(Path(job.suite)) if job.suite else None, job.variants)
    for line in sys.stdin.buffer:
        name = msgspec.json.decode(line, type=str)
        send(attempt(watchdog.watched(faults[name]), sources, job.seconds))


if __name__ == "__main__":
    main()
