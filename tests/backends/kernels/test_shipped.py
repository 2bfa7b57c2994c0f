"""The kernels that ship: taken where the compiler has nothing or is wrong, and right over their range."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import ready_backends
from tapestry.migration.engine import Migration
from tapestry.program.capture import capture
from tapestry.program.inputs import as_input_sets
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.carve import carve
from tapestry.suite.on_target import Target

DEVICES = [
    pytest.param("opencl:0", marks=pytest.mark.opencl),
    pytest.param("webgpu:0", marks=pytest.mark.webgpu),
]

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module", params=DEVICES)
def targets(request: pytest.FixtureRequest) -> Iterator[list[Target]]:
    resident = Resident(open_device(request.param))
    with Compiler() as compiler:
        yield [Target.of(resident, backend, compiler) for backend in ready_backends("kernels,tvm")]
    resident.device.close()


def backends_of(targets: list[Target], function: Callable[..., object], *args: torch.Tensor) -> set[str]:
    """Migrate a function; everything must be right and on the device. The backends that its nodes ended on."""
    program = capture(function, args)
    inputs = as_input_sets([args])
    outcome = Migration(program, carve(program, inputs), inputs, targets).run()
    outcome.executable.close()
    assert outcome.findings == ()
    assert outcome.final.good
    moved = {node for region in outcome.placement.regions for node in region.nodes}
    assert moved == set(program.placeable)
    return {region.backend for region in outcome.placement.regions}


def spread(low: float, high: float) -> torch.Tensor:
    """Values over a range, both signs, small magnitudes and the special ones."""
    ordinary = torch.linspace(low, high, 4001)
    small = torch.logspace(-38, 0, 400)
    return torch.cat([ordinary, small, -small, torch.tensor([0.0, -0.0, INF, -INF, NAN])])


@pytest.mark.parametrize("function", [torch.erfc], ids=["erfc"])
def test_functions_of_one_value(function: Callable[..., object], targets: list[Target]) -> None:
    assert backends_of(targets, function, spread(-12, 12)) == {"kernels"}


def test_erfinv_up_to_its_poles(targets: list[Target]) -> None:
    near = 1 - torch.logspace(-7.2, -0.01, 2000)
    x = torch.cat([torch.linspace(-1, 1, 4001), near, -near, spread(-1.5, 1.5)])
    assert backends_of(targets, torch.erfinv, x) == {"kernels"}


@pytest.mark.parametrize("function", [torch.hypot, torch.copysign], ids=["hypot", "copysign"])
def test_functions_of_two_values(function: Callable[..., object], targets: list[Target]) -> None:
    x = spread(-3, 3)
    assert backends_of(targets, function, x, x.flip(0)) == {"kernels"}


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.mean(), id="mean of all"),
        pytest.param(lambda x: x.sum(), id="sum of all"),
        pytest.param(lambda x: x.sum(-1), id="rows"),
        pytest.param(lambda x: x.mean((-1, 1), keepdim=True), id="last two, kept"),
    ],
)
@pytest.mark.parametrize("length", [8192, 100_003])
def test_long_sums_of_equal_values(function: Callable[..., object], length: int, targets: list[Target]) -> None:
    assert backends_of(targets, function, torch.full((3, 2, length), 0.1)) == {"kernels"}


@pytest.mark.parametrize(
    "function",
    [pytest.param(lambda x: x.sum(0), id="not the last"), pytest.param(lambda x: x[..., :100].sum(-1), id="short")],
)
def test_other_sums_are_the_compilers(function: Callable[..., object], targets: list[Target]) -> None:
    assert backends_of(targets, function, torch.randn(3, 2, 9000)) == {"tvm"}
