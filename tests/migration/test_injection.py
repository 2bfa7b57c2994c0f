"""Faults injected into a target that is right otherwise: each is named exactly, and everything else moves."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from support.faulty_backend import FaultyBackend
from support.injected_faults import Stateful, fused, off, stale, together
from support.migrating import Moved, move
from tapestry.cli.app import app
from tapestry.errors import UsageError
from tapestry.program.capture import capture
from tapestry.program.program import Program
from tapestry.suite.audit.faults import Fault

GELU, NORM, MUL, RELU = "aten.gelu.default", "aten.layer_norm.default", "aten.mul.Tensor", "aten.relu.default"
BATCH_NORM, ADD_IN_PLACE, NEG = "aten.batch_norm.default", "aten.add_.Tensor", "aten.neg.default"


def given() -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randn(3, 8, generator=torch.Generator().manual_seed(1)),)]


@cache
def program() -> Program:
    return capture(Stateful().eval(), given()[0], {})


def moved(*faults: Fault) -> Moved:
    return move(FaultyBackend(), program(), given(), faults=faults)


def check(result: Moved, causes: int) -> None:
    """Right in the end, everything that is in no finding on the target, and within the bound of program runs."""
    nodes = len(program().nodes)
    assert result.result.check.good
    assert len(result.result.findings) == causes
    # n nodes and k causes: 3 k log2(n) + 10 program runs, the bound that the engine promises.
    assert result.result.program_runs <= result.result.runs_allowed <= 3 * causes * math.log2(nodes) + 10
    kept = {node for entry in result.result.findings if entry.cause != "merge" for node in entry.nodes}
    assert result.staying() == kept
    compute = program().compute
    assert result.result.coverage.compute_on_target == len(compute - kept)


def named(result: Moved) -> set[tuple[str, ...]]:
    return {entry.ops for entry in result.result.findings}


def test_one_operator() -> None:
    result = moved(off("aten.tanh.default"))
    check(result, 1)
    assert named(result) == {("aten.tanh.default",)}


def test_an_operator_that_capture_decomposes_is_named_as_it_was_written() -> None:
    result = moved(off(BATCH_NORM))
    check(result, 1)
    assert named(result) == {(BATCH_NORM,)}


def test_a_fault_at_some_values_of_one_operator() -> None:
    largest = off(GELU, above=0.9)  # at two of six places
    result = moved(largest)
    assert {op for entry in result.result.findings for op in entry.ops} == {GELU}
    assert result.result.check.good


def test_two_that_are_wrong_only_when_fused() -> None:
    result = moved(fused("lost relu", MUL, RELU))
    check(result, 1)
    (finding,) = result.result.findings
    assert finding.cause == "merge"
    assert set(finding.ops) == {MUL, RELU}
    places = [entry for entry in program().nodes if entry.op == RELU]
    assert {node for node in finding.nodes if program().by_id[node].op == RELU} == {entry.id for entry in places}
    assert result.staying() == set()


def test_two_that_are_not_neighbours_are_named_without_what_lies_between() -> None:
    result = moved(together("far apart", GELU, NORM))
    check(result, 1)
    assert named(result) == {(GELU, NORM)}


def test_a_buffer_that_is_read_before_it_is_written() -> None:
    result = moved(stale("stale cache", ADD_IN_PLACE, NEG))
    check(result, 1)
    assert named(result) == {(ADD_IN_PLACE, NEG)}
    assert result.staying() == set()


def test_three_at_once() -> None:
    result = moved(off("aten.sin.default"), off(BATCH_NORM), stale("stale cache", ADD_IN_PLACE, NEG))
    check(result, 3)
    assert named(result) == {("aten.sin.default",), (BATCH_NORM,), (ADD_IN_PLACE, NEG)}


def test_ten_at_once() -> None:
    single = ("sigmoid", "tanh", "sin", "cos", "exp", "atan", "erf")
    faults = [
        *(off(f"aten.{name}.default") for name in single),
        off(BATCH_NORM),
        fused("lost relu", MUL, RELU),
        stale("stale cache", ADD_IN_PLACE, NEG),
    ]
    result = moved(*faults)
    check(result, 10)
    assert named(result) == {
        *((f"aten.{name}.default",) for name in single), (BATCH_NORM,), (MUL, RELU), (ADD_IN_PLACE, NEG),
    }  # fmt: skip


def test_a_fault_that_raises_is_an_error_of_its_operator() -> None:
    def broken(args: object, kwargs: object) -> object:
        raise RuntimeError("no such instruction")

    result = moved(Fault("raises", "size_limits", "aten.tanh.default", (), (), broken))
    check(result, 1)
    (finding,) = result.result.findings
    assert (finding.verdict, finding.ops) == ("error", ("aten.tanh.default",))
    assert "no such instruction" in finding.reason


def test_a_fault_without_a_call_in_the_program_is_refused() -> None:
    with pytest.raises(UsageError, match=r"fault aten\.cosh\.default needs a call of aten\.cosh\.default"):
        moved(off("aten.cosh.default"))


def test_another_result_than_the_program_reads_is_refused() -> None:
    flat = Fault("flat", "layout_indexing", GELU, (), (), lambda args, kwargs: torch.zeros(3))
    result = moved(flat)
    (finding,) = result.result.findings
    assert finding.ops == (GELU,)
    assert "gave torch.float32 [3]" in finding.reason


@pytest.mark.slow
def test_the_command_injects_what_a_file_holds(tmp_path: Path) -> None:
    faults = tmp_path / "faults.py"
    faults.write_text(
        "from types import SimpleNamespace\n"
        "import torch\n"
        "def wrong(args, kwargs):\n"
        "    return torch.tanh(*args) * 1.01\n"
        "FAULTS = [SimpleNamespace(name='tanh', fault_class='precision', op='aten.tanh.default', also=(), ops=(),\n"
        "                          apply=wrong),\n"
        "          SimpleNamespace(name='relu', fault_class='precision', op='aten.relu.default', also=(), ops=(),\n"
        "                          apply=lambda args, kwargs: args[0])]\n"
    )
    model = tmp_path / "model.py"
    model.write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Tanh(), torch.nn.ReLU()), (torch.randn(3, 4),)\n"
    )
    found = tmp_path / "found.json"
    command = ["migrate", f"{model}:make", "--to", "cpu", "--backend", "eager", "--json", str(found), "--variants", "0"]
    done = CliRunner().invoke(app, [*command, "--inject", f"{faults}:tanh", "--journal", str(tmp_path / "journal")])
    assert done.exit_code == 1, done.output
    document = json.loads(found.read_text())
    assert document["injected"] == ["tanh"]
    assert [entry["ops"] for entry in document["findings"]] == [["aten.tanh.default"]]
    assert document["program_runs"] <= document["runs_allowed"]
    missing = CliRunner().invoke(app, [*command, "--inject", f"{faults}:cosh"])
    assert isinstance(missing.exception, UsageError)


def test_drift_shows_where_precision_is_lost_and_what_flows_on() -> None:
    """A thousandth of the check's bound, added at one place: below every tolerance of the whole, and seen there."""
    small = Fault(
        "slightly off", "precision", "aten.erf.default", (), (),
        lambda args, kwargs: torch.erf(*args) * (1 + 3e-7),  # type: ignore[arg-type]
    )  # fmt: skip
    result = moved(small).result
    by_node = {point.node: point for point in result.drift}
    assert list(by_node) == [node.id for node in program().nodes if node.id in program().compute]
    erf = next(node.id for node in program().nodes if node.op == "aten.erf.default")
    assert by_node[erf].target > 2e-7 + by_node[erf].source / 2
    before = next(node.id for node in program().nodes if node.op == GELU)
    assert by_node[before].target == by_node[before].source
