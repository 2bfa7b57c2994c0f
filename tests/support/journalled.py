"""Migrations with a journal on the mock device, observed: what was kept, which steps ran, where one was killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import torch

from support.eager_device import EagerMockDevice
from support.faulty_backend import Fault, FaultyBackend
from support.migrating import Block
from tapestry.backends.base import Backend, Options
from tapestry.backends.cache import CompileCache
from tapestry.backends.compiler import Compiler
from tapestry.migration.engine import Migration
from tapestry.migration.migrate import summarise
from tapestry.migration.result import MigrationResult
from tapestry.migration.steps import Steps
from tapestry.program.capture import capture
from tapestry.program.graph import Graph
from tapestry.program.inputs import as_input_sets
from tapestry.program.program import Program
from tapestry.program.serial import overload_name
from tapestry.runtime.device import Call, DeviceInfo
from tapestry.runtime.resident import Resident
from tapestry.suite.carve import carve
from tapestry.suite.case import Suite
from tapestry.suite.journal import Journal
from tapestry.suite.on_target import Target
from tapestry.suite.verdicts import CaseResult


class Small(torch.nn.Module):
    """Two blocks and a head: 13 calls. ``last`` is the function at the end."""

    def __init__(self, last: Callable[[torch.Tensor, int], torch.Tensor] = torch.softmax) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.head = torch.nn.Linear(8, 4)
        self.last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.last(torch.tanh(self.head(x)), -1)


@dataclass(frozen=True)
class Subject:
    """A captured model, its suite and its inputs."""

    program: Program
    suite: Suite
    inputs: tuple[torch.Tensor, ...]


def subject(model: torch.nn.Module) -> Subject:
    """Capture and carve a model that takes a matrix of 3 × 8."""
    args = (torch.randn(3, 8, generator=torch.Generator().manual_seed(3)),)
    program = capture(model.eval(), args, {}, name="small")
    return Subject(program, carve(program, [args]), args)


class Kernelled(FaultyBackend):
    """A backend with a kernel for each operator: ``kernels`` are the versions of those that changed.

    ``release`` is the version of the backend itself. As with hand-written kernels, each region has its own.
    """

    def __init__(self, *faults: Fault, release: str = "1", **kernels: str) -> None:
        super().__init__(*faults, version=release)
        self.kernels = {f"aten.{name}.default": version for name, version in kernels.items()}

    def fingerprint_for(self, graph: Graph, info: DeviceInfo, options: Options) -> str:
        named = sorted({overload_name(call.target) for call in graph.calls})
        return f"{self.fingerprint()} {[(name, self.kernels.get(name, '1')) for name in named]}"


class CountingDevice(EagerMockDevice):
    """Counts the regions that are run."""

    def __init__(self, driver: str = "") -> None:
        super().__init__()
        self.calls = 0
        if driver:
            self._info = msgspec.structs.replace(self.info, fingerprint=driver)

    def _call(self, program: object, call: Call) -> None:
        self.calls += 1
        super()._call(program, call)  # type: ignore[arg-type]


@dataclass
class Log:
    """What was written to a journal and which steps were taken, over one migration or several."""

    #: Kind and key of each answer.
    keys: list[tuple[str, str]] = field(default_factory=list)
    #: The cases that were run.
    cases: list[str] = field(default_factory=list)
    #: The regions of each step, and whether it was run.
    steps: list[tuple[tuple[tuple[str, ...], ...], bool]] = field(default_factory=list)

    @property
    def ran(self) -> list[tuple[tuple[str, ...], ...]]:
        """The regions of the steps that were run."""
        return [regions for regions, fresh in self.steps if fresh]


@dataclass(frozen=True)
class Ended:
    """A migration that has ended."""

    result: MigrationResult
    log: Log
    calls: int


class Killed(BaseException):
    """Stands for the end of the process."""


@contextmanager
def killed_at(count: int, within: bool) -> Generator[list[tuple[str, str]]]:
    """End the job right after the ``count``-th answer is written, or in the midst of writing it.

    Gives the kind and key of the answers that are written whole.
    """
    put = Journal.put
    written: list[tuple[str, str]] = []

    def counted(self: Journal, kind: str, key: str, value: msgspec.Struct) -> None:
        path = self.folder / "journal.bin"
        before = path.stat().st_size
        put(self, kind, key, value)
        if within and len(written) + 1 == count:
            os.truncate(path, (before + path.stat().st_size) // 2)
            raise Killed
        written.append((kind, key))
        if len(written) == count:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "put", counted)
        yield written


def migrated(
    of: Subject,
    backends: Backend | Sequence[Backend],
    journal: Path,
    device: CountingDevice | None = None,
    cache: Path | None = None,
) -> Ended:
    """Migrate on the mock device, observed."""
    device = device or CountingDevice()
    log = Log()
    chosen = [backends] if isinstance(backends, Backend) else list(backends)
    sets = as_input_sets([of.inputs])
    with pytest.MonkeyPatch.context() as patch, Compiler(CompileCache(cache)) as compiler:
        _observe(patch, log)
        resident = Resident(device)
        targets = [Target.of(resident, backend, compiler) for backend in chosen]
        with Journal(journal, "small") as kept:
            outcome = Migration(of.program, of.suite, sets, targets, kept).run()
        result = summarise(of.program, of.suite, outcome, targets)
        outcome.executable.close()
    return Ended(result, log, device.calls)


def _observe(patch: pytest.MonkeyPatch, log: Log) -> None:
    put, step = Journal.put, Steps.step

    def noted_put(self: Journal, kind: str, key: str, value: msgspec.Struct) -> None:
        put(self, kind, key, value)
        log.keys.append((kind, key))
        if isinstance(value, CaseResult):
            log.cases.append(value.case)

    def noted_step(self: Steps, kind: str, regions: Sequence[Sequence[str]], *rest: object, **named: object) -> object:
        count = len(self.taken)
        try:
            return step(self, kind, regions, *rest, **named)  # type: ignore[arg-type]
        finally:
            if len(self.taken) > count:
                log.steps.append((tuple(tuple(region) for region in regions), not self.taken[-1].resumed))

    patch.setattr(Journal, "put", noted_put)
    patch.setattr(Steps, "step", noted_step)


def comparable(result: MigrationResult) -> object:
    """The result without what a resumed run may have otherwise."""
    plain = msgspec.to_builtins(result)
    plain.pop("program_runs")
    for step in plain["steps"]:
        del step["seconds"], step["resumed"]
    return plain
