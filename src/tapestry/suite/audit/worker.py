"""A process that tries faults: ``python -m tapestry.suite.audit.worker``, one JSON line in, one out.

A fault is code that may crash, hang or eat memory; here it takes down this process and not the audit.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import torch

from tapestry.errors import TapestryError
from tapestry.suite.audit.faults import Fault, read_faults
from tapestry.suite.audit.mutants import try_fault
from tapestry.suite.audit.result import FaultResult
from tapestry.suite.audit.sources import Sources
from tapestry.suite.store import load_suite


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


def main() -> None:
    """Read a job, then the names of faults; answer each."""
    # What a fault or a library prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    faults = {fault.name: fault for fault in read_faults(Path(job.faults)).faults}
    sources = Sources(load_suite(Path(job.suite)) if job.suite else None, job.variants)
    for line in sys.stdin.buffer:
        name = msgspec.json.decode(line, type=str)
        answers.write(msgspec.json.encode(attempt(faults[name], sources, job.seconds)) + b"\n")


if __name__ == "__main__":
    main()
