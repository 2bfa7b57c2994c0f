"""Kinds of wrong platforms: each must fail on several operators and shapes. Nothing is excused by the source."""

from __future__ import annotations

# ruff: noqa: SLF001 - names of ATen operators begin with an underscore
from collections.abc import Callable
from math import sqrt
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tapestry.numerics import flatten_result, judge, oracle

pytestmark = pytest.mark.slow

aten = torch.ops.aten
Call = tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]


def verdict(call: Call, got: Any) -> str:
    target, args, kwargs = call
    return judge(target, args, kwargs, flatten_result(got), None, oracle(target, args, kwargs)).verdict


def seeded(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def uniform(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def right(call: Call) -> Any:
    target, args, kwargs = call
    return target(*args, **kwargs)


def assert_told_apart(call: Call, wrong: Any) -> None:
    assert verdict(call, right(call)) == "pass"
    assert verdict(call, wrong) == "fail"


# An attribute that is lost.


@pytest.mark.parametrize("shape", [(7,), (4, 33), (2, 3, 65)])
@pytest.mark.parametrize("kind", ["none", "tanh"])
def test_the_other_gelu(shape: tuple[int, ...], kind: str) -> None:
    x = seeded(1, *shape) * 2
    other = {"none": "tanh", "tanh": "none"}[kind]
    assert_told_apart((aten.gelu.default, (x,), {"approximate": kind}), F.gelu(x, approximate=other))


X, Y, M = seeded(2, 6, 5), seeded(3, 6, 5), seeded(4, 5, 5)
Q = seeded(5, 2, 3, 9, 8)
IMAGE = seeded(6, 2, 4, 6, 6)
#: Each call, and the same call with an attribute at its default (or left out).
LOST: dict[str, tuple[Call, Call]] = {
    "add alpha": ((aten.add.Tensor, (X, Y), {"alpha": 1.01}), (aten.add.Tensor, (X, Y), {})),
    "sub alpha": ((aten.sub.Tensor, (X, Y), {"alpha": 1.01}), (aten.sub.Tensor, (X, Y), {})),
    "rsub alpha": ((aten.rsub.Tensor, (X, Y), {"alpha": 0.99}), (aten.rsub.Tensor, (X, Y), {})),
    "addmm beta": ((aten.addmm.default, (X, X, M), {"beta": 1.01}), (aten.addmm.default, (X, X, M), {})),
    "addmm alpha": ((aten.addmm.default, (X, X, M), {"alpha": 1.01}), (aten.addmm.default, (X, X, M), {})),
    "addmv beta": ((aten.addmv.default, (X[:, 0], X, M[0]), {"beta": 1.01}),
                   (aten.addmv.default, (X[:, 0], X, M[0]), {})),
    "baddbmm alpha": ((aten.baddbmm.default, (Q[0], Q[0], Q[0][:, :8]), {"alpha": 1.01}),
                      (aten.baddbmm.default, (Q[0], Q[0], Q[0][:, :8]), {})),
    "addcmul value": ((aten.addcmul.default, (X, X, Y), {"value": 1.01}), (aten.addcmul.default, (X, X, Y), {})),
    "addcdiv value": ((aten.addcdiv.default, (X, X, Y), {"value": 1.01}), (aten.addcdiv.default, (X, X, Y), {})),
    "elu alpha": ((aten.elu.default, (X, 1.01), {}), (aten.elu.default, (X,), {})),
    "celu alpha": ((aten.celu.default, (X, 1.01), {}), (aten.celu.default, (X,), {})),
    "leaky slope": ((aten.leaky_relu.default, (X, 0.011), {}), (aten.leaky_relu.default, (X,), {})),
    "softplus beta": ((aten.softplus.default, (X, 1.01), {}), (aten.softplus.default, (X,), {})),
    "softplus threshold": ((aten.softplus.default, (X, 1.0, 1.0), {}), (aten.softplus.default, (X,), {})),
    "var correction": ((aten.var.correction, (X, [1]), {"correction": 0}), (aten.var.correction, (X, [1]), {})),
    "std correction": ((aten.std.correction, (X, [0]), {"correction": 2}), (aten.std.correction, (X, [0]), {})),
    "cov correction": ((aten.cov.default, (X,), {"correction": 0}), (aten.cov.default, (X,), {})),
    "layer_norm eps": ((aten.layer_norm.default, (X * 0.01, [5], None, None, 1e-5), {}),
                       (aten.layer_norm.default, (X * 0.01, [5], None, None, 0.0), {})),
    "layer_norm eps of BERT": ((aten.layer_norm.default, (seeded(7, 8, 384), [384], None, None, 1e-12), {}),
                               (aten.layer_norm.default, (seeded(7, 8, 384), [384], None, None, 1e-5), {})),
    "rms_norm eps": ((aten.rms_norm.default, (X * 0.01, [5], None, 1e-6), {}),
                     (aten.rms_norm.default, (X * 0.01, [5], None, 0.0), {})),
    "group_norm eps": ((aten.group_norm.default, (IMAGE * 0.1, 2, None, None, 1e-3), {}),
                       (aten.group_norm.default, (IMAGE * 0.1, 2, None, None, 1e-5), {})),
    "batch_norm eps": (
        (aten._native_batch_norm_legit_no_training.default,
         (IMAGE, None, None, IMAGE[0, :, 0, 0], IMAGE[0, :, 0, 1].abs(), 0.1, 1e-3), {}),
        (aten._native_batch_norm_legit_no_training.default,
         (IMAGE, None, None, IMAGE[0, :, 0, 0], IMAGE[0, :, 0, 1].abs(), 0.1, 1e-5), {}),
    ),
    "pairwise eps": ((aten.pairwise_distance.default, (X, X * 1.0001, 2.0, 1e-3), {}),
                     (aten.pairwise_distance.default, (X, X * 1.0001, 2.0, 1e-6), {})),
    "attention scale": ((aten.scaled_dot_product_attention.default, (Q, Q, Q), {"scale": 0.35}),
                        (aten.scaled_dot_product_attention.default, (Q, Q, Q), {})),
    "attention causal": ((aten.scaled_dot_product_attention.default, (Q, Q, Q), {"is_causal": True}),
                         (aten.scaled_dot_product_attention.default, (Q, Q, Q), {})),
    "sum keepdim": ((aten.sum.dim_IntList, (X, [1], True), {}), (aten.sum.dim_IntList, (X, [1]), {})),
    "mean keepdim": ((aten.mean.dim, (X, [0], True), {}), (aten.mean.dim, (X, [0]), {})),
    "amax keepdim": ((aten.amax.default, (X, [1], True), {}), (aten.amax.default, (X, [1]), {})),
    "argmax keepdim": ((aten.argmax.default, (X, 1, True), {}), (aten.argmax.default, (X, 1), {})),
    "norm keepdim": ((aten.linalg_vector_norm.default, (X, 2, [1], True), {}),
                     (aten.linalg_vector_norm.default, (X, 2, [1]), {})),
    "pool padding": ((aten.avg_pool2d.default, (IMAGE, [3, 3], [1, 1], [1, 1], False, False), {}),
                     (aten.avg_pool2d.default, (IMAGE, [3, 3], [1, 1], [1, 1]), {})),
    "label smoothing": ((aten.cross_entropy_loss.default, (X, torch.arange(6) % 5, None, 1, -100, 0.01), {}),
                        (aten.cross_entropy_loss.default, (X, torch.arange(6) % 5), {})),
    "ignore_index": ((aten.cross_entropy_loss.default, (X, torch.arange(6) % 5, None, 1, 2), {}),
                     (aten.cross_entropy_loss.default, (X, torch.arange(6) % 5), {})),
    "reduction": ((aten.mse_loss.default, (X, Y, 2), {}), (aten.mse_loss.default, (X, Y, 1), {})),
    "huber delta": ((aten.huber_loss.default, (X, Y, 1, 1.01), {}), (aten.huber_loss.default, (X, Y), {})),
    "smooth_l1 beta": ((aten.smooth_l1_loss.default, (X, Y, 1, 1.01), {}), (aten.smooth_l1_loss.default, (X, Y), {})),
    "norm of fft": ((aten.fft_fft.default, (X, None, -1, "ortho"), {}), (aten.fft_fft.default, (X,), {})),
    "align_corners": ((aten.upsample_bilinear2d.default, (IMAGE, [9, 9], True), {}),
                      (aten.upsample_bilinear2d.default, (IMAGE, [9, 9], False), {})),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_a_lost_attribute(name: str) -> None:
    call, without = LOST[name]
    assert_told_apart(call, right(without))


# Accumulators of 16 bits.


def narrow_sum(terms: Tensor, dim: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """Terms added one by one in ``dtype``."""
    total = torch.zeros_like(terms.select(dim, 0), dtype=dtype)
    for term in terms.to(dtype).unbind(dim):
        total = total + term
    return total


def narrow_cumsum(terms: Tensor) -> Tensor:
    total, sums = torch.zeros_like(terms[:, 0], dtype=torch.float16), []
    for term in terms.half().unbind(1):
        total = total + term
        sums.append(total)
    return torch.stack(sums, 1)


def narrow_mm(a: Tensor, b: Tensor) -> Tensor:
    return narrow_sum(a.unsqueeze(2) * b.unsqueeze(0), 1)


#: From a row-wise operand: the call, and what a 16-bit accumulator makes of it.
ACCUMULATED: dict[str, Callable[[Tensor], tuple[Call, Tensor]]] = {
    "sum": lambda x: ((aten.sum.dim_IntList, (x, [1]), {}), narrow_sum(x, 1)),
    "mean": lambda x: ((aten.mean.dim, (x, [1]), {}), narrow_sum(x, 1) / x.shape[1]),
    "cumsum": lambda x: ((aten.cumsum.default, (x, 1), {}), narrow_cumsum(x)),
    "mm": lambda x: ((aten.mm.default, (x, x.t()), {}), narrow_mm(x, x.t())),
    "linear": lambda x: ((aten.linear.default, (x, x), {}), narrow_mm(x, x.t())),
    "norm": lambda x: ((aten.linalg_vector_norm.default, (x, 2, [1]), {}), narrow_sum(x * x, 1).sqrt()),
    "softmax": lambda x: (
        (aten._softmax.default, (x, 1, False), {}),
        (x - x.amax(1, keepdim=True)).exp() / narrow_sum((x - x.amax(1, keepdim=True)).float().exp(), 1).unsqueeze(1),
    ),
    "logsumexp": lambda x: (
        (aten.logsumexp.default, (x * 1e-3, [1]), {}),
        narrow_sum((x * 1e-3).float().exp(), 1).float().log(),
    ),
    "mse": lambda x: (
        (aten.mse_loss.default, (x, x.flip(1), 1), {}),
        narrow_sum((x - x.flip(1)).square().flatten(), 0) / x.numel(),
    ),
    "avg_pool1d": lambda x: (
        (aten.avg_pool1d.default, (x[None], [x.shape[1]]), {}),
        (narrow_sum(x, 1) / x.shape[1])[None, :, None],
    ),
    "conv1d": lambda x: (
        (aten.conv1d.default, (x[None], x[None]), {}),
        narrow_sum((x * x).t().flatten(), 0).reshape(1, 1, 1),
    ),
    "layer_norm": lambda x: (
        (aten.layer_norm.default, (x, [x.shape[1]]), {}),
        (x.float() - x.float().mean(1, keepdim=True))
        / (narrow_sum((x.float() - x.float().mean(1, keepdim=True)).square(), 1).float() / x.shape[1] + 1e-5)
        .sqrt()
        .unsqueeze(1),
    ),
}
#: Operators whose 16-bit result itself hides what shorter sums lose: how many times more terms they get.
LONG = {"norm": 4, "softmax": 4, "logsumexp": 16, "mse": 4, "layer_norm": 4, "conv1d": 4}


@pytest.mark.parametrize("name", ACCUMULATED)
@pytest.mark.parametrize("length", [64, 500, 2048])
def test_a_half_accumulator_under_single_results(name: str, length: int) -> None:
    call, wrong = ACCUMULATED[name](uniform(8, 4, length) * 0.1 + 0.02)
    assert_told_apart(call, wrong.float())


@pytest.mark.parametrize("name", ACCUMULATED)
@pytest.mark.parametrize("length", [512, 2048])
def test_a_half_accumulator_under_half_results(name: str, length: int) -> None:
    x = (uniform(9, 8, length) * 0.1 + 0.02).half()
    call, wrong = ACCUMULATED[name](torch.cat([x] * LONG.get(name, 1), 1))
    assert verdict(call, right(call)) == "pass"
    assert verdict(call, wrong.to(torch.float16)) == "fail"


# Inputs of fewer bits.


def as_tf32(x: Tensor) -> Tensor:
    """Rounded to TF32's 10 bits of fraction, ties away."""
    bits = x.contiguous().view(torch.int32) + (1 << 12)
    return (bits & ~((1 << 13) - 1)).view(torch.float32)


def as_bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def as_half(x: Tensor) -> Tensor:
    return x.half().float()


PRODUCTS: dict[str, Call] = {
    "mm": (aten.mm.default, (seeded(10, 9, 31), seeded(11, 31, 7)), {}),
    "bmm": (aten.bmm.default, (seeded(12, 3, 9, 31), seeded(13, 3, 31, 7)), {}),
    "matmul": (aten.matmul.default, (seeded(14, 2, 3, 9, 17), seeded(15, 17, 7)), {}),
    "mv": (aten.mv.default, (seeded(16, 9, 301), seeded(17, 301)), {}),
    "dot": (aten.dot.default, (seeded(18, 301), seeded(19, 301)), {}),
    "outer": (aten.outer.default, (seeded(20, 9), seeded(21, 11)), {}),
    "kron": (aten.kron.default, (seeded(22, 3, 4), seeded(23, 5, 2)), {}),
    "addr": (aten.addr.default, (seeded(24, 9, 11), seeded(25, 9), seeded(26, 11)), {"alpha": 0.7}),
    "linear": (aten.linear.default, (seeded(27, 4, 5, 64), seeded(28, 32, 64), seeded(29, 32)), {}),
    "addmm": (aten.addmm.default, (seeded(30, 7), seeded(31, 9, 33), seeded(32, 33, 7)), {}),
    "baddbmm": (aten.baddbmm.default, (seeded(33, 2, 3, 4), seeded(34, 2, 3, 40), seeded(35, 2, 40, 4)), {}),
    "bilinear": (aten.bilinear.default, (seeded(36, 4, 6), seeded(37, 4, 5), seeded(38, 3, 6, 5)), {}),
    "einsum": (aten.einsum.default, ("bij,bjk->bik", [seeded(39, 2, 9, 31), seeded(40, 2, 31, 7)]), {}),
    "tensordot": (aten.tensordot.default, (seeded(41, 4, 5, 6), seeded(42, 6, 5, 3), [1, 2], [1, 0]), {}),
    "conv1d": (aten.conv1d.default, (seeded(43, 2, 6, 20), seeded(44, 4, 6, 3)), {}),
    "conv2d": (aten.conv2d.default, (seeded(45, 2, 6, 9, 9), seeded(46, 4, 6, 3, 3), seeded(47, 4)), {}),
    "conv2d depthwise": (
        aten.convolution.default,
        (seeded(48, 1, 8, 9, 9), seeded(49, 8, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 8),
        {},
    ),
    "conv2d transposed": (
        aten.convolution.default,
        (seeded(50, 1, 6, 5, 5), seeded(51, 6, 4, 3, 3), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1),
        {},
    ),
    "conv3d": (aten.conv3d.default, (seeded(52, 1, 3, 5, 5, 5), seeded(53, 2, 3, 3, 3, 3)), {}),
    "attention": (aten.scaled_dot_product_attention.default, (seeded(54, 1, 2, 9, 16),) * 3, {}),
    "attention far": (aten.scaled_dot_product_attention.default, (4 * seeded(55, 2, 2, 33, 32),) * 3, {}),
    "cdist": (aten.cdist.default, (seeded(56, 9, 5), seeded(57, 8, 5)), {}),
    "cosine": (aten.cosine_similarity.default, (seeded(58, 9, 65), seeded(59, 9, 65)), {}),
    "gru_cell": (
        aten.gru_cell.default,
        (seeded(60, 3, 5), seeded(61, 3, 4), seeded(62, 12, 5), seeded(63, 12, 4), seeded(64, 12), seeded(65, 12)),
        {},
    ),
    "lstm_cell": (
        aten.lstm_cell.default,
        (seeded(66, 3, 5), [seeded(67, 3, 4), seeded(68, 3, 4)], seeded(69, 16, 5), seeded(70, 16, 4)),
        {},
    ),
    "solve": (aten.linalg_solve.default, (seeded(71, 5, 5) + 4 * torch.eye(5), seeded(72, 5, 3)), {}),
    "rfft": (aten.fft_rfft.default, (seeded(73, 3, 60),), {}),
}


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, list | tuple):
        return type(value)(with_tensors(entry, change) for entry in value)
    return value


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("rounded", [as_tf32, as_half, as_bf16])
def test_products_of_shorter_inputs(name: str, rounded: Callable[[Tensor], Tensor]) -> None:
    target, args, kwargs = PRODUCTS[name]
    assert_told_apart(PRODUCTS[name], target(*with_tensors(args, rounded), **kwargs))


# Shortcuts of fast mathematics.


def log_softmax_of_softmax(x: Tensor) -> Tensor:
    return x.softmax(-1).log()


FAR = torch.tensor([-120.0, -50.0, -20.0, -7.0, 0.5, 7.0, 20.0, 50.0, 120.0])
SMALL = torch.tensor([1e-7, -3e-6, 2e-5, -1e-4, 1e-3])
ROWS = torch.tensor([[200.0, 1.0, 0.0], [-300.0, -301.0, -300.5]])
OFFSET = 1000.0 + seeded(74, 4, 64)
POSITIVE = seeded(75, 5, 40).abs() + 0.1


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int32)


def newton_rsqrt(x: Tensor) -> Tensor:
    """The famous constant and one step of Newton's method: 1.7e-3 off."""
    y = (0x5F3759DF - (bits(x) >> 1)).view(torch.float32)
    return y * (1.5 - 0.5 * x * y * y)


def short_reciprocal(x: Tensor) -> Tensor:
    """12 bits, as rcpps gives."""
    return ((1 / x).view(torch.int32) & ~0xFFF).view(torch.float32)


def erf_of_three_terms(x: Tensor) -> Tensor:
    """Abramowitz and Stegun 7.1.25: 2.5e-5 off."""
    t = 1 / (1 + 0.47047 * x.abs())
    return x.sign() * (1 - t * (0.3480242 + t * (-0.0958798 + t * 0.7478556)) * (-x * x).exp())


def log_of_one_plus(x: Tensor) -> Tensor:
    return (1 + x).log()


def power_by_logarithm(base: Tensor, exponent: float) -> Tensor:
    return (exponent * base.log()).exp()


FAST: dict[str, tuple[Call, Tensor]] = {
    "expm1": ((aten.expm1.default, (SMALL,), {}), SMALL.exp() - 1),
    "log1p": ((aten.log1p.default, (SMALL,), {}), log_of_one_plus(SMALL)),
    "sinh": ((aten.sinh.default, (SMALL,), {}), (SMALL.exp() - (-SMALL).exp()) / 2),
    "asinh": ((aten.asinh.default, (SMALL,), {}), (SMALL + (SMALL * SMALL + 1).sqrt()).log()),
    "atanh": ((aten.atanh.default, (SMALL,), {}), 0.5 * ((1 + SMALL) / (1 - SMALL)).log()),
    "logsumexp": ((aten.logsumexp.default, (ROWS, [1]), {}), ROWS.exp().sum(1).log()),
    "logaddexp": ((aten.logaddexp.default, (FAR, FAR.flip(0)), {}), (FAR.exp() + FAR.flip(0).exp()).log()),
    "softmax": ((aten._softmax.default, (ROWS, 1, False), {}), ROWS.exp() / ROWS.exp().sum(1, keepdim=True)),
    "log_softmax": ((aten._log_softmax.default, (ROWS, 1, False), {}), log_softmax_of_softmax(ROWS)),
    "cross_entropy": ((aten.cross_entropy_loss.default, (ROWS, torch.tensor([1, 0])), {}),
                      F.nll_loss(log_softmax_of_softmax(ROWS), torch.tensor([1, 0]))),
    "softplus": ((aten.softplus.default, (FAR,), {}), (1 + FAR.exp()).log()),
    "softplus cancelling": ((aten.softplus.default, (FAR[2:4],), {}), (1 + FAR[2:4].exp()).log()),
    "log_sigmoid": ((aten.log_sigmoid_forward.default, (FAR,), {}), FAR.sigmoid().log()),
    "log_sigmoid cancelling": ((aten.log_sigmoid_forward.default, (FAR[5:7],), {}), FAR[5:7].sigmoid().log()),
    "sigmoid": ((aten.sigmoid.default, (FAR,), {}), FAR.exp() / (1 + FAR.exp())),
    "silu": ((aten.silu.default, (FAR,), {}), FAR * FAR.exp() / (1 + FAR.exp())),
    "mish": ((aten.mish.default, (FAR,), {}), FAR * ((1 + FAR.exp()) ** 2 - 1) / ((1 + FAR.exp()) ** 2 + 1)),
    "tanh": ((aten.tanh.default, (FAR,), {}), ((2 * FAR).exp() - 1) / ((2 * FAR).exp() + 1)),
    "bce": ((aten.binary_cross_entropy_with_logits.default, (FAR, torch.zeros(9)), {}),
            -(1 - FAR.sigmoid()).log().mean()),
    "variance": ((aten.var.correction, (OFFSET, [1]), {"correction": 0}),
                 OFFSET.square().mean(1) - OFFSET.mean(1).square()),
    "deviation": ((aten.std.correction, (OFFSET, [1]), {"correction": 0}),
                  (OFFSET.square().mean(1) - OFFSET.mean(1).square()).sqrt()),
    "layer_norm": ((aten.layer_norm.default, (OFFSET, [64]), {}),
                   (OFFSET - OFFSET.mean(1, keepdim=True))
                   * (OFFSET.square().mean(1, keepdim=True) - OFFSET.mean(1, keepdim=True).square() + 1e-5).rsqrt()),
    "rsqrt": ((aten.rsqrt.default, (POSITIVE,), {}), newton_rsqrt(POSITIVE)),
    "rms_norm": ((aten.rms_norm.default, (POSITIVE, [40], None, 1e-5), {}),
                 POSITIVE * newton_rsqrt(POSITIVE.square().mean(1, keepdim=True) + 1e-5)),
    "division": ((aten.div.Tensor, (POSITIVE, POSITIVE.flip(0)), {}), POSITIVE * short_reciprocal(POSITIVE.flip(0))),
    "reciprocal": ((aten.reciprocal.default, (POSITIVE,), {}), short_reciprocal(POSITIVE)),
    "erf": ((aten.erf.default, (X,), {}), erf_of_three_terms(X)),
    "gelu": ((aten.gelu.default, (X,), {}), 0.5 * X * (1 + erf_of_three_terms(X * sqrt(0.5)))),
    "gelu by sigmoid": ((aten.gelu.default, (X,), {}), X * (1.702 * X).sigmoid()),
    "sin": ((aten.sin.default, (FAR * 1e4,), {}), (FAR * 1e4).remainder(6.2831855).sin()),
    "cos": ((aten.cos.default, (FAR * 1e4,), {}), (FAR * 1e4).remainder(6.2831855).cos()),
    "power of a large base": ((aten.pow.Tensor_Scalar, (POSITIVE * 100, 15), {}),
                              power_by_logarithm(POSITIVE * 100, 15)),
    "power of a negative base": ((aten.pow.Tensor_Scalar, (-POSITIVE, 3), {}), power_by_logarithm(-POSITIVE, 3)),
    "power of negative tensors": ((aten.pow.Tensor_Tensor, (-POSITIVE, torch.full((5, 40), 3.0)), {}),
                                  power_by_logarithm(-POSITIVE, 3)),
    "square root by power": ((aten.sqrt.default, (POSITIVE * 1e30,), {}), power_by_logarithm(POSITIVE * 1e30, 0.5)),
    "hypot": ((aten.hypot.default, (POSITIVE * 1e30, POSITIVE), {}),
              ((POSITIVE * 1e30).square() + POSITIVE.square()).sqrt()),
    "atan2": ((aten.atan2.default, (POSITIVE * 1e30, POSITIVE * 1e-10), {}),
              (POSITIVE * 1e30 / (POSITIVE * 1e-10).square().sqrt().square()).atan() * 0 + torch.nan),
    "atan2 of both large": ((aten.atan2.default, (POSITIVE * 1e30, POSITIVE.flip(0) * 1e30), {}),
                            2 * ((POSITIVE * 1e30) / (((POSITIVE * 1e30).square()
                                 + (POSITIVE.flip(0) * 1e30).square()).sqrt() + POSITIVE.flip(0) * 1e30)).atan()),
    "norm": ((aten.cdist.default, (POSITIVE * 1e30, POSITIVE.flip(0) * 1e30, float("inf")), {}),
             torch.full((5, 5), torch.inf)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAST)
def test_a_shortcut(name: str) -> None:
    call, wrong = FAST[name]
    assert_told_apart(call, (wrong, *flatten_result(right(call))[1:]))
