"""ATen calls of every tolerance class that rounds, each made from one matrix: what the judge is tried on."""

from __future__ import annotations

# ruff: noqa: SLF001 - names of ATen operators begin with an underscore
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
Call = tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]


def seeded(seed: int, *shape: int) -> Tensor:
    """Standard normal float32 numbers that depend on the seed alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _labels(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0]) % x.shape[1]


def _signs(x: Tensor) -> Tensor:
    return torch.where(torch.arange(x.shape[0]) % 2 == 0, 1, -1)


def _square(x: Tensor) -> Tensor:
    """A well conditioned square matrix."""
    size = min(x.shape)
    part = x[:size, :size]
    return part / part.abs().amax().clamp(min=1e-30) + 2 * size**0.5 * torch.eye(size)


def _positive(x: Tensor) -> Tensor:
    square = _square(x)
    return square @ square.t()


def _sequence(x: Tensor, gates: int) -> tuple[Tensor, list[Tensor], Tensor]:
    """A sequence [time, 2, features], parameters of a cell with 3 hidden units, and a first state."""
    sequence, features = x.clamp(-50, 50).unsqueeze(1).repeat(1, 2, 1), x.shape[1]
    parameters = [seeded(1, gates * 3, features) / features**0.5, seeded(2, gates * 3, 3) / 2,
                  seeded(3, gates * 3), seeded(4, gates * 3)]  # fmt: skip
    return sequence, parameters, seeded(5, 1, 2, 3)


def _lstm(x: Tensor) -> Call:
    sequence, parameters, start = _sequence(x, 4)
    return aten.lstm.input, (sequence, [start, start], parameters, True, 1, 0.0, False, False, False), {}


def _gru(x: Tensor) -> Call:
    sequence, parameters, start = _sequence(x, 3)
    both = [*parameters, *(parameter.flip(0) for parameter in parameters)]
    return aten.gru.input, (sequence, torch.cat([start, start]), both, True, 1, 0.0, False, True, False), {}


def _probabilities(x: Tensor) -> Tensor:
    return x.softmax(-1)


#: Losses.
LOSSES: dict[str, Callable[[Tensor], Call]] = {
    "mse_loss": lambda x: (aten.mse_loss.default, (x, x.flip(0) + 1), {}),
    "mse_loss none": lambda x: (aten.mse_loss.default, (x, x.flip(0) + 1, 0), {}),
    "l1_loss": lambda x: (aten.l1_loss.default, (x, x.flip(0) + 1, 2), {}),
    "smooth_l1_loss": lambda x: (aten.smooth_l1_loss.default, (x, x.flip(0), 1, 0.5), {}),
    "huber_loss": lambda x: (aten.huber_loss.default, (x, x.flip(0), 1, 1.5), {}),
    "nll_loss": lambda x: (aten.nll_loss_nd.default, (x, _labels(x)), {}),
    "nll_loss weighted": lambda x: (aten.nll_loss_forward.default, (x, _labels(x), x[0].abs() + 0.1, 1, 0), {}),
    "cross_entropy": lambda x: (aten.cross_entropy_loss.default, (x, _labels(x)), {}),
    "cross_entropy smooth": lambda x: (
        aten.cross_entropy_loss.default, (x, _labels(x), seeded(7, x.shape[1]).abs() + 0.1, 1, 1, 0.1), {}),
    "cross_entropy of probabilities": lambda x: (
        aten.cross_entropy_loss.default, (x, _probabilities(x.flip(0)), None, 1, -100, 0.1), {}),
    "cross_entropy none": lambda x: (aten.cross_entropy_loss.default, (x, _labels(x), None, 0), {}),
    "bce": lambda x: (aten.binary_cross_entropy.default, (x.sigmoid(), x.flip(0).sigmoid()), {}),
    "bce_with_logits": lambda x: (
        aten.binary_cross_entropy_with_logits.default, (x, x.flip(0).sigmoid(), None, x[0].abs()), {}),
    "soft_margin_loss": lambda x: (aten.soft_margin_loss.default, (x.clamp(-80, 80), x.flip(0).sign()), {}),
    "kl_div": lambda x: (aten.kl_div.default, (x.log_softmax(-1), _probabilities(x.flip(0))), {}),
    "kl_div of logarithms": lambda x: (
        aten.kl_div.default, (x.log_softmax(-1), x.flip(0).log_softmax(-1)), {"log_target": True}),
    "poisson_nll_loss": lambda x: (
        aten.poisson_nll_loss.default, (x.clamp(-20, 20), x.flip(0).abs().round(), True, True, 1e-8, 1), {}),
    "margin_ranking_loss": lambda x: (aten.margin_ranking_loss.default, (x, x.flip(0), x.sign(), 0.5), {}),
    "hinge_embedding_loss": lambda x: (aten.hinge_embedding_loss.default, (x, _signs(x).unsqueeze(1)), {}),
    "cosine_embedding_loss": lambda x: (
        aten.cosine_embedding_loss.default, (x, x.roll(1, 1) + x, _signs(x), 0.1), {}),
    "triplet_margin_loss": lambda x: (
        aten.triplet_margin_loss.default, (x, x.flip(0) + 1, x.roll(1, 1), 30.0, 2.0, 1e-6, True), {}),
    "multi_margin_loss": lambda x: (aten.multi_margin_loss.default, (x, _labels(x), 2, 2.0), {}),
    "multilabel_margin_loss": lambda x: (
        aten.multilabel_margin_loss.default, (x, torch.where(torch.arange(x.shape[1]) < 1, 1, -1).expand(x.shape)), {}),
    "ctc_loss": lambda x: (
        aten.ctc_loss.IntList,
        (x.t().unsqueeze(2).expand(-1, -1, 4).log_softmax(-1) + seeded(6, 4).log_softmax(0),
         torch.ones(x.shape[0], 1, dtype=torch.int64), [x.shape[1]] * x.shape[0], [1] * x.shape[0]), {}),
}  # fmt: skip

#: Norms, distances, running and neighbouring elements, second moments, recurrent networks.
COMPOSITES: dict[str, Callable[[Tensor], Call]] = {
    "norm 3": lambda x: (aten.linalg_vector_norm.default, (x, 3, [1]), {}),
    "norm half": lambda x: (aten.linalg_vector_norm.default, (x, 0.5, [1]), {}),
    "norm -2": lambda x: (aten.linalg_vector_norm.default, (x + 100, -2, [1]), {}),
    "norm p": lambda x: (aten.norm.ScalarOpt_dim, (x, 1.5, [0]), {}),
    "matrix norm 1": lambda x: (aten.linalg_matrix_norm.default, (x, 1), {}),
    "matrix norm fro": lambda x: (aten.linalg_matrix_norm.str_ord, (x, "fro"), {}),
    "cdist": lambda x: (aten.cdist.default, (x, x.flip(1) + 1), {}),
    "cdist 3": lambda x: (aten.cdist.default, (x, x.flip(1) + 1, 3.0), {}),
    "cdist by products": lambda x: (aten.cdist.default, (x, x.flip(1) + 1, 2.0, 1), {}),
    "pdist": lambda x: (aten.pdist.default, (torch.cat([x, x + 1]),), {}),
    "pairwise_distance": lambda x: (aten.pairwise_distance.default, (x, x.flip(1) + 1), {}),
    "dist": lambda x: (aten.dist.default, (x, x.flip(1) + 1, 3), {}),
    "cosine_similarity": lambda x: (aten.cosine_similarity.default, (x, x.flip(-1) + 1), {}),
    "renorm": lambda x: (aten.renorm.default, (x, 2, 0, 0.5), {}),
    "weight_norm": lambda x: (aten._weight_norm.default, (x, x[:, :1]), {}),
    "logcumsumexp": lambda x: (aten.logcumsumexp.default, (x, 1), {}),
    "cumprod": lambda x: (aten.cumprod.default, (x.sign() + x.sigmoid(), 1), {}),
    "trapezoid": lambda x: (aten.trapezoid.x, (x, x.flip(1)), {}),
    "trapezoid dx": lambda x: (aten.trapezoid.dx, (x,), {"dx": 0.3}),
    "cumulative_trapezoid": lambda x: (aten.cumulative_trapezoid.x, (x, x.flip(1)), {}),
    "diff": lambda x: (aten.diff.default, (x, 1, 1), {}),
    "vander": lambda x: (aten.linalg_vander.default, (x / 100,), {"N": 6}),
    "quantile": lambda x: (aten.quantile.scalar, (x, 0.3, 1), {}),
    "logaddexp": lambda x: (aten.logaddexp.default, (x, x.flip(1)), {}),
    "logaddexp2": lambda x: (aten.logaddexp2.default, (x, x.flip(1)), {}),
    "cov": lambda x: (aten.cov.default, (x.t(),), {}),
    "cov weighted": lambda x: (
        aten.cov.default, (x,), {"fweights": _labels(x.t()) % 3 + 1, "aweights": x[0].abs() + 0.1}),
    "corrcoef": lambda x: (aten.corrcoef.default, (x,), {}),
    "var_mean": lambda x: (aten.var_mean.correction, (x, [1]), {}),
    "celu": lambda x: (aten.celu.default, (x, 1.3), {}),
    "hardtanh shrink": lambda x: (aten.softshrink.default, (x, 0.3), {}),
    "rrelu in evaluation": lambda x: (aten.rrelu.default, (x,), {}),
    "softmax of negatives": lambda x: (aten._softmax.default, (-x, -1, False), {}),
    "glu": lambda x: (aten.glu.default, (torch.cat([x, x.flip(-1)], -1),), {}),
    "batch norm of a batch": lambda x: (
        aten._native_batch_norm_legit_functional.default,
        (torch.cat([x, x.flip(1)]), x[0], x[-1], x[0], x[-1].abs(), True, 0.1, 1e-5), {}),
    "lstm": _lstm,
    "gru": _gru,
    "embedding_bag mean": lambda x: (
        aten.embedding_bag.default, (x, _labels(x).remainder(x.shape[0]), torch.tensor([0]), False, 1), {}),
    "scatter mean": lambda x: (
        aten.scatter_reduce.two, (x, 1, torch.zeros(x.shape, dtype=torch.int64), x.flip(0), "mean"), {}),
    "scatter product": lambda x: (
        aten.scatter_reduce.two, (x, 1, torch.zeros(x.shape, dtype=torch.int64), x.sign() + x.sigmoid(), "prod"), {}),
    "adaptive pool": lambda x: (aten._adaptive_avg_pool2d.default, (x[None, None].repeat(1, 1, 3, 3), [2, 2]), {}),
}  # fmt: skip

#: Bounded in norm.
NORMWISE: dict[str, Callable[[Tensor], Call]] = {
    "fft": lambda x: (aten.fft_fft.default, (x,), {}),
    "rfft2": lambda x: (aten.fft_rfft2.default, (x,), {}),
    "irfft": lambda x: (aten.fft_irfft.default, (torch.complex(x, x.flip(1)),), {}),
    "r2c": lambda x: (aten._fft_r2c.default, (x, [1], 0, True), {}),
    "stft": lambda x: (aten.stft.default, (F.pad(x, (0, 16)), 8), {"return_complex": True, "onesided": True}),
    "solve": lambda x: (aten.linalg_solve.default, (_square(x), x[: min(x.shape)]), {}),
    "inv": lambda x: (aten.linalg_inv_ex.default, (_square(x),), {}),
    "det": lambda x: (aten.linalg_det.default, (_square(x),), {}),
    "slogdet": lambda x: (aten.linalg_slogdet.default, (_square(x),), {}),
    "cholesky": lambda x: (aten.linalg_cholesky_ex.default, (_positive(x),), {}),
    "cholesky_solve": lambda x: (
        aten.cholesky_solve.default, (x[: min(x.shape)], torch.linalg.cholesky(_positive(x))), {}),
    "solve_triangular": lambda x: (
        aten.linalg_solve_triangular.default, (_square(x).triu(), x[: min(x.shape)]), {"upper": True}),
    "lu": lambda x: (aten.linalg_lu.default, (_square(x),), {}),
    "eigvalsh": lambda x: (aten.linalg_eigvalsh.default, (_positive(x),), {}),
    "svdvals": lambda x: (aten.linalg_svdvals.default, (x,), {}),
    "spectral norm": lambda x: (aten.linalg_matrix_norm.default, (x, 2), {}),
    "nuclear norm": lambda x: (aten.nuclear_norm.default, (x,), {}),
    "matrix_power": lambda x: (aten.linalg_matrix_power.default, (_square(x), 3), {}),
    "matrix_exp": lambda x: (aten.linalg_matrix_exp.default, (_square(x) / 10,), {}),
    "pinv": lambda x: (aten.linalg_pinv.atol_rtol_tensor, (_square(x),), {}),
    "lstsq": lambda x: (aten.linalg_lstsq.default, (_square(x), x[: min(x.shape)]), {}),
    "cond": lambda x: (aten.linalg_cond.default, (_square(x),), {}),
}  # fmt: skip
CALLS = {**LOSSES, **COMPOSITES, **NORMWISE}
