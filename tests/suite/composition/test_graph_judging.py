"""Judging the outputs of several calls: other right ways of computing pass, what fusing breaks does not.

Tolerances come from the judge under test; what it must pass are real float32 implementations (other orders of
summation, fewer roundings), and what it must fail are results that are wrong by construction.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.text_graph import parse_graph
from tapestry.numerics import Verdict, judge, oracle
from tapestry.program.graph import Graph
from tapestry.program.interpret import run_graph
from tapestry.suite.composition.judging import judge_graph


def draws(graph: Graph, seed: int, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found: list[Tensor] = []
    for entry in graph.inputs:
        if entry.spec.dtype.is_floating_point:
            found.append((torch.randn(entry.spec.shape, generator=generator) * scale).to(entry.spec.dtype))
        else:
            found.append(torch.randint(0, 4, entry.spec.shape, generator=generator).to(entry.spec.dtype))
    return found


GELU = """
x: f32[6,64]
w: param f32[32,64]
b: param f32[32]
y = aten.linear.default(x, w, b)
z = aten.gelu.default(y)
return z, y
"""
ATTENTION = """
q: f32[2,8,16]
k: f32[2,16,8]
v: f32[2,8,16]
s = aten.bmm.default(q, k)
d = aten.div.Tensor(s, 4.0)
p = aten._softmax.default(d, -1, False)
o = aten.bmm.default(p, v)
return o
"""
NORM = """
x: f32[4,48]
r: f32[4,48]
w: param f32[48]
b: param f32[48]
s = aten.add.Tensor(x, r)
n = aten.layer_norm.default(s, [48], w, b, 1e-5)
return n, s
"""
HALF = """
x: f16[8,32]
y: f16[8,32]
z: f16[8,32]
p = aten.mul.Tensor(x, y)
s = aten.add.Tensor(p, z)
return s
"""


def gelu_blocked(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    y = torch.zeros(6, 32)
    for k in range(0, 64, 16):
        y = y + x[:, k : k + 16] @ w[:, k : k + 16].T
    y = y + b
    return [y * 0.5 * (1 + torch.erf(y * 2**-0.5)), y]


def attention_scaled_first(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    s = (q * 0.25).contiguous() @ k
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return [(e @ v) / e.sum(-1, keepdim=True)]


def norm_folded(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    s = x + r
    m = s.mean(-1, keepdim=True)
    rstd = (s.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
    return [s * (rstd * w) + (b - m * rstd * w), s]


def half_in_single(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    return [(x.float() * y.float() + z.float()).half()]


RIGHT = [(GELU, gelu_blocked), (ATTENTION, attention_scaled_first), (NORM, norm_folded), (HALF, half_in_single)]


@pytest.mark.parametrize(("text", "other"), RIGHT, ids=["gelu", "attention", "norm", "half"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_right_in_another_way(text: str, other: Callable[..., list[Tensor]], scale: float) -> None:
    graph = parse_graph(text)
    for seed in range(5):
        inputs = draws(graph, seed, scale)
        found = judge_graph(graph, inputs, other(*inputs))
        assert found.verdict is Verdict.PASS, found.reason
        assert judge_graph(graph, inputs, list(run_graph(graph, inputs))).verdict is Verdict.PASS


def gelu_tanh(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    y = F.linear(x, w, b)
    return [F.gelu(y, approximate="tanh"), y]


def gelu_activated_twice(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    y = F.linear(x, w, b)
    return [F.gelu(y), F.gelu(y)]


def gelu_in_bfloat16(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    y = F.linear(x.bfloat16().float(), w.bfloat16().float(), b)
    return [F.gelu(y), F.linear(x, w, b)]


def attention_without_scale(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    return [torch.softmax(q @ k, -1) @ v]


def attention_in_half(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    return [(torch.softmax(q @ k / 4, -1).half() @ v.half()).float()]


def norm_other_eps(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    return [F.layer_norm(x + r, [48], w, b, 1e-3), x + r]


def norm_lost_residual(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    return [F.layer_norm(x + r, [48], w, b), F.layer_norm(x + r, [48], w, b)]


def half_without_sum(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    return [x * y]


WRONG = [
    (GELU, gelu_tanh, "gelu"), (GELU, gelu_activated_twice, "linear"), (GELU, gelu_in_bfloat16, "gelu"),
    (ATTENTION, attention_without_scale, "bmm"), (ATTENTION, attention_in_half, "bmm"),
    (NORM, norm_other_eps, "layer_norm"), (NORM, norm_lost_residual, "add"), (HALF, half_without_sum, "add"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "other", "named"), WRONG, ids=[entry[1].__name__ for entry in WRONG])
def test_wrong_is_found(text: str, other: Callable[..., list[Tensor]], named: str) -> None:
    graph = parse_graph(text)
    inputs = draws(graph, 1)
    found = judge_graph(graph, inputs, other(*inputs))
    assert found.verdict is Verdict.FAIL
    assert f"aten.{named}" in found.reason
    assert "expected" in found.reason


SINGLE = [
    "x: f32[4,32]\ny = aten._softmax.default(x, -1, False)\nreturn y",
    "x: f32[4,32]\nw: param f32[16,32]\ny = aten.linear.default(x, w)\nreturn y",
    "x: f32[40]\ny = aten.exp.default(x)\nreturn y",
    "x: f32[4,8]\nv, i = aten.max.dim(x, 1)\nreturn v, i",
    "x: f16[4,32]\ny: f16[4,32]\nz = aten.mul.Tensor(x, y)\nreturn z",
]


@given(st.sampled_from(SINGLE), st.integers(0, 1000), st.sampled_from([0.0, 1e-7, 1e-6, 1e-4, 1e-2]))
@settings(max_examples=60, deadline=None)
def test_one_call_is_judged_as_numerics_does(text: str, seed: int, error: float) -> None:
    graph = parse_graph(text)
    inputs = draws(graph, seed)
    got = [entry * (1 + error) if entry.is_floating_point() else entry for entry in run_graph(graph, inputs)]
    (call,) = graph.calls
    args = [*inputs, *call.args[len(inputs) :]]
    mine = judge_graph(graph, inputs, got)
    theirs = judge(call.target, args, {}, got, run_graph(graph, inputs), oracle(call.target, args))
    assert (mine.verdict, mine.imprecise, mine.reason) == (theirs.verdict, theirs.imprecise, theirs.reason)


def test_a_choice_at_its_boundary_is_undefined() -> None:
    """floor((x * 3) / 3): on either side of the whole number is right, but not two away from it."""
    graph = parse_graph(
        "x: f32[4]\na = aten.mul.Tensor(x, 0.1)\nb = aten.mul.Tensor(a, 10.0)\nc = aten.floor.default(b)\nreturn c"
    )
    inputs = [torch.tensor([1.0, 2.0, 3.0, 2.5])]
    for answer in ([1.0, 2.0, 3.0, 2.0], [0.0, 1.0, 2.0, 2.0]):
        assert judge_graph(graph, inputs, [torch.tensor(answer)]).verdict is Verdict.PASS
    for answer in ([1.0, 2.0, 3.0, 3.0], [-1.0, 2.0, 3.0, 2.0]):
        assert judge_graph(graph, inputs, [torch.tensor(answer)]).verdict is Verdict.FAIL


def test_a_comparison_of_inexact_values() -> None:
    graph = parse_graph(
        "x: f32[3]\ny: f32[3]\na = aten.div.Tensor(x, 3.0)\nb = aten.mul.Tensor(a, 3.0)\n"
        "c = aten.ge.Tensor(b, y)\nd = aten.where.self(c, x, y)\nreturn c, d"
    )
    inputs = [torch.tensor([5.0, 5.0, 5.0]), torch.tensor([5.0, 4.0, 6.0])]
    flipped = [torch.tensor([False, True, False]), torch.tensor([5.0, 5.0, 6.0])]
    assert judge_graph(graph, inputs, flipped).verdict is Verdict.PASS
    wrong = [torch.tensor([True, False, False]), torch.tensor([5.0, 4.0, 6.0])]
    assert judge_graph(graph, inputs, wrong).verdict is Verdict.FAIL


def test_argmax_behind_a_product() -> None:
    graph = parse_graph("x: f32[2,4]\na = aten.mul.Tensor(x, 0.1)\ni = aten.argmax.default(a, 1)\nreturn i")
    inputs = [torch.tensor([[1.0, 3.0, 3.0, 0.0], [1.0, 2.0, 3.0, 0.0]])]
    assert judge_graph(graph, inputs, [torch.tensor([2, 2])]).verdict is Verdict.PASS
    assert judge_graph(graph, inputs, [torch.tensor([1, 1])]).verdict is Verdict.FAIL


def test_nan_and_infinity_have_their_places() -> None:
    graph = parse_graph(
        "x: f32[4]\na = aten.mul.Tensor(x, 2.0)\nb = aten.relu.default(a)\nc = aten.log.default(b)\nreturn c"
    )
    inputs = [torch.tensor([float("nan"), -1.0, 1.0, float("inf")])]
    right = run_graph(graph, inputs)[0]
    assert judge_graph(graph, inputs, [right]).verdict is Verdict.PASS
    swallowed = right.nan_to_num(nan=0.0, posinf=float("inf"), neginf=-float("inf"))
    assert judge_graph(graph, inputs, [swallowed]).verdict is Verdict.FAIL
    assert judge_graph(graph, inputs, [torch.where(right == -torch.inf, -87.0, right)]).verdict is Verdict.FAIL


def test_only_what_a_doubtful_choice_decides_is_left_out() -> None:
    """An index chosen among near ties picks from another tensor: that row is open, the others are not."""
    graph = parse_graph(
        "x: f32[2,3]\nt: f32[3]\na = aten.mul.Tensor(x, 0.3)\ni = aten.argmax.default(a, 1)\n"
        "p = aten.index_select.default(t, 0, i)\nreturn p"
    )
    inputs = [torch.tensor([[2.0, 2.0, 0.0], [0.0, 5.0, 1.0]]), torch.tensor([10.0, 20.0, 30.0])]
    assert judge_graph(graph, inputs, [torch.tensor([20.0, 20.0])]).verdict is Verdict.PASS
    assert judge_graph(graph, inputs, [torch.tensor([20.0, 10.0])]).verdict is Verdict.FAIL


def test_casts_between_must_round() -> None:
    graph = parse_graph(
        "x: f32[64]\ny: f32[64]\na = aten.mul.Tensor(x, y)\n"
        "h = aten._to_copy.default(a, dtype=torch.float16)\nf = aten._to_copy.default(h, dtype=torch.float32)\nreturn f"
    )
    inputs = draws(graph, 3)
    assert judge_graph(graph, inputs, [inputs[0] * inputs[1]]).verdict is Verdict.FAIL
    assert (
        judge_graph(graph, inputs, [(inputs[0].double() * inputs[1].double()).half().float()]).verdict is Verdict.PASS
    )


def test_structure_names_the_output() -> None:
    graph = parse_graph(GELU)
    inputs = draws(graph, 0)
    z, y = run_graph(graph, inputs)
    assert (
        "output 1 (aten.linear.default y): expected dtype float32" in judge_graph(graph, inputs, [z, y.half()]).reason
    )
    assert judge_graph(graph, inputs, [z]).reason == "expected 2 outputs, got 1"


def test_two_large_values_against_each_other() -> None:
    """Softmax of 214.07 and 208.5 from a quotient: what counts is how their errors differ, not what they share."""
    graph = parse_graph(
        "x: f32[200,8]\ny: f32[200,8]\na = aten.div.Tensor(x, y)\nb = aten._softmax.default(a, -1, False)\nreturn b"
    )
    for seed in range(5):
        inputs = draws(graph, seed, 20.0)
        inputs[1] = inputs[1].abs() * 0.01 + 0.05
        exact = torch.softmax(inputs[0].double() / inputs[1].double(), -1).float()
        found = judge_graph(graph, inputs, [exact])
        assert found.verdict is Verdict.PASS, found.reason
        assert judge_graph(graph, inputs, [torch.softmax(inputs[0] / inputs[1], -1)]).verdict is Verdict.PASS
        skewed = torch.softmax((inputs[0] / inputs[1]) * (1 + 1e-5), -1)
        assert judge_graph(graph, inputs, [skewed]).verdict is Verdict.FAIL
