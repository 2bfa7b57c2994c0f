"""A backend that compiles in a child process and does there what its options say: work, refuse, crash, hang."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import ClassVar

from tapestry.backends.base import AnyOp, Availability, Backend, Options, Rule
from tapestry.errors import CompileError, UnsupportedError
from tapestry.program.graph import Graph
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Artifact, Compiled


class How(Options, frozen=True):
    """``act``: work, unsupported, error, raise, abort, exit, hang, fork, print or junk. ``note`` tells jobs apart."""

    act: str = "work"
    note: str = ""


class CompilingBackend(Backend):
    """Leaves a line with its process id in the file that TAPESTRY_TEST_LOG names, for each job."""

    name: ClassVar[str] = "compiling"
    device_kinds: ClassVar[frozenset[str]] = frozenset({"mock"})
    version: ClassVar[str] = "1"

    def availability(self) -> Availability:
        return Availability(True)

    def rules(self) -> Sequence[Rule]:
        return (AnyOp(lambda call, info: None),)

    def options(self) -> Sequence[Options]:
        return (How(),)

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        assert isinstance(options, How)
        log = os.environ.get("TAPESTRY_TEST_LOG")
        if log:
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()}\n")
        _act(options.act)
        return Compiled(self.name, Artifact("mock:nothing", options.note.encode()), (), (), ())

    def fingerprint(self) -> str:
        return f"compiling {self.version}"


def _act(act: str) -> None:
    if act == "unsupported":
        raise UnsupportedError("not this one")
    if act == "error":
        raise CompileError("line 3: syntax error")
    if act == "raise":
        raise ValueError("a bug in the compiler")
    if act == "abort":
        os.write(2, b"compiler: internal error\n")
        os.abort()
    if act == "exit":
        os._exit(3)
    if act == "hang":
        time.sleep(3600)
    if act == "fork" and (child := os.fork()) == 0:
        time.sleep(3600)  # as one that was forked beside a lock that somebody held
    elif act == "fork":
        with open(os.environ["TAPESTRY_TEST_LOG"], "a", encoding="utf-8") as file:
            file.write(f"{child}\n")
    if act == "print":
        os.write(1, b"warnings on standard output\n" * 1000)
