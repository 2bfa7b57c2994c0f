"""Losses over class labels: negative log likelihood, cross entropy, margins between classes."""

from __future__ import annotations

import torch
from torch import Tensor

from tapestry.numerics.bounded import Bounded, sum_error
from tapestry.numerics.formulas.attention import log_softmax_of
from tapestry.numerics.formulas.call import Formula, FormulaCall
from tapestry.numerics.formulas.losses import reduced_loss


def _class_dim(x: Tensor) -> int:
    return 0 if x.dim() == 1 else 1


def _picked(x: Bounded, target: Tensor, ignored: Tensor) -> Bounded:
    """The entry of each label along the class dimension, which goes."""
    dim = _class_dim(x.value)
    index = torch.where(ignored, 0, target).unsqueeze(dim)
    return x.apply(lambda tensor: tensor.gather(dim, index).squeeze(dim))


def _label_weights(call: FormulaCall, target: Tensor, ignored: Tensor) -> Bounded:
    weight = call.optional("weight")
    if weight is None:
        return call.arithmetic.exact((~ignored).to(torch.float64))
    chosen = weight.value[torch.where(ignored, 0, target)]
    return call.arithmetic.exact(torch.where(ignored, 0.0, chosen))


def _reduced(call: FormulaCall, each: Bounded, weights: Bounded) -> tuple[Bounded, Bounded]:
    """The reduced loss, where the mean is over the weights, and the sum of the weights."""
    reduction, dims = int(call.number("reduction", 1)), tuple(range(each.value.dim()))

    def total(of: Bounded) -> Bounded:
        return of.sum(dims).apply(lambda tensor: tensor.reshape(())) if dims else of

    if reduction == 0:
        return each, total(weights)
    return (total(each) if reduction == 2 else total(each) / total(weights)), total(weights)


def _nll_of(call: FormulaCall, x: Bounded) -> tuple[Bounded, Bounded]:
    target = call.tensor("target")
    ignored = target == int(call.number("ignore_index", -100))
    weights = _label_weights(call, target, ignored)
    nothing = call.arithmetic.exact(torch.zeros((), dtype=torch.float64))
    each = -(_picked(x, target, ignored).where(~ignored, nothing) * weights)
    return _reduced(call, each, weights)


def _nll_loss(call: FormulaCall) -> tuple[Bounded, ...]:
    return _nll_of(call, call.value("self"))


def _cross_entropy_loss(call: FormulaCall) -> tuple[Bounded, ...] | None:
    x, target, smoothing = call.value("self"), call.tensor("target"), call.number("label_smoothing", 0.0)
    dim = _class_dim(x.value)
    if x.value.numel() == 0:
        return None
    logs = log_softmax_of(x, dim)
    if target.is_floating_point():
        return (_against_probabilities(call, logs, target.to(torch.float64), dim),)
    loss = _nll_of(call, logs)[0]
    if smoothing == 0.0:
        return (loss,)
    return (loss * (1 - smoothing) + _smooth(call, logs, target, dim) * (smoothing / x.value.shape[dim]),)


def _weight_of_classes(call: FormulaCall, logs: Bounded, dim: int) -> Bounded:
    weight = call.optional("weight")
    if weight is None:
        return logs
    shape = [-1 if d == dim else 1 for d in range(logs.value.dim())]
    return logs * weight.apply(lambda tensor: tensor.reshape(shape))


def _against_probabilities(call: FormulaCall, logs: Bounded, target: Tensor, dim: int) -> Bounded:
    smoothing, classes = call.number("label_smoothing", 0.0), target.shape[dim]
    wanted = call.arithmetic.exact(target)
    if smoothing:
        wanted = wanted * (1 - smoothing) + smoothing / classes
    each = -(_weight_of_classes(call, logs, dim) * wanted).sum(dim).apply(lambda tensor: tensor.squeeze(dim))
    return reduced_loss(call, each)


def _smooth(call: FormulaCall, logs: Bounded, target: Tensor, dim: int) -> Bounded:
    """The uniform part of label smoothing; the mean is over the weights of the labels."""
    ignored = target == int(call.number("ignore_index", -100))
    each = -_weight_of_classes(call, logs, dim).sum(dim).apply(lambda tensor: tensor.squeeze(dim))
    nothing = call.arithmetic.exact(torch.zeros((), dtype=torch.float64))
    return _reduced(call, each.where(~ignored, nothing), _label_weights(call, target, ignored))[0]


def _multi_margin_loss(call: FormulaCall) -> tuple[Bounded, ...]:
    x, target = call.value("self"), call.tensor("target")
    if x.value.dim() < 2:
        x, target = x.apply(lambda tensor: tensor.reshape(1, -1)), target.reshape(1)
    index = target.unsqueeze(1)
    gap = (-x.apply(lambda tensor: tensor.gather(1, index)) + x + call.number("margin", 1.0)).clamp(0.0, None)
    each = gap if call.number("p", 1.0) == 1.0 else gap.square()
    weight = call.optional("weight")
    if weight is not None:
        each = each * weight.apply(lambda tensor: tensor[target].unsqueeze(1))
    others = torch.ones_like(each.value, dtype=torch.bool).scatter(1, index, value=False)
    nothing = call.arithmetic.exact(torch.zeros((), dtype=torch.float64))
    rows = each.where(others, nothing).sum(1).apply(lambda tensor: tensor.squeeze(1)) / float(each.value.shape[1])
    return (reduced_loss(call, rows if call.tensor("self").dim() > 1 else rows.apply(lambda tensor: tensor[0])),)


def _multilabel_margin_loss(call: FormulaCall) -> tuple[Bounded | None, ...]:
    x, target = call.value("self"), call.tensor("target")
    single = x.value.dim() < 2
    if single:
        x, target = x.apply(lambda tensor: tensor.reshape(1, -1)), target.reshape(1, -1)
    classes = x.value.shape[1]
    before_end = (target < 0).cumsum(1) == 0
    labels = torch.where(before_end, target, 0)
    is_label = torch.zeros_like(x.value).scatter_add(1, labels, before_end.to(torch.float64)) > 0
    chosen = x.apply(lambda tensor: tensor.gather(1, labels).unsqueeze(2))
    gap = (-chosen + x.apply(lambda tensor: tensor.unsqueeze(1)) + 1.0).clamp(0.0, None)
    nothing = call.arithmetic.exact(torch.zeros((), dtype=torch.float64))
    counted = gap.where(before_end.unsqueeze(2) & ~is_label.unsqueeze(1), nothing)
    rows = counted.sum((1, 2)).apply(lambda tensor: tensor.reshape(-1)) / float(classes)
    return (reduced_loss(call, rows.apply(lambda tensor: tensor[0]) if single else rows), None)


def _ctc_loss(call: FormulaCall) -> tuple[Bounded | None, ...]:
    """A sum of three in the log domain at each step: each rounds at the size of what has been added so far.

    With ``allowed``, each step's logarithm may be off by WGSL's 2^-21.
    """
    steps, unit = call.tensor("log_probs").shape[0], call.arithmetic.unit
    logs = call.tensor("log_probs").abs().nan_to_num(nan=0.0, posinf=0.0)
    size = logs.amax().clamp(max=1e4) * steps + 4.0
    own = 0.0 if call.arithmetic.column == "careful" else steps * 2.0**-21 * (unit * 2**24)
    return (Bounded(size, size * sum_error(steps, unit) + own, call.arithmetic), None)


FORMULAS: dict[str, Formula] = {
    "nll_loss": _nll_loss,
    "nll_loss_nd": _nll_loss,
    "nll_loss2d": _nll_loss,
    "nll_loss_forward": _nll_loss,
    "nll_loss2d_forward": _nll_loss,
    "cross_entropy_loss": _cross_entropy_loss,
    "ctc_loss": _ctc_loss,
    "_ctc_loss": _ctc_loss,
    "multi_margin_loss": _multi_margin_loss,
    "multilabel_margin_loss": _multilabel_margin_loss,
    "multilabel_margin_loss_forward": _multilabel_margin_loss,
}
