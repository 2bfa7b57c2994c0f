"""Softmax and what is built on it: log-softmax, logsumexp, scaled dot-product attention."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from tapestry.numerics.bounded import Bounded
from tapestry.numerics.formulas.call import Formula, FormulaCall


def _shifted(x: Bounded, dim: int) -> Bounded:
    """X - max(x); any value within the error of the maximum serves as the shift, so the shift itself is exact."""
    top = x.value.amax(dim, keepdim=True)
    top = torch.where(torch.isfinite(top), top, 0.0)
    return x - x.arithmetic.exact(top)


def softmax_of(x: Bounded, dim: int) -> Bounded:
    """exp(x - max) / sum; a row without a finite entry gives 0, as in attention."""
    if x.value.numel() == 0 or x.value.dim() == 0:
        return Bounded(torch.ones_like(x.value), torch.zeros_like(x.value), x.arithmetic)
    weights = _shifted(x, dim).exp()
    return weights / weights.sum(dim)


def _softmax(call: FormulaCall) -> tuple[Bounded, ...]:
    return (softmax_of(call.value("self"), int(call.number("dim", -1))),)


def log_softmax_of(x: Bounded, dim: int) -> Bounded:
    """(x - max) - log(sum exp(x - max))."""
    if x.value.numel() == 0 or x.value.dim() == 0:
        return Bounded(torch.zeros_like(x.value), torch.zeros_like(x.value), x.arithmetic)
    shifted = _shifted(x, dim)
    return _less_rounded(x, shifted - shifted.exp().sum(dim).log(), dim)


def _log_softmax(call: FormulaCall) -> tuple[Bounded, ...]:
    return (log_softmax_of(call.value("self"), int(call.number("dim", -1))),)


def _less_rounded(x: Bounded, result: Bounded, dim: int) -> Bounded:
    """Also x - (max + log sum), which rounds at the size of the maximum."""
    top = x.value.amax(dim, keepdim=True).abs()
    extra = (x.arithmetic.unit * top).nan_to_num(nan=0.0, posinf=0.0)
    return Bounded(result.value, result.bound + extra, x.arithmetic)


def _logsumexp(call: FormulaCall) -> tuple[Bounded, ...] | None:
    x = call.value("self")
    dims = call.dims("dim", x.value.dim())
    if x.value.numel() == 0 or x.value.dim() == 0:
        return (x.widened(4 * x.arithmetic.unit * x.value.abs()),)
    top = x.value.amax(dims, keepdim=True)
    shift = x.arithmetic.exact(torch.where(torch.isfinite(top), top, 0.0))
    return (call.reduced((x - shift).exp().sum(dims).log() + shift, dims),)


def _attention(call: FormulaCall) -> tuple[Bounded | None, ...]:
    query, key, value = (call.value(name) for name in ("query", "key", "value"))
    if call.flag("enable_gqa"):
        key, value = (_repeated_heads(entry, query.value.shape[-3]) for entry in (key, value))
    scale = call.number("scale", 1 / sqrt(max(query.value.shape[-1], 1)))
    scores = query.matmul(key.apply(lambda tensor: tensor.transpose(-2, -1))) * scale
    mask = call.bound.get("attn_mask", call.bound.get("attn_bias"))
    if isinstance(mask, Tensor):
        scores = _masked(scores, mask)
    if call.flag("is_causal"):
        rows, columns = scores.value.shape[-2:]
        scores = _masked(scores, torch.ones(rows, columns, dtype=torch.bool).tril())
    # kernels that tile attention hand the weights of 16-bit operands to a 16-bit matrix product
    return (softmax_of(scores, -1).stored().matmul(value), None)


def _masked(scores: Bounded, mask: Tensor) -> Bounded:
    if mask.dtype == torch.bool:
        nothing = scores.arithmetic.exact(torch.full((), -torch.inf, dtype=torch.float64))
        return scores.where(mask, nothing)
    return scores + scores.arithmetic.exact(mask.to(torch.float64))


def _repeated_heads(x: Bounded, heads: int) -> Bounded:
    return x.apply(lambda tensor: tensor.repeat_interleave(heads // tensor.shape[-3], -3))


FORMULAS: dict[str, Formula] = {
    "softmax": _softmax,
    "_softmax": _softmax,
    "_safe_softmax": _softmax,
    "special_softmax": _softmax,
    "log_softmax": _log_softmax,
    "_log_softmax": _log_softmax,
    "special_log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "special_logsumexp": _logsumexp,
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_attention_math": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
}
