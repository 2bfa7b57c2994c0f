"""Which of an operator's variants decide whether its nodes move, and which are reported as latent."""

from __future__ import annotations

import torch

from support.eager_device import EagerMockDevice
from support.faulty_backend import Fault, FaultyBackend
from tapestry.backends.compiler import Compiler
from tapestry.migration.engine import Migration
from tapestry.migration.migrate import summarise
from tapestry.migration.result import MigrationResult
from tapestry.program.capture import capture
from tapestry.program.inputs import as_input_sets
from tapestry.runtime.resident import Resident
from tapestry.suite.carve import carve
from tapestry.suite.derived import SAME_KEY, admitting, with_variants
from tapestry.suite.on_target import Target
from tapestry.suite.variants.derive import Budget


def moved(fault: Fault, *values: float, nonfinite: bool = False) -> MigrationResult:
    """A model of tanh and relu, run on these values, moved to a device with a fault."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.tanh(x) + x)

    sets = as_input_sets([(torch.tensor(values or (0.5, -0.5, 1.5, -2.0)).repeat(4, 1),)])
    program = capture(model, sets[0].calls[0].args)
    suite = with_variants(carve(program, sets), Budget(cases=48), SAME_KEY)
    with Compiler() as compiler:
        targets = [Target.of(Resident(EagerMockDevice()), FaultyBackend(fault), compiler)]
        found = admitting(suite, nonfinite)
        return summarise(program, found, Migration(program, found, sets, targets).run(), targets)


def test_a_fault_on_finite_values_keeps_the_operator_back() -> None:
    result = moved(Fault("wrong", "aten.relu.default", above=1e4))
    (finding,) = result.findings
    assert finding.ops == ("aten.relu.default",)
    assert [entry.op for entry in result.blocked] == ["aten.relu.default"]
    assert result.check.good


def test_a_fault_beside_nan_is_latent_in_a_finite_model() -> None:
    result = moved(Fault("raise", "aten.relu.default", nan=True))
    assert not result.findings
    assert not result.blocked
    assert result.good
    assert {entry.op for entry in result.latent} == {"aten.relu.default"}
    assert any("nan" in entry.variant for entry in result.latent)


def test_it_decides_where_it_is_asked_to() -> None:
    result = moved(Fault("raise", "aten.relu.default", nan=True), nonfinite=True)
    assert [entry.op for entry in result.blocked] == ["aten.relu.default"]
    assert not result.latent


def test_it_decides_where_the_model_was_seen_with_nan() -> None:
    result = moved(Fault("raise", "aten.relu.default", nan=True), float("nan"), 1.0, -1.0)
    assert [entry.op for entry in result.blocked] == ["aten.relu.default"]


def test_variants_of_other_shapes_take_no_part() -> None:
    args = (torch.arange(8.0),)
    suite = with_variants(carve(capture(torch.relu, args), [args]), Budget(cases=24))
    keys = {case.key for case in suite.cases if not case.base}
    assert {case.key for case in suite.cases} - keys
    assert {case.key for case in admitting(suite).cases} == keys
