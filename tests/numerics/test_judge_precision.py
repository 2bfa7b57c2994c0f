"""Judging what rounds: eager passes on many shapes and values, and platforms of the wrong precision fail.

Every case is judged with ``source=None``, so that nothing is excused by eager's own error.
"""

from __future__ import annotations

# ruff: noqa: SLF001 - names of ATen operators begin with an underscore
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._decomp import decomposition_table

from tapestry.numerics import Judgement, Verdict, flatten_result, judge, oracle

pytestmark = pytest.mark.slow

aten = torch.ops.aten


def judged(target: torch._ops.OpOverload, args: tuple[Any, ...], got: Any, **kwargs: Any) -> Judgement:
    return judge(target, args, kwargs, flatten_result(got), None, oracle(target, args, kwargs))


def seeded(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def as_tf32(x: Tensor) -> Tensor:
    """Rounded to TF32's 10 bits of fraction, ties away."""
    bits = x.contiguous().view(torch.int32) + (1 << 12)
    return (bits & ~((1 << 13) - 1)).view(torch.float32)


def as_bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


THREE = torch.tensor([1.0, 0.3, -2.0])
OPERATORS: dict[str, Callable[[Tensor], tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]]] = {
    "exp": lambda x: (aten.exp.default, (x,), {}),
    "sin": lambda x: (aten.sin.default, (x,), {}),
    "tanh": lambda x: (aten.tanh.default, (x,), {}),
    "sqrt": lambda x: (aten.sqrt.default, (x.abs(),), {}),
    "rsqrt": lambda x: (aten.rsqrt.default, (x.abs() + 1e-3,), {}),
    "reciprocal": lambda x: (aten.reciprocal.default, (x,), {}),
    "log": lambda x: (aten.log.default, (x.abs(),), {}),
    "log1p": lambda x: (aten.log1p.default, (x.abs(),), {}),
    "expm1": lambda x: (aten.expm1.default, (x,), {}),
    "pow2": lambda x: (aten.pow.Tensor_Scalar, (x, 2.0), {}),
    "pow": lambda x: (aten.pow.Tensor_Scalar, (x.abs(), 1.7), {}),
    "div": lambda x: (aten.div.Tensor, (x, x.flip(-1)), {}),
    "add alpha": lambda x: (aten.add.Tensor, (x, x.flip(-1)), {"alpha": 0.3}),
    "sub scalar": lambda x: (aten.sub.Tensor, (x, 0.1), {}),
    "rsub": lambda x: (aten.rsub.Scalar, (x, 1.0), {}),
    "addcmul": lambda x: (aten.addcmul.default, (x, x.flip(-1), x), {"value": -0.7}),
    "lerp": lambda x: (aten.lerp.Scalar, (x, x.flip(-1), 0.3), {}),
    "sigmoid": lambda x: (aten.sigmoid.default, (x,), {}),
    "silu": lambda x: (aten.silu.default, (x,), {}),
    "gelu": lambda x: (aten.gelu.default, (x,), {}),
    "gelu tanh": lambda x: (aten.gelu.default, (x,), {"approximate": "tanh"}),
    "softplus": lambda x: (aten.softplus.default, (x,), {}),
    "mish": lambda x: (aten.mish.default, (x,), {}),
    "elu": lambda x: (aten.elu.default, (x,), {}),
    "selu": lambda x: (aten.selu.default, (x,), {}),
    "hardswish": lambda x: (aten.hardswish.default, (x,), {}),
    "hardsigmoid": lambda x: (aten.hardsigmoid.default, (x,), {}),
    "log_sigmoid": lambda x: (aten.log_sigmoid_forward.default, (x,), {}),
    "leaky_relu": lambda x: (aten.leaky_relu.default, (x,), {}),
    "glu": lambda x: (aten.glu.default, (torch.cat([x, x.flip(-1)], -1),), {}),
    "softmax": lambda x: (aten._softmax.default, (x, -1, False), {}),
    "log_softmax": lambda x: (aten._log_softmax.default, (x, -1, False), {}),
    "logsumexp": lambda x: (aten.logsumexp.default, (x, [-1]), {}),
    "layer_norm": lambda x: (aten.layer_norm.default, (x, [x.shape[-1]], x[0], x[-1]), {}),
    "rms_norm": lambda x: (aten.rms_norm.default, (x, [x.shape[-1]], x[0], 1e-5), {}),
    "group_norm": lambda x: (aten.group_norm.default, (x.unsqueeze(0), 1), {}),
    "batch_norm": lambda x: (
        aten._native_batch_norm_legit_no_training.default,
        (x, x[0], x[-1], x[0], x[-1].abs() + 0.1, 0.1, 1e-5),
        {},
    ),
    "var": lambda x: (aten.var.correction, (x, [-1]), {}),
    "std": lambda x: (aten.std.correction, (x, [-1]), {"correction": 0}),
    "norm": lambda x: (aten.linalg_vector_norm.default, (x, 2, [-1]), {}),
    "prod": lambda x: (aten.prod.dim_int, (x, -1), {}),
    "sum": lambda x: (aten.sum.dim_IntList, (x, [-1]), {}),
    "mean": lambda x: (aten.mean.dim, (x, [-1]), {}),
    "cumsum": lambda x: (aten.cumsum.default, (x, -1), {}),
    "mm": lambda x: (aten.mm.default, (x, x.t()), {}),
    "linear": lambda x: (aten.linear.default, (x, x, x[:, 0]), {}),
    "addmm": lambda x: (aten.addmm.default, (x @ x.t(), x, x.t()), {"alpha": 0.5, "beta": 2.0}),
    "conv2d": lambda x: (aten.conv2d.default, (x[None, None], x[None, None, :1, :1]), {}),
    "avg_pool2d": lambda x: (aten.avg_pool2d.default, (x[None, None].repeat(1, 1, 2, 2), [2, 2]), {}),
    "cosine": lambda x: (aten.cosine_similarity.default, (x, x.flip(-1)), {}),
    "attention": lambda x: (aten.scaled_dot_product_attention.default, (x[None, None],) * 3, {}),
    "cross": lambda x: (aten.linalg_cross.default, (x[:, :1] * THREE, x[:, -1:] + THREE), {}),
}


@pytest.mark.parametrize("name", OPERATORS)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(2, 33),
    scale=st.sampled_from([1e-6, 1e-2, 1.0, 10.0, 300.0]),
    shift=st.sampled_from([0.0, 1.0, -30.0]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_eager_passes(name: str, rows: int, columns: int, scale: float, shift: float, seed: int) -> None:
    target, args, kwargs = OPERATORS[name](seeded(seed, rows, columns) * scale + shift)
    got = target(*args, **kwargs)
    outcome = judged(target, args, got, **kwargs)
    assert outcome.verdict in (Verdict.PASS, Verdict.UNDEFINED), outcome


@pytest.mark.parametrize(
    "name", ["exp", "sigmoid", "gelu", "silu", "rms_norm", "layer_norm", "sum", "mean", "mm", "linear"]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_results_computed_in_single_pass(name: str, dtype: torch.dtype) -> None:
    target, args, kwargs = OPERATORS[name](seeded(3, 8, 64))
    half = tuple(entry.to(dtype) if isinstance(entry, Tensor) else entry for entry in args)
    single = tuple(entry.float() if isinstance(entry, Tensor) else entry for entry in half)
    got = target(*single, **kwargs).to(dtype)
    assert judged(target, half, got, **kwargs).verdict == "pass"


@pytest.mark.parametrize("name", sorted(set(OPERATORS) - {"avg_pool2d"}))
def test_inputs_rounded_to_bf16_fail(name: str) -> None:
    target, args, kwargs = OPERATORS[name](seeded(4, 8, 64))
    rounded = tuple(as_bf16(entry) if isinstance(entry, Tensor) else entry for entry in args)
    outcome = judged(target, args, target(*rounded, **kwargs), **kwargs)
    assert outcome.verdict == "fail"
    assert "expected" in outcome.reason


@pytest.mark.parametrize("length", [1, 8, 64, 512, 4096])
@pytest.mark.parametrize("round_input", [as_tf32, as_bf16])
def test_products_of_reduced_precision_fail(length: int, round_input: Callable[[Tensor], Tensor]) -> None:
    left, right = seeded(5, 16, length), seeded(6, length, 16)
    assert judged(aten.mm.default, (left, right), left @ right).verdict == "pass"
    assert judged(aten.mm.default, (left, right), round_input(left) @ round_input(right)).verdict == "fail"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [256, 1024, 4096])
def test_sums_accumulated_in_sixteen_bits_fail(dtype: torch.dtype, length: int) -> None:
    x = seeded(7, 96, length, dtype=dtype)
    total = torch.zeros(96, dtype=dtype)
    for column in x.unbind(1):
        total = total + column
    assert judged(aten.sum.dim_IntList, (x, [1]), total).verdict == "fail"
    assert judged(aten.sum.dim_IntList, (x, [1]), x.float().sum(1).to(dtype)).verdict == "pass"


def test_a_bf16_accumulator_that_stops_counting_fails() -> None:
    x = torch.ones(2, 1024, dtype=torch.bfloat16)
    assert judged(aten.sum.dim_IntList, (x, [1]), torch.full((2,), 256.0).bfloat16()).verdict == "fail"
    assert judged(aten.sum.dim_IntList, (x, [1]), torch.full((2,), 1024.0).bfloat16()).verdict == "pass"


@pytest.mark.parametrize("rows", [4, 128])
@pytest.mark.parametrize("seed", range(5))
def test_half_sums_of_blocks_in_another_order_pass(rows: int, seed: int) -> None:
    x = seeded(seed, rows, 256, dtype=torch.half)
    total = torch.zeros(rows, dtype=torch.half)
    for part in x.flip(-1).view(rows, 16, 16).float().sum(-1).half().unbind(1):
        total = total + part
    assert judged(aten.sum.dim_IntList, (x, [-1]), total).verdict == "pass"


def test_gelu_by_tanh_is_not_gelu() -> None:
    x = seeded(8, 8, 64)
    assert judged(aten.gelu.default, (x,), F.gelu(x, approximate="tanh")).verdict == "fail"
    assert judged(aten.gelu.default, (x,), F.gelu(x), approximate="tanh").verdict == "fail"


def test_a_lost_alpha_fails() -> None:
    a, b = seeded(9, 4), seeded(10, 4)
    assert judged(aten.add.Tensor, (a, b), a + b, alpha=1.001).verdict == "fail"
    bias, left, right = seeded(17, 4, 4), seeded(18, 4, 4), seeded(19, 4, 4)
    assert judged(aten.addmm.default, (bias, left, right), bias + left @ right, alpha=1.001).verdict == "fail"
    assert judged(aten.addmm.default, (bias, left, right), bias + left @ right, beta=1.001).verdict == "fail"


def test_a_lost_bessel_correction_fails() -> None:
    x = seeded(11, 4, 4096)
    for target in (aten.var.correction, aten.std.correction):
        right, wrong = target(x, [1]), target(x, [1], correction=0)
        assert judged(target, (x, [1]), right).verdict == "pass"
        assert judged(target, (x, [1]), wrong).verdict == "fail"


def test_a_shortcut_exponential_fails() -> None:
    x = seeded(12, 8, 64)
    off = 1 + 1e-4
    assert judged(aten.exp.default, (x,), x.exp() * off).verdict == "fail"
    weights = ((x - x.amax(1, keepdim=True)) * (1 + 1e-4)).exp()
    assert judged(aten._softmax.default, (x, 1, False), weights / weights.sum(1, keepdim=True)).verdict == "fail"
    assert judged(aten.silu.default, (x,), x / (1 + (-x).exp() * off)).verdict == "fail"


def test_cancelling_formulas_fail() -> None:
    x = torch.tensor([1e-4, 1e-6])
    assert judged(aten.expm1.default, (x,), x.exp() - 1).verdict == "fail"
    assert judged(aten.log1p.default, (x,), (1 + x).log()).verdict == "fail"
    assert judged(aten.sinh.default, (x,), (x.exp() - (-x).exp()) / 2).verdict == "fail"
    far = torch.tensor([[1000.0, 1000.03, 1000.06, 999.95]])
    one_pass = far.square().mean(1) - far.mean(1).square()
    assert judged(aten.var.correction, (far, [1]), one_pass, correction=0).verdict == "fail"


def test_what_a_device_specification_allows_is_imprecise() -> None:
    x = torch.linspace(-3, 3, 64)
    near = (x.double().sin() + 4e-4).float()
    outcome = judged(aten.sin.default, (x,), near)
    assert outcome.verdict == Verdict.PASS
    assert outcome.imprecise
    assert judged(aten.sin.default, (x,), near + 2e-4).verdict == "fail"
    assert judged(aten.tanh.default, (x,), x.tanh() + 8e-6).imprecise
    assert judged(aten.tanh.default, (x,), x.tanh() + 2e-5).verdict == "fail"
    assert not judged(aten.sin.default, (x,), x.sin()).imprecise


def test_a_lost_argument_far_from_zero_fails() -> None:
    x = torch.tensor([1e5, 3e6])
    reduced = x - torch.round(x / 6.2831855) * 6.2831855
    assert judged(aten.sin.default, (x,), reduced.sin()).verdict == "fail"


def test_results_near_zero_are_judged_by_what_single_precision_can_do() -> None:
    x = torch.full((1, 64), 300.0) + 0.01 * seeded(13, 1, 64)
    assert judged(aten.layer_norm.default, (x, [64]), F.layer_norm(x, [64])).verdict == "pass"
    near = torch.linspace(-6, -4, 64)
    assert judged(aten.gelu.default, (near,), F.gelu(near)).verdict == "pass"
    a = torch.tensor([[1.0, -1.0, 1e-4]])
    assert judged(aten.sum.dim_IntList, (a * 1e4, [1]), (a * 1e4).sum(1)).verdict == "pass"


def test_an_outlier_channel_does_not_hide_its_neighbours() -> None:
    x = seeded(14, 4, 64)
    x[:, 3] = 1e6
    weight = torch.eye(64)
    got = x @ weight.t()
    assert judged(aten.linear.default, (x, weight), got).verdict == "pass"
    got[:, 5] *= 1 + 1e-3
    assert judged(aten.linear.default, (x, weight), got).verdict == "fail"


def test_an_unknown_operator_is_judged_by_a_class_that_says_so() -> None:
    x = seeded(15, 8).abs()
    series = aten.polygamma.default(2, x)
    outcome = judged(aten.polygamma.default, (2, x), series)
    assert outcome.verdict == "pass"
    assert outcome.judged_by.startswith("unknown")
    assert judged(aten.polygamma.default, (2, x), series * 1.001).verdict == "fail"


def test_metrics_are_merged_over_results() -> None:
    x = seeded(16, 4, 8)
    y, mean, rstd = aten.native_layer_norm.default(x, [8], None, None, 1e-5)
    outcome = judged(aten.native_layer_norm.default, (x, [8], None, None, 1e-5), (y, mean, rstd + 0.5))
    assert outcome.verdict == "fail"
    assert outcome.reason.startswith("result 2: ")
    assert outcome.metrics.max_abs == pytest.approx(0.5, rel=1e-3)
    assert 0 < outcome.metrics.nmse < 1
    assert outcome.metrics.cosine < 1
    assert outcome.metrics.snr_db is not None


DECOMPOSED = [name for name, make in OPERATORS.items() if make(THREE.expand(2, 3))[0] in decomposition_table]


@pytest.mark.parametrize("name", DECOMPOSED)
@pytest.mark.parametrize("seed", range(4))
def test_another_way_to_compute_it_passes(name: str, seed: int) -> None:
    """PyTorch's own decompositions, run in float32, stand for a platform that is right in another way."""
    target, args, kwargs = OPERATORS[name](seeded(seed, 8, 33))
    got = decomposition_table[target](*args, **kwargs)
    assert judged(target, args, got, **kwargs).verdict == "pass"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_attention_may_round_its_weights(dtype: torch.dtype) -> None:
    query = seeded(20, 1, 2, 16, 8, dtype=dtype)
    weights = (query.float() @ query.float().transpose(-1, -2) / 8**0.5).softmax(-1)
    got = (weights.to(dtype).float() @ query.float()).to(dtype)
    assert judged(aten.scaled_dot_product_attention.default, (query,) * 3, got).verdict == "pass"
    unscaled = (query.float() @ query.float().transpose(-1, -2)).softmax(-1) @ query.float()
    assert judged(aten.scaled_dot_product_attention.default, (query,) * 3, unscaled.to(dtype)).verdict == "fail"


def test_overflow_inside_the_sources_formula_is_nobodys_fault() -> None:
    x = torch.full((1, 4), 1e30)
    args = (x, 2, [1])
    want = oracle(aten.linalg_vector_norm.default, args)
    infinite, right = (torch.tensor([torch.inf]),), (torch.tensor([2e30]),)
    # the squares leave float32, whoever adds them up
    assert judge(aten.linalg_vector_norm.default, args, {}, infinite, None, want).verdict == "pass"
    assert judge(aten.linalg_vector_norm.default, args, {}, infinite, infinite, want).verdict == "pass"
    assert judge(aten.linalg_vector_norm.default, args, {}, right, infinite, want).verdict == "pass"


def test_complex_results_are_judged_by_the_modulus() -> None:
    z = torch.complex(seeded(21, 64), seeded(22, 64))
    assert judged(aten.mul.Tensor, (z, z.flip(0)), z * z.flip(0)).verdict == "pass"
    assert judged(aten.mul.Tensor, (z, z.flip(0)), z * z.flip(0) * (1 + 1e-4)).verdict == "fail"
    assert judged(aten.mul.Tensor, (z, z.flip(0)), z * z.flip(0).conj()).verdict == "fail"


@pytest.mark.parametrize("shape", [(0, 6, 2, 2), (1, 6, 0, 2)])
def test_normalising_nothing_passes(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    got = aten.group_norm.default(x, 3)
    assert judged(aten.group_norm.default, (x, 3), got).verdict == "pass"
