"""Composition cases cut from programs: which regions, what they hold, and that they judge what they were made for."""

from __future__ import annotations

import torch
from torch import nn

from support.text_graph import parse_graph, parse_program
from tapestry.numerics import Verdict
from tapestry.program.capture import capture
from tapestry.suite.case import Suite, SuiteInfo
from tapestry.suite.composition.carve import Composed, compose
from tapestry.suite.composition.judging import judge_graph
from tapestry.suite.composition.regions import composition_regions


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache[:, 1:2] = x
        return self.cache.sum(1)


def suite_of(composed: Composed) -> Suite:
    info = SuiteInfo("", "", "", "", 0, 0, 0.0, 0.0, 0.0, 1, 1)
    return Suite(info, composed.cases, composed.tensors)


def test_equal_layers_give_each_region_once() -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    program = capture(Layers().eval(), (x,))
    found = compose(program, [(x,)])
    ops = [case.op for case in found.cases]
    assert len(ops) == len({case.key for case in found.cases})
    assert "aten.linear.default+aten.gelu.default" in ops
    assert "aten.layer_norm.default+aten.linear.default" in ops
    assert "aten.linear.default+aten.add.Tensor" in ops
    assert ops.index("aten.linear.default+aten.gelu.default") < ops.index("aten.gelu.default+aten.linear.default")


def test_cases_judge_what_eager_gives_and_what_a_fusion_loses() -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    program = capture(Layers().eval(), (x,))
    suite = suite_of(compose(program, [(x,)]))
    for case in suite.cases:
        graph, inputs, source = case.load_graph(), suite.inputs(case), suite.source(case)
        got = [entry for entry in source if entry is not None]
        assert judge_graph(graph, inputs, got, source, suite.oracle(case)).verdict is Verdict.PASS
        wrong = judge_graph(graph, inputs, [entry * 1.001 for entry in got], source, suite.oracle(case))
        assert wrong.verdict is Verdict.FAIL, case.op


def test_a_write_and_its_reader_come_first() -> None:
    x = torch.randn(2, 1, 3, generator=torch.Generator().manual_seed(1))
    program = capture(Cache(), (x,))
    found = compose(program, [[(x,), (2 * x,)]])
    first = found.cases[0]
    assert first.op.endswith("+aten.sum.dim_IntList")
    assert len(first.source) == 2  # the new state and what was read from it


def test_shared_values_leave_the_region() -> None:
    program = parse_program(
        "x: f32[4]\na = aten.mul.Tensor(x, 2.0)\nb = aten.relu.default(a)\nc = aten.neg.default(a)\n"
        "d = aten.add.Tensor(b, a)\nreturn c, d"
    )
    regions = composition_regions(program)
    assert {("a", "b"), ("a", "b", "d"), ("a", "b", "c")} <= set(regions)
    assert regions.index(("a", "b", "d")) < regions.index(("b", "d"))


def test_the_budget_is_kept() -> None:
    x = torch.randn(4, 8)
    program = capture(Layers().eval(), (x,))
    assert len(composition_regions(program, 3)) == 3
    found = compose(program, [(x,)], budget_bytes=200)
    assert found.left_out
    assert len(found.cases) + len(found.left_out) == len(composition_regions(program))


def test_a_subnormal_between_may_be_flushed() -> None:
    graph = parse_graph("x: f32[2]\na = aten.mul.Tensor(x, 1e-20)\nb = aten.mul.Tensor(a, 1e20)\nreturn b")
    inputs = [torch.tensor([1e-20, 1.0])]
    assert judge_graph(graph, inputs, [torch.tensor([0.0, 1.0])]).verdict is Verdict.PASS
    assert judge_graph(graph, inputs, [torch.tensor([0.0, 0.0])]).verdict is Verdict.FAIL
