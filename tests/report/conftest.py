"""Migration results to report on: one where all is good, one with every kind of trouble, and a large one.

Built by hand, not measured: the tests compare what a page says with what these hold.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence

import pytest

from tapestry.migration.result import (
    Blocked,
    Check,
    Coverage,
    Finding,
    MigrationResult,
    NodeRecord,
    ProgramSummary,
    Step,
    SuiteSummary,
)
from tapestry.numerics.judgement import Metrics
from tapestry.report import ReportHeader
from tapestry.suite.verdicts import OperatorSummary

FILE = "/usr/lib/python3/site-packages/nets/encoder.py"
PARTS = (
    ("attention.query", "linear", True, 2.7e-7),
    ("attention", "view", False, 0.0),
    ("attention", "scaled_dot_product_attention", True, 6.9e-3),
    ("attention.output", "add", True, 5.9e-8),
    ("attention.output.norm", "layer_norm", True, 7.2e-4),
    ("intermediate", "gelu", True, 1.0),
    ("output", "linear", True, 1.1e-2),
)


def layers(number: int, parts: Sequence[tuple[str, str, bool, float]] = PARTS) -> tuple[NodeRecord, ...]:
    """``number`` equal layers under encoder.layer, after one folded node."""
    records = [NodeRecord("arange", "aten.arange.default", "", f"{FILE}:9 (model)", "folded", "", False, "", None, ())]
    for layer in range(number):
        for place, (inner, op, compute, error) in enumerate(parts):
            module = f"encoder.layer.{layer}.{inner}"
            records.append(
                NodeRecord(
                    f"{module}.{op}", f"aten.{op}.default", module, f"{FILE}:{20 + place} ({module})",
                    "target", f"r{layer}", compute, "pass", error, (records[-1].node, f"param:{module}.weight"),
                )
            )  # fmt: skip
    return tuple(records)


def moved(total: int) -> tuple[Step, ...]:
    """Doubling steps up to ``total`` nodes, then two merges."""
    sizes = [2**power - 1 for power in range(1, 20) if 2**power - 1 < total] + [total]
    checks = ((1.1e-6, 1e-5), (9.2e-7, 1e-5), (5.4e-6, 2.2e-5))
    offload = [Step("offload", size, size, True, *checks[place % 3], 0.4, False) for place, size in enumerate(sizes)]
    merge = [Step("merge", total, max(1, total // cut), True, 1.2e-6, 1e-5, 0.9, False) for cut in (4, 40)]
    return (*offload, *merge)


def operators(nodes: Sequence[NodeRecord]) -> tuple[OperatorSummary, ...]:
    errors = {record.op: record.max_rel for record in nodes if record.max_rel is not None}
    return tuple(
        OperatorSummary(op, 3, {"pass": 3}, Metrics(1.5 if error else 0.0, error, error, error * 1e-9, 1.0, None))
        for op, error in errors.items()
    )


def result_of(nodes: tuple[NodeRecord, ...]) -> MigrationResult:
    compute = sum(record.compute for record in nodes)
    return MigrationResult(
        target="opencl:0",
        backend="tvm",
        program=ProgramSummary(len(nodes), compute, 0),
        suite=SuiteSummary(18, 0, 77_332_072, 325_726_662),
        coverage=Coverage(1.0, 1.0, 1.0, 1.0, 5, 158, compute, compute),
        check=Check(5.414e-6, 3.3e-5, 0.999999999998, 2.1e-6, 5.41e-6, 2.1658e-5, True),
        findings=(),
        blocked=(),
        steps=moved(sum(record.place == "target" for record in nodes)),
        program_runs=15,
        operators=operators(nodes),
        nodes=nodes,
    )


def place(record: NodeRecord, where: str, verdict: str, error: float | None) -> NodeRecord:
    return NodeRecord(
        record.node, record.op, record.module, record.source, where, "" if where == "source" else record.region,
        record.compute, verdict, error, record.reads,
    )  # fmt: skip


@pytest.fixture
def header() -> ReportHeader:
    return ReportHeader(
        model="demo:minilm",
        date=dt.datetime(2026, 12, 1, 9, 30, tzinfo=dt.UTC),
        command="tapestry migrate demo:minilm --to opencl --report report.html",
        seconds=134.2,
        environment={"python": "3.11.9", "torch": "2.13.0", "device": "pthread-Intel(R) Xeon(R) Processor"},
        facts=(("Sentence similarity", "0.83, equal to the source's"),),
    )


@pytest.fixture
def good() -> MigrationResult:
    """Six layers, all on the target."""
    return result_of(layers(6))


@pytest.fixture
def troubled() -> MigrationResult:
    """Every cause of a finding, blocked nodes, infinite and missing errors, latent failures; still right as a whole."""
    base = result_of(layers(6))
    attention = tuple(record for record in base.nodes if "attention" in record.op)
    gelus = tuple(record for record in base.nodes if "gelu" in record.op)
    random = NodeRecord(
        "drop.bernoulli", "aten.bernoulli.default", "drop", "model.py:88 (drop)", "source", "", False, "", None, ()
    )
    stuck = {record.node: ("fail", math.inf) for record in attention} | {gelus[0].node: ("pass", 0.0)}
    nodes = tuple(
        place(record, "source", *stuck[record.node]) if record.node in stuck else record for record in base.nodes
    )
    compute = sum(record.compute for record in nodes)
    findings = (
        Finding(
            tuple(record.node for record in attention), ("aten.scaled_dot_product_attention.default",),
            tuple(record.source for record in attention), "fail", "replay",
            "output 0: expected -0.4182 at [0, 3, 17, 5], got inf; 1,204 of 12,288 elements are over the bound",
            "repro/scaled_dot_product_attention-1a2b",
        ),
        Finding(
            (gelus[0].node,), ("aten.gelu.default",), (gelus[0].source,), "fail", "program",
            "its cases pass, the whole program is wrong with it: input set 2: expected a relative error of at most "
            "1e-05, got 0.031",
        ),
        Finding(
            tuple(record.node for record in nodes[10:17]),
            ("aten.add.Tensor", "aten.layer_norm.default", "aten.linear.default"),
            tuple(record.source for record in nodes[10:17]), "fail", "merge",
            "right node by node, wrong when compiled together: input set 0: expected a relative error of at most "
            "1e-05, got 0.5",
        ),
    )  # fmt: skip
    stay = (*attention, gelus[0])
    blocked = tuple(Blocked(record.node, record.op, record.source, "fail: see above") for record in stay)
    bad = (
        Step("offload", 31, 31, False, 0.031, 1e-5, 0.5, False, "input set 2: expected at most 1e-05, got 0.031"),
        Step("search", 23, 23, False, 0.031, 1e-5, 0.5, False, "input set 2: expected at most 1e-05, got 0.031"),
        Step("search", 19, 19, True, 1.1e-6, 1e-5, 0.5, True),
        Step("offload", 34, 34, False, math.inf, 0.0, 3.5, False, "the worker did not answer in 60 s"),
        Step("merge", 7, 1, False, None, None, 0.0, False, "does not compile as one region: no schedule"),
    )
    worst = {
        "aten.scaled_dot_product_attention.default": OperatorSummary(
            "aten.scaled_dot_product_attention.default", 4, {"pass": 1, "fail": 2, "timeout": 1},
            Metrics(math.inf, math.inf, math.inf, math.nan, 0.2, None),
        )
    }  # fmt: skip
    return MigrationResult(
        target=base.target,
        backend=base.backend,
        program=base.program,
        suite=SuiteSummary(22, 4, 77_332_072, 325_726_662),
        coverage=Coverage(0.8372, 0.8056, 0.9996, 0.61, 19, 146, compute, compute - 7),
        check=base.check,
        findings=findings,
        blocked=(*blocked, Blocked(random.node, random.op, random.source, "random: drawn on the source, in order")),
        steps=(*base.steps[:5], *bad, *base.steps[5:]),
        program_runs=41,
        operators=tuple(worst.get(entry.op, entry) for entry in base.operators),
        nodes=(*nodes, random),
        latent=({"op": "aten.amax.default", "variant": "nan row", "verdict": "fail", "reason": "NaN is lost"},),
    )


@pytest.fixture
def broken(good: MigrationResult) -> MigrationResult:
    """The final check could not be completed: no bound, infinite errors, no coverage, no steps."""
    return MigrationResult(
        target="webgpu:0",
        backend=good.backend,
        program=good.program,
        suite=good.suite,
        coverage=Coverage(0.0, 0.0, 0.0, 0.0, 0, 0, 36, 0),
        check=Check(math.inf, math.inf, 0.0, math.inf, 0.0, 0.0, False),
        findings=(),
        blocked=(),
        steps=(),
        program_runs=1,
        operators=(),
        nodes=tuple(place(record, "source", "", None) for record in good.nodes),
    )


@pytest.fixture
def large() -> MigrationResult:
    """2,501 nodes in 100 layers."""
    parts = [(f"block{part}.inner", "linear", True, 1e-7 * (part + 1)) for part in range(25)]
    return result_of(layers(100, parts))
