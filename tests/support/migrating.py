"""Migrations on a mock device in this process, and the model that most tests move."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from support.eager_device import EagerMockDevice
from tapestry.backends.base import Backend
from tapestry.backends.cache import CompileCache
from tapestry.backends.compiler import Compiler
from tapestry.migration.engine import Migration, Outcome
from tapestry.migration.migrate import summarise
from tapestry.migration.result import MigrationResult
from tapestry.program.capture import capture
from tapestry.program.inputs import as_input_sets
from tapestry.program.program import Program
from tapestry.runtime.resident import Resident
from tapestry.suite.audit.faults import Fault
from tapestry.suite.carve import carve
from tapestry.suite.case import Suite
from tapestry.suite.injection.platform import Platform
from tapestry.suite.journal import Journal
from tapestry.suite.on_target import Target

LAYERS = 8


class Block(torch.nn.Module):
    """Linear, GELU, linear, norm, residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))


class Blocks(torch.nn.Module):
    """``LAYERS`` blocks and a head; 43 calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return torch.softmax(torch.tanh(self.head(x)), -1)


def inputs(count: int = 1) -> list[tuple[torch.Tensor, ...]]:
    """Input sets: random vectors, all different."""
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(3, 8, generator=generator),) for _ in range(count)]


@cache
def blocks() -> tuple[Blocks, Program]:
    """The model and its program, captured once."""
    model = Blocks().eval()
    return model, capture(model, inputs()[0], {})


@cache
def blocks_suite(count: int = 1) -> Suite:
    """Its suite, carved once per number of input sets."""
    return carve(blocks()[1], inputs(count))


class Moved:
    """A migration that has ended, with everything a test looks at."""

    def __init__(self, outcome: Outcome, result: MigrationResult, device: EagerMockDevice) -> None:
        self.outcome = outcome
        self.result = result
        self.device = device

    def staying(self) -> set[str]:
        """Nodes that stay on the source."""
        return {entry.node for entry in self.result.blocked}


def move(
    backend: Backend,
    program: Program | None = None,
    sets: Sequence[object] | None = None,
    suite: Suite | None = None,
    journal: Path | None = None,
    device: EagerMockDevice | None = None,
    faults: Sequence[Fault] = (),
) -> Moved:
    """Migrate a program (``blocks`` by default) to a mock device. Compilers and devices are closed afterwards.

    ``faults`` are injected.
    """
    chosen = program or blocks()[1]
    given = as_input_sets(sets or inputs())
    device = device or EagerMockDevice()
    found = suite or (carve(chosen, given) if program else blocks_suite(len(given)))
    with Compiler(CompileCache()) as compiler:
        faulty = Platform(chosen, faults, "test") if faults else None
        targets = [Target.of(Resident(device), backend, compiler, faulty=faulty)]
        if journal is None:
            outcome = Migration(chosen, found, given, targets).run()
        else:
            with Journal(journal, "test") as log:
                outcome = Migration(chosen, found, given, targets, log).run()
        result = summarise(chosen, found, outcome, targets)
    return Moved(outcome, result, device)
