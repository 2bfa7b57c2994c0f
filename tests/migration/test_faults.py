"""A target with faults: every fault is found and named, everything else moves, and the end result is right."""

from __future__ import annotations

import math

import pytest
import torch

from support.faulty_backend import Fault, FaultyBackend
from support.migrating import LAYERS, Moved, blocks, blocks_suite, inputs, move
from tapestry.program.inputs import as_input_sets

GELU, LINEAR, NORM = "aten.gelu.default", "aten.linear.default", "aten.layer_norm.default"
ADD, TANH, SOFTMAX = "aten.add.Tensor", "aten.tanh.default", "aten.softmax.int"


def nodes_of(op: str) -> set[str]:
    return {node.id for node in blocks()[1].nodes if node.op == op}


def check_right(moved: Moved, count: int = 1) -> None:
    """The end result is right on all inputs, as an engineer would look: against the model itself."""
    model, _ = blocks()
    assert moved.result.check.good
    for given in as_input_sets(inputs(count)):
        args = given.calls[0].args
        with torch.no_grad():
            assert torch.allclose(moved.outcome.executable(*args), model(*args), rtol=1e-5, atol=1e-6)  # type: ignore[arg-type]


def check_elsewhere(moved: Moved, stays: set[str]) -> None:
    """Everything but ``stays`` is on the target, seen from the driver's launch log."""
    _, program = blocks()
    assert moved.staying() == stays
    compute = len(program.compute)
    staying = len(stays & program.compute)
    assert moved.result.coverage.compute_on_target == compute - staying


def log2() -> float:
    return math.log2(len(blocks()[1].nodes))


def test_without_faults_all_moves_in_one_region() -> None:
    moved = move(FaultyBackend())
    check_right(moved)
    check_elsewhere(moved, set())
    assert moved.result.findings == ()
    assert len(moved.outcome.placement.regions) == 1
    assert moved.result.program_runs <= 2 * log2() + 10
    assert moved.result.coverage.launches == 1
    assert moved.result.coverage.transfers == 2


@pytest.mark.parametrize(
    ("kind", "verdict", "words"),
    [
        ("wrong", "fail", ""),
        ("abort", "crashed", "the worker died"),
        ("hang", "timeout", "hung"),
        ("raise", "error", "this kernel always fails"),
        ("unsupported", "unsupported", "faulty has no aten.gelu.default"),
        ("compile", "error", "faulty cannot compile"),
    ],
)
def test_an_operator_that_its_cases_find(kind: str, verdict: str, words: str) -> None:
    moved = move(FaultyBackend(Fault(kind, GELU)))
    check_right(moved)
    check_elsewhere(moved, nodes_of(GELU))
    (finding,) = moved.result.findings
    assert set(finding.nodes) == nodes_of(GELU)
    assert finding.ops == (GELU,)
    assert (finding.verdict, finding.cause) == (verdict, "replay")
    assert words in finding.reason
    assert finding.reason
    assert all("migrating.py:" in source for source in finding.sources)
    assert {entry.reason for entry in moved.result.blocked} == {f"{verdict}: {finding.reason}"}
    assert moved.result.program_runs <= 2 * log2() + 10


def test_every_node_has_its_history() -> None:
    moved = move(FaultyBackend(Fault("wrong", GELU), Fault("unsupported", TANH)))
    for record in moved.result.nodes:
        if record.place == "folded":
            continue
        (attempt,) = record.tried
        assert (attempt.backend, attempt.how, attempt.verdict) == ("faulty", "cases", record.verdict)
        assert attempt.cases >= 1
        assert attempt.max_rel is not None
        stays = record.op in (GELU, TANH)
        assert (record.place == "source") == stays
        assert bool(record.why) == bool(attempt.reason) == stays
        assert record.why == (f"{attempt.verdict}: {attempt.reason}" if stays else "")


def test_the_history_holds_what_the_program_showed() -> None:
    moved = move(FaultyBackend(Fault("wrong", GELU, after=LINEAR)))
    (finding,) = moved.result.findings
    assert finding.cause == "merge"
    for record in moved.result.nodes:
        hows = [attempt.how for attempt in record.tried]
        assert hows == (["cases", "merge"] if record.node in finding.nodes else ["cases"])
        assert record.verdict == "pass"


def test_several_operators_at_once() -> None:
    moved = move(
        FaultyBackend(Fault("wrong", GELU), Fault("abort", TANH), Fault("unsupported", SOFTMAX), Fault("hang", NORM))
    )
    check_right(moved)
    check_elsewhere(moved, nodes_of(GELU) | nodes_of(TANH) | nodes_of(SOFTMAX) | nodes_of(NORM))
    assert {(entry.ops[0], entry.verdict) for entry in moved.result.findings} == {
        (GELU, "fail"), (TANH, "crashed"), (SOFTMAX, "unsupported"), (NORM, "timeout"),
    }  # fmt: skip


def test_everything_is_wrong() -> None:
    faults = [Fault("wrong", op) for op in (GELU, LINEAR, NORM, ADD, TANH, SOFTMAX)]
    moved = move(FaultyBackend(*faults))
    check_right(moved)
    assert moved.outcome.placement.regions == ()
    assert moved.result.coverage.compute_nodes == 0.0


@pytest.mark.parametrize(("kind", "verdict"), [("wrong", "fail"), ("abort", "crashed"), ("raise", "error")])
def test_a_place_that_the_cases_miss(kind: str, verdict: str) -> None:
    """Wrong for one layer's weight only, of which the suite kept no sample: the whole program shows it."""
    model, program = blocks()
    found: list[int] = []
    for layer in (0, 3, 5, 7):
        weight = float(model.blocks[layer].up.weight.detach().sum())  # type: ignore[union-attr, operator]
        moved = move(FaultyBackend(Fault(kind, LINEAR, sums_to=weight)))
        check_right(moved)
        (finding,) = moved.result.findings
        assert finding.verdict == verdict
        ups = {node.id for node in program.nodes if node.op == LINEAR and node.source.module.endswith(".up")}
        assert set(finding.nodes) == ups  # all of the same key
        check_elsewhere(moved, ups)
        if finding.cause == "program":
            found.append(layer)
            assert moved.result.program_runs <= 3 * log2() + 10
            assert "its cases pass" in finding.reason
    assert found, "every layer's weight was sampled: the test needs more layers"


def test_wrong_only_together() -> None:
    moved = move(FaultyBackend(Fault("wrong", GELU, after=LINEAR)))
    check_right(moved)
    check_elsewhere(moved, set())
    (finding,) = moved.result.findings
    assert (finding.verdict, finding.cause) == ("fail", "merge")
    assert finding.ops == (LINEAR, GELU)
    assert set(finding.nodes) == nodes_of(GELU) | {node.replace("gelu", "up.linear") for node in nodes_of(GELU)}
    assert len(moved.outcome.placement.regions) <= 2 * LAYERS + 1
    assert moved.result.program_runs <= 3 * log2() + 10
    for region in moved.outcome.placement.regions:
        ops = [blocks()[1].by_id[node].op for node in region.nodes]
        assert GELU not in ops or len(ops) == 1


@pytest.mark.parametrize(("kind", "verdict"), [("abort", "crashed"), ("hang", "timeout"), ("raise", "error")])
def test_broken_only_together(kind: str, verdict: str) -> None:
    moved = move(FaultyBackend(Fault(kind, TANH, after=LINEAR)))
    check_right(moved)
    check_elsewhere(moved, set())
    (finding,) = moved.result.findings
    assert (finding.verdict, finding.cause) == (verdict, "merge")
    assert finding.ops == (LINEAR, TANH)
    assert moved.result.program_runs <= 3 * log2() + 10


def test_two_different_faults_together() -> None:
    moved = move(FaultyBackend(Fault("wrong", TANH, after=LINEAR), Fault("wrong", NORM, after=ADD)))
    check_right(moved)
    check_elsewhere(moved, set())
    assert {entry.ops for entry in moved.result.findings} == {(LINEAR, TANH), (ADD, NORM)}
    assert moved.result.program_runs <= 3 * 2 * log2() + 10


def test_what_does_not_compile_together_stays_apart() -> None:
    moved = move(FaultyBackend(Fault("compile", SOFTMAX, after=TANH)))
    check_right(moved)
    check_elsewhere(moved, set())
    assert any("does not compile as one region" in step.reason for step in moved.result.steps)


@pytest.mark.parametrize("kind", ["wrong", "abort"])
def test_a_fault_that_shows_on_one_input_set_of_five(kind: str) -> None:
    sets = inputs(5)
    sets[3] = (sets[3][0].clone(),)
    sets[3][0][0, 0] = 50.0
    fault = Fault(kind, ADD, above=20.0)  # only the first residual, only on set 3
    moved = move(FaultyBackend(fault), sets=sets, suite=blocks_suite(1))
    assert moved.result.check.good
    (finding,) = moved.result.findings
    assert finding.cause == "program"
    assert finding.verdict == {"wrong": "fail", "abort": "crashed"}[kind]
    assert "input set 3" in finding.reason or kind == "abort"
    assert set(finding.nodes) == nodes_of(ADD)
    check_elsewhere(moved, nodes_of(ADD))
    assert moved.result.program_runs <= 3 * log2() + 10 + 3 * len(sets)


def test_a_fault_together_that_shows_on_one_input_set() -> None:
    sets = inputs(5)
    sets[3] = (sets[3][0].clone(),)
    sets[3][0][0, 0] = 50.0
    moved = move(FaultyBackend(Fault("wrong", NORM, after=ADD, above=20.0)), sets=sets, suite=blocks_suite(1))
    assert moved.result.check.good
    (finding,) = moved.result.findings
    assert (finding.cause, finding.ops) == ("merge", (ADD, NORM))
    check_elsewhere(moved, set())


def test_program_runs_are_counted_where_they_happen() -> None:
    """Every run of the moved program submits the placeholder input once: the device counts them."""
    moved = move(FaultyBackend(Fault("wrong", GELU)), sets=inputs(3))
    assert moved.result.program_runs == moved.outcome.program_runs
    offloads = [step for step in moved.result.steps if not step.resumed and step.max_rel_error is not None]
    # The final check leaves out the set on which the last step ran the same regions.
    assert moved.outcome.program_runs == len(offloads) + 2


def test_closing_leaves_nothing_on_the_device() -> None:
    moved = move(FaultyBackend(Fault("abort", GELU), Fault("wrong", NORM, after=ADD)))
    moved.outcome.executable.close()
    assert moved.device.stats().buffers == 0
    assert moved.device.stats().modules == 0
