"""Small programs on which real platforms went wrong: captured, moved, and right, or refused with the reason.

``failures.py`` holds the programs and the right answers. Each is migrated with its first call and then makes all its
calls; results are compared after the last one, by the rule of the program.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import default_backend, ready_backends
from tapestry.migration.engine import Migration
from tapestry.program.capture import capture
from tapestry.program.inputs import as_input_sets
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.carve import carve
from tapestry.suite.on_target import Target

pytestmark = pytest.mark.slow


def _load(name: str) -> ModuleType:
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"cases_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FAILURES = _load("failures")


DEVICES = [
    "cpu",
    pytest.param("opencl:0", marks=pytest.mark.opencl),
    pytest.param("webgpu:0", marks=pytest.mark.webgpu),
]


@pytest.fixture(scope="module", params=DEVICES)
def targets(request: pytest.FixtureRequest) -> Iterator[list[Target]]:
    resident = Resident(open_device(request.param))
    names = default_backend(resident.device.info.kind)
    with Compiler() as compiler:
        yield [Target.of(resident, backend, compiler) for backend in ready_backends(names)]
    resident.device.close()


def moved(targets: list[Target]) -> tuple[Callable[[object, tuple[object, ...]], object], list[Migration]]:
    """What ``check`` wraps a program with, and the migrations that were made."""
    made: list[Migration] = []

    def wrap(target: object, first: tuple[object, ...]) -> object:
        program = capture(target, first)  # pyright: ignore[reportArgumentType]
        inputs = as_input_sets([first])
        migration = Migration(program, carve(program, inputs), inputs, targets)
        made.append(migration)
        outcome = migration.run()
        assert outcome.final.good, outcome.final.reason
        on_target = {node for region in outcome.placement.regions for node in region.nodes}
        said = {node for finding in outcome.findings for node in finding.nodes}
        assert set(program.placeable) <= on_target | said, "a node stays on the source without a reason"
        executable = outcome.executable
        executable.reset()
        return executable

    return wrap, made


@pytest.mark.parametrize("case", FAILURES.CASES, ids=lambda case: f"{case.fault_class}-{case.name}")
def test_right_after_the_move(case: object, targets: list[Target]) -> None:
    wrap, made = moved(targets)
    assert FAILURES.check(case, wrap) in {"ok", "undefined"}
    assert made


@pytest.mark.parametrize("case", FAILURES.NEGATIVE_CONTROLS, ids=lambda case: f"{case.fault_class}-{case.name}")
def test_what_platforms_may_do_raises_no_alarm(case: object, targets: list[Target]) -> None:
    wrap, made = moved(targets)
    assert FAILURES.check(case, wrap) in {"ok", "undefined"}
    assert [finding for migration in made for finding in migration.findings if finding.verdict == "fail"] == []
