"""Running and neighbouring elements: cumulative products and log-sums, trapezoids, differences."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from tapestry.numerics.bounded import COHERENT_FACTOR, COHERENT_LIMIT, Bounded, sum_error
from tapestry.numerics.formulas.call import Formula, FormulaCall


def _of_product(value: Tensor, count: Tensor | int, x: Bounded) -> Bounded:
    """A product of n factors rounds n - 1 times: at most n u, whatever the order (Higham, lemma 3.1)."""
    return Bounded(value, value.abs() * x.arithmetic.unit * count + x.arithmetic.smallest, x.arithmetic)


def _product(call: FormulaCall) -> tuple[Bounded, ...]:
    x = call.value("self")
    dims = call.dims("dim", x.value.dim())
    value = x.value.prod() if call.bound.get("dim") is None else x.value.prod(dims[0], keepdim=call.flag("keepdim"))
    length = prod(x.value.shape[d] for d in dims) if x.value.dim() else 1
    return (_of_product(value, max(length, 1), x),)


def _running_product(call: FormulaCall) -> tuple[Bounded, ...]:
    x, dim = call.value("self"), int(call.number("dim", 0))
    value = x.value.cumprod(dim)
    return (_of_product(value, torch.ones_like(value).cumsum(dim), x),)


def _running_log_sum(call: FormulaCall) -> tuple[Bounded, ...] | None:
    """Each step rounds a maximum plus a log1p in (0, log 2]; errors before it are weighted by at most 1."""
    x, dim = call.value("self"), int(call.number("dim", 0))
    if x.value.numel() == 0 or x.value.dim() == 0:
        return (x.widened(4 * x.arithmetic.unit * x.value.abs()),)
    value = x.value.logcumsumexp(dim)
    sizes = value.abs().nan_to_num(nan=0.0, posinf=0.0).cummax(dim).values + 4.0
    count = torch.ones_like(value).cumsum(dim)
    steps = 2 * count.sqrt()
    if x.arithmetic.column == "allowed":  # one after the other, roundings of one sign
        steps = torch.maximum(steps, (count * COHERENT_FACTOR).clamp(max=COHERENT_LIMIT)) + 2.0**-21 / 2.0**-23
    return (Bounded(value, steps * (2 * x.arithmetic.unit) * sizes, x.arithmetic),)


def _neighbours(x: Bounded, dim: int) -> tuple[Bounded, Bounded]:
    size = x.value.shape[dim]
    after, before = (x.apply(lambda tensor, s=start: tensor.narrow(dim, s, size - 1)) for start in (1, 0))
    return after, before


def _trapezoids(call: FormulaCall) -> Bounded | None:
    """The areas between neighbours, doubled."""
    y, dim = call.value("y"), int(call.number("dim", -1))
    if y.value.dim() == 0 or y.value.shape[dim] < 2:
        return None
    right, left = _neighbours(y, dim)
    if "x" not in call.bound:
        return (right + left) * call.value("dx")
    x = call.value("x")
    if x.value.dim() == 1 and y.value.dim() > 1:
        shape = [-1 if d == dim % y.value.dim() else 1 for d in range(y.value.dim())]
        x = x.apply(lambda tensor: tensor.reshape(shape))
    after, before = _neighbours(x, dim)
    return (right + left) * (after - before)


def _trapezoid(call: FormulaCall) -> tuple[Bounded, ...] | None:
    areas, dim = _trapezoids(call), int(call.number("dim", -1))
    if areas is None:
        return None
    whole = areas.sum(dim).scaled_exactly(0.5)
    if "x" not in call.bound:  # also dx (sum of y - half the ends), as eager has it: rounds at the size of |y|
        y = call.value("y").value
        loss = sum_error(y.shape[dim], areas.arithmetic.unit) * y.abs().sum(dim, keepdim=True)
        whole = whole.widened(loss * call.value("dx").value.abs())
    return (whole.apply(lambda tensor: tensor.squeeze(dim)),)


def _cumulative_trapezoid(call: FormulaCall) -> tuple[Bounded, ...] | None:
    areas, dim = _trapezoids(call), int(call.number("dim", -1))
    return None if areas is None else (areas.cumsum(dim).scaled_exactly(0.5),)


def _diff(call: FormulaCall) -> tuple[Bounded, ...] | None:
    dim = int(call.number("dim", -1))
    parts = [call.tensor(name) for name in ("prepend", "self", "append") if call.bound.get(name) is not None]
    if parts[0].dtype == torch.bool:
        return None
    result = call.arithmetic.exact(torch.cat([part.to(torch.float64) for part in parts], dim))
    for _ in range(int(call.number("n", 1))):
        if result.value.shape[dim] == 0:
            return None
        right, left = _neighbours(result, dim)
        result = right - left
    return (result,)


def _vander(call: FormulaCall) -> tuple[Bounded, ...]:
    """Powers 0, 1, … of each x, by multiplying on."""
    x = call.value("x")
    given = call.bound.get("N")
    size = given if isinstance(given, int) else x.value.shape[-1]
    exponents = torch.arange(size, dtype=torch.float64)
    return (_of_product(x.value.unsqueeze(-1) ** exponents, exponents, x),)


def _quantile(call: FormulaCall) -> tuple[Bounded, ...] | None:
    """Quantiles interpolate between two neighbours in order; their rank rounds at the size of the slice."""
    x, dim = call.value("self").value, call.bound.get("dim")
    if not isinstance(dim, int):
        x, dim = x.flatten(), 0
    ordered = x.sort(dim).values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    size = ordered.shape[dim]
    gaps = (ordered.narrow(dim, 1, size - 1) - ordered.narrow(dim, 0, size - 1)).abs()
    widest = gaps.amax(dim, keepdim=True) if size > 1 else torch.zeros_like(ordered)
    largest = ordered.abs().amax(dim, keepdim=True)
    unit, q = call.arithmetic.unit, call.tensor("q").to(torch.float64)
    if call.bound.get("interpolation") in ("lower", "higher", "nearest"):
        rank = q * (size - 1)
        near = ((2 * rank) - (2 * rank).round()).abs() <= 4 * unit * size
        bound = torch.where(near.any(), widest, torch.zeros_like(widest))
    else:
        bound = 4 * unit * (largest + size * widest)
    if not call.flag("keepdim"):
        bound = bound.squeeze(dim)
    return (Bounded(bound, bound, call.arithmetic),)


FORMULAS: dict[str, Formula] = {
    "prod": _product,
    "cumprod": _running_product,
    "logcumsumexp": _running_log_sum,
    "_logcumsumexp": _running_log_sum,
    "trapezoid": _trapezoid,
    "trapz": _trapezoid,
    "cumulative_trapezoid": _cumulative_trapezoid,
    "diff": _diff,
    "linalg_vander": _vander,
    "quantile": _quantile,
    "nanquantile": _quantile,
}
