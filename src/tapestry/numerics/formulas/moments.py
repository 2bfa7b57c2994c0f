"""Second moments: variance, standard deviation, covariance, correlation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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


def _covariance(call: FormulaCall) -> Bounded | None:
    """Rows are variables: centred (weighted) products over the number of observations less the correction."""
    x = call.value("self")
    if x.value.dim() > 2 or x.value.numel() == 0 or x.value.is_complex():
        return None
    x = x.apply(lambda tensor: tensor.reshape(-1, tensor.shape[-1] if tensor.dim() else 1))
    weights, count = _observation_weights(call, x)
    if count <= 0:
        return None
    mean = (x * weights).sum(1) / weights.sum(0)
    deviation = x - mean
    products = (deviation * weights).matmul(deviation.apply(lambda tensor: tensor.t()))
    return products / x.arithmetic.exact(torch.tensor(count, dtype=torch.float64))


def _observation_weights(call: FormulaCall, x: Bounded) -> tuple[Bounded, float]:
    """The weight of each observation, and what the products are divided by."""
    frequency, importance = (call.bound.get(name) for name in ("fweights", "aweights"))
    frequencies = call.value("fweights").value if frequency is not None else torch.ones_like(x.value[0])
    weights = frequencies if importance is None else frequencies * call.value("aweights").value
    correction, total = call.number("correction", 1.0), float(weights.sum())
    if importance is None or correction == 0.0:
        return x.arithmetic.exact(weights), total - correction
    spread = float((weights * call.value("aweights").value).sum())
    return x.arithmetic.exact(weights), total - correction * spread / total


def _cov(call: FormulaCall) -> tuple[Bounded, ...] | None:
    result = _covariance(call)
    return None if result is None else (result.apply(_as_covariance(call)),)


def _corrcoef(call: FormulaCall) -> tuple[Bounded, ...] | None:
    result = _covariance(call)
    if result is None:
        return None
    spread = result.apply(lambda tensor: tensor.diagonal()).sqrt()
    rows = result / spread.apply(lambda tensor: tensor.unsqueeze(1))
    return ((rows / spread).apply(_as_covariance(call)),)


def _as_covariance(call: FormulaCall) -> Callable[[Tensor], Tensor]:
    return (lambda tensor: tensor) if call.tensor("self").dim() == 2 else (lambda tensor: tensor.reshape(()))


FORMULAS: dict[str, Formula] = {
    "var": _var,
    "std": _std,
    "var_mean": _var_mean,
    "std_mean": _std_mean,
    "cov": _cov,
    "corrcoef": _corrcoef,
}
