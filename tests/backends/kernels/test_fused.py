"""Kernels for several calls: taken where nothing else reads what lies between them, and right as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional

from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import ready_backends
from tapestry.migration.engine import Migration
from tapestry.program.capture import capture
from tapestry.program.inputs import as_input_sets
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.carve import carve
from tapestry.suite.on_target import Target

Model = Callable[[torch.Tensor], object]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("opencl:0", marks=pytest.mark.opencl),
        pytest.param("webgpu:0", marks=pytest.mark.webgpu),
    ],
)
def targets(request: pytest.FixtureRequest) -> Iterator[list[Target]]:
    resident = Resident(open_device(request.param))
    with Compiler() as compiler:
        yield [Target.of(resident, backend, compiler) for backend in ready_backends("kernels,tvm")]
    resident.device.close()


class Linear(torch.nn.Module):
    """A linear layer with something behind it."""

    def __init__(self, after: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.after = torch.nn.Linear(12, 12), after

    def forward(self, x: torch.Tensor) -> object:
        return self.after(self.linear(x), x)


def regions_of(targets: list[Target], model: torch.nn.Module, x: torch.Tensor) -> list[tuple[str, int]]:
    """Migrate a model; everything must be right and on the device. Backend and number of calls of each region."""
    program = capture(model.eval(), (x,))
    inputs = as_input_sets([(x,)])
    outcome = Migration(program, carve(program, inputs), inputs, targets).run()
    outcome.executable.close()
    assert outcome.findings == ()
    assert outcome.final.good
    assert {node for region in outcome.placement.regions for node in region.nodes} == set(program.placeable)
    return sorted((region.backend, len(region.nodes)) for region in outcome.placement.regions)


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(lambda y, x: functional.gelu(y), id="gelu"),
        pytest.param(lambda y, x: functional.gelu(y, approximate="tanh"), id="gelu by tanh"),
        pytest.param(lambda y, x: torch.relu(y), id="relu"),
        pytest.param(lambda y, x: y + x, id="residual"),
        pytest.param(lambda y, x: x + y, id="residual first"),
    ],
)
@pytest.mark.parametrize("rows", [1, pytest.param(33, marks=pytest.mark.thorough)])
def test_linear_with_what_follows_is_one_launch(targets: list[Target], after: Model, rows: int) -> None:
    assert regions_of(targets, Linear(after), torch.randn(rows, 12)) == [("kernels", 2)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(lambda y, x: (functional.gelu(y), y), id="is returned"),
        pytest.param(lambda y, x: torch.relu(y) * y.sum(), id="is read again"),
    ],
)
def test_nothing_is_fused_where_what_lies_between_is_read(targets: list[Target], after: Model) -> None:
    found = regions_of(targets, Linear(after), torch.randn(5, 12))  # type: ignore[arg-type]
    assert ("kernels", 2) not in found


def test_a_residual_with_alpha_keeps_it(targets: list[Target]) -> None:
    regions_of(targets, Linear(lambda y, x: torch.add(y, x, alpha=3)), torch.randn(5, 12))
    regions_of(targets, Linear(lambda y, x: torch.add(x, y, alpha=3)), torch.randn(5, 12))


def test_a_residual_that_is_broadcast_is_right(targets: list[Target]) -> None:
    regions_of(targets, Linear(lambda y, x: y + x[:1]), torch.randn(5, 12))
    regions_of(targets, Linear(lambda y, x: y + 1.5), torch.randn(5, 12))
