"""Sums over several calls, added in another order: right; with a term lost or rounded to 16 bits: wrong."""

from __future__ import annotations

import pytest
import torch

from support.text_graph import parse_graph
from tapestry.numerics import Verdict
from tapestry.suite.composition.judging import judge_graph

SUM = """
a: f32[64,64]
b: f32[64,64]
c: f32[64,64]
s = aten.add.Tensor(a, b)
t = aten.add.Tensor(s, c)
return t
"""


@pytest.mark.parametrize("seed", range(4))
def test_another_order_of_adding_is_right(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    graph = parse_graph(SUM)
    a, b, c = (torch.randn(64, 64, generator=generator) for _ in range(3))
    for result in (a + (b + c), (a + c) + b):
        assert judge_graph(graph, [a, b, c], [result]).verdict is Verdict.PASS
    for wrong in (a + b, a + b - c, (a + b + c).bfloat16().float(), (a + b).half().float() + c):
        assert judge_graph(graph, [a, b, c], [wrong]).verdict is Verdict.FAIL
