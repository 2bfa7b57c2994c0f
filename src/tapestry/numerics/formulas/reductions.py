"""Reductions that are not plain sums: variance, norms, products, losses, cosine similarity."""

from __future__ import annotations

from math import inf, prod

import torch

from tapestry.numerics.bounded import Bounded
from tapestry.numerics.formulas.call import Formula, FormulaCall
from tapestry.numerics.formulas.normalisation import variance


def _correction(call: FormulaCall) -> float:
    if "unbiased" in call.bound:
        return 1.0 if call.flag("unbiased") else 0.0
    return call.number("correction", 1.0)


def _variance(call: FormulaCall) -> tuple[Bounded, tuple[int, ...], Bounded]:
    x = call.value("self")
    dims = call.dims("dim", x.value.dim())
    spread, mean = variance(x, dims, _correction(call))
    return call.reduced(spread, dims), dims, call.reduced(mean, dims)


def _var(call: FormulaCall) -> tuple[Bounded, ...]:
    return (_variance(call)[0],)


def _std(call: FormulaCall) -> tuple[Bounded, ...]:
    return (_variance(call)[0].sqrt(),)


def _var_mean(call: FormulaCall) -> tuple[Bounded, ...]:
    spread, _, mean = _variance(call)
    return (spread, mean)


def _std_mean(call: FormulaCall) -> tuple[Bounded, ...]:
    spread, _, mean = _variance(call)
    return (spread.sqrt(), mean)


def _norm_of(x: Bounded, order: float, dims: tuple[int, ...]) -> Bounded | None:
    if x.value.is_complex():
        return None
    if order == 2.0:
        return x.square().sum(dims).sqrt()
    if order == 1.0:
        return x.abs().sum(dims)
    if abs(order) == inf and x.value.numel():
        value = x.value.abs().amax(dims, keepdim=True) if order > 0 else x.value.abs().amin(dims, keepdim=True)
        return Bounded(value, torch.zeros_like(value), x.arithmetic)
    return None


def _norm(call: FormulaCall) -> tuple[Bounded, ...] | None:
    x = call.value("self")
    dims = call.dims("dim", x.value.dim())
    result = _norm_of(x, call.number("ord" if "ord" in call.bound else "p", 2.0), dims)
    return None if result is None else (call.reduced(result, dims),)


def _product(call: FormulaCall) -> tuple[Bounded, ...]:
    x = call.value("self")
    dims = call.dims("dim", x.value.dim())
    value = x.value.prod() if call.bound.get("dim") is None else x.value.prod(dims[0], keepdim=call.flag("keepdim"))
    length = prod(x.value.shape[d] for d in dims) if x.value.dim() else 1
    return (Bounded(value, value.abs() * x.arithmetic.unit * max(length, 1), x.arithmetic),)


def _running_product(call: FormulaCall) -> tuple[Bounded, ...]:
    x, dim = call.value("self"), int(call.number("dim", 0))
    value = x.value.cumprod(dim)
    length = x.value.shape[dim] if x.value.dim() else 1
    return (Bounded(value, value.abs() * x.arithmetic.unit * max(length, 1), x.arithmetic),)


def _cosine_similarity(call: FormulaCall) -> tuple[Bounded, ...]:
    left, right, dim = call.value("x1"), call.value("x2"), int(call.number("dim", 1))
    eps = call.arithmetic.exact(torch.tensor(call.number("eps", 1e-8), dtype=torch.float64))
    norms = [entry.square().sum(dim).sqrt().maximum(eps) for entry in (left, right)]
    result = ((left / norms[0]) * (right / norms[1])).sum(dim)
    return (result.apply(lambda tensor: tensor.squeeze(dim)),)


def _mse_loss(call: FormulaCall) -> tuple[Bounded, ...]:
    squares = (call.value("self") - call.value("target")).square()
    return (_loss(call, squares),)


def _l1_loss(call: FormulaCall) -> tuple[Bounded, ...]:
    return (_loss(call, (call.value("self") - call.value("target")).abs()),)


def _loss(call: FormulaCall, each: Bounded) -> Bounded:
    reduction = int(call.number("reduction", 1))
    dims = tuple(range(each.value.dim()))
    if reduction == 0 or not dims:
        return each
    total = each.mean(dims) if reduction == 1 else each.sum(dims)
    return total.apply(lambda tensor: tensor.reshape(()))


FORMULAS: dict[str, Formula] = {
    "var": _var,
    "std": _std,
    "var_mean": _var_mean,
    "std_mean": _std_mean,
    "norm": _norm,
    "linalg_vector_norm": _norm,
    "linalg_norm": lambda call: _norm(call) if call.bound.get("ord") is None else None,
    "prod": _product,
    "cumprod": _running_product,
    "cosine_similarity": _cosine_similarity,
    "mse_loss": _mse_loss,
    "l1_loss": _l1_loss,
}
