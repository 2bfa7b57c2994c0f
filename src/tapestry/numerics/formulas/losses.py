"""Losses as formulas: an error for each element, then the mean or the sum of them. Class labels: class_losses.py."""

from __future__ import annotations

from math import pi

import torch

from tapestry.numerics.bounded import Bounded
from tapestry.numerics.formulas.call import Formula, FormulaCall
from tapestry.numerics.formulas.distances import norm_of

#: Bound of log inside binary cross-entropy: PyTorch clamps it there.
_LOWEST_LOG = -100.0


def reduced_loss(call: FormulaCall, each: Bounded) -> Bounded:
    """``reduction``: 0 none, 1 mean, 2 sum."""
    reduction, dims = int(call.number("reduction", 1)), tuple(range(each.value.dim()))
    if reduction == 0 or not dims:
        return each
    total = each.mean(dims) if reduction == 1 else each.sum(dims)
    return total.apply(lambda tensor: tensor.reshape(()))


def _difference(call: FormulaCall) -> Bounded:
    return call.value("self") - call.value("target")


def _mse_loss(call: FormulaCall) -> tuple[Bounded, ...]:
    return (reduced_loss(call, _difference(call).square()),)


def _l1_loss(call: FormulaCall) -> tuple[Bounded, ...]:
    return (reduced_loss(call, _difference(call).abs()),)


def _smooth_l1_loss(call: FormulaCall) -> tuple[Bounded, ...]:
    gap, beta = _difference(call).abs(), call.number("beta", 1.0)
    if beta == 0.0:
        return (reduced_loss(call, gap),)
    curved = gap.square().scaled_exactly(0.5) / beta
    return (reduced_loss(call, curved.where(gap.value < beta, gap - beta / 2)),)


def _huber_loss(call: FormulaCall) -> tuple[Bounded, ...]:
    gap, delta = _difference(call).abs(), call.number("delta", 1.0)
    straight = (gap - delta / 2) * delta
    return (reduced_loss(call, gap.square().scaled_exactly(0.5).where(gap.value <= delta, straight)),)


def _binary_cross_entropy(call: FormulaCall) -> tuple[Bounded, ...]:
    x, target = call.value("self"), call.value("target")
    positive = x.log().clamp(_LOWEST_LOG, None)
    negative = (-x).log1p_by_log().clamp(_LOWEST_LOG, None)
    each = (target - 1.0) * negative - target * positive
    return (reduced_loss(call, _weighted(call, each)),)


def _binary_cross_entropy_with_logits(call: FormulaCall) -> tuple[Bounded, ...]:
    x, target, positive = call.value("self"), call.value("target"), call.optional("pos_weight")
    smooth = (-x.abs()).exp().log1p_by_log() + (-x).clamp(0.0, None)
    if positive is not None:
        smooth = ((positive - 1.0) * target + 1.0) * smooth
    each = (-target + 1.0) * x + smooth
    # also max(x, 0) - x target + log1p(exp(-|x|)), which rounds at the size of x
    each = each.widened(2 * x.arithmetic.unit * x.value.abs())
    return (reduced_loss(call, _weighted(call, each)),)


def _weighted(call: FormulaCall, each: Bounded) -> Bounded:
    weight = call.optional("weight")
    return each if weight is None else each * weight


def _soft_margin_loss(call: FormulaCall) -> tuple[Bounded, ...]:
    # eager writes log1p(exp(-y x)); max(0, .) + log1p(exp(-|.|)) is the same without overflow
    exponent = -(call.value("self") * call.value("target"))
    each = exponent.clamp(0.0, None) + (-exponent.abs()).exp().log1p_by_log()
    return (reduced_loss(call, each),)


def _kl_div(call: FormulaCall) -> tuple[Bounded, ...]:
    x, target = call.value("self"), call.value("target")
    if call.flag("log_target"):
        return (reduced_loss(call, target.exp() * (target - x)),)
    nothing = target.arithmetic.exact(torch.zeros((), dtype=torch.float64))
    # xlogy(t, t) - t x, or t (log t - x): both round at the size of the terms
    each = target * target.log() - target * x
    return (reduced_loss(call, each.where(target.value > 0, nothing)),)


def _poisson_nll_loss(call: FormulaCall) -> tuple[Bounded, ...]:
    x, target = call.value("input"), call.value("target")
    logarithm = x if call.flag("log_input") else (x + call.number("eps", 1e-8)).log()
    each = (x.exp() if call.flag("log_input") else x) - target * logarithm
    if call.flag("full"):
        stirling = target * target.log() - target + (target * (2 * pi)).log().scaled_exactly(0.5)
        each = (each + stirling).where(target.value > 1, each)
    return (reduced_loss(call, each),)


def _margin_ranking_loss(call: FormulaCall) -> tuple[Bounded, ...]:
    gap = (call.value("input1") - call.value("input2")) * call.value("target")
    return (reduced_loss(call, (-gap + call.number("margin", 0.0)).clamp(0.0, None)),)


def _hinge_embedding_loss(call: FormulaCall) -> tuple[Bounded, ...]:
    x, target = call.value("self"), call.value("target")
    nothing = x.arithmetic.exact(torch.zeros((), dtype=torch.float64))
    hinge = (-x + call.number("margin", 1.0)).clamp(0.0, None)
    each = hinge.where(target.value != 1, nothing) + x.where(target.value != -1, nothing)
    return (reduced_loss(call, each),)


def _cosine_embedding_loss(call: FormulaCall) -> tuple[Bounded, ...]:
    left, right, target = call.value("input1"), call.value("input2"), call.value("target")
    dim, tiny = target.value.dim(), torch.tensor(1e-12, dtype=torch.float64)
    product = (left * right).sum(dim)
    sizes = [entry.square().sum(dim) + entry.arithmetic.exact(tiny) for entry in (left, right)]
    cosine = (product / (sizes[0] * sizes[1]).sqrt()).apply(lambda tensor: tensor.squeeze(dim))
    nothing = cosine.arithmetic.exact(torch.zeros((), dtype=torch.float64))
    apart = (cosine - call.number("margin", 0.0)).clamp(0.0, None)
    each = (-cosine + 1.0).where(target.value == 1, apart.where(target.value == -1, nothing))
    return (reduced_loss(call, each),)


def _triplet_margin_loss(call: FormulaCall) -> tuple[Bounded, ...] | None:
    anchor, positive, negative = (call.value(name) for name in ("anchor", "positive", "negative"))

    def distance(left: Bounded, right: Bounded) -> Bounded | None:
        gap = left - right + call.number("eps", 1e-6)
        rank = gap.value.dim()
        length = norm_of(gap, call.number("p", 2.0), (max(rank - 1, 0),))
        return None if length is None else length.apply(lambda tensor: tensor.squeeze(-1))

    near, far = distance(anchor, positive), distance(anchor, negative)
    across = distance(positive, negative) if call.flag("swap") else far
    if near is None or far is None or across is None:
        return None
    far = far.where(far.value <= across.value, across)
    return (reduced_loss(call, (near - far + call.number("margin", 1.0)).clamp(0.0, None)),)


FORMULAS: dict[str, Formula] = {
    "mse_loss": _mse_loss,
    "l1_loss": _l1_loss,
    "smooth_l1_loss": _smooth_l1_loss,
    "huber_loss": _huber_loss,
    "binary_cross_entropy": _binary_cross_entropy,
    "binary_cross_entropy_with_logits": _binary_cross_entropy_with_logits,
    "soft_margin_loss": _soft_margin_loss,
    "kl_div": _kl_div,
    "poisson_nll_loss": _poisson_nll_loss,
    "margin_ranking_loss": _margin_ranking_loss,
    "hinge_embedding_loss": _hinge_embedding_loss,
    "cosine_embedding_loss": _cosine_embedding_loss,
    "triplet_margin_loss": _triplet_margin_loss,
}
