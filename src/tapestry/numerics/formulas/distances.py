"""Norms and distances: vector and matrix norms, cdist, pairwise distance, cosine similarity, renormalisation."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import cast

import torch
from torch import Tensor

from tapestry.numerics.bounded import Bounded, Dims, sum_error
from tapestry.numerics.formulas.call import Formula, FormulaCall

#: Rows from which eager's cdist goes through a matrix product unless told otherwise (ATen, Distance.cpp).
_MATRIX_ROWS = 25
_BY_MATRIX, _DIRECT = 1, 2


def norm_of(x: Bounded, order: float, dims: Dims) -> Bounded | None:
    """The vector norm along ``dims``, kept as size 1; None for complex or empty values."""
    if x.value.is_complex() or x.value.numel() == 0:
        return None
    if order == 2.0:
        return x.square().sum(dims).sqrt()
    if order == 1.0:
        return x.abs().sum(dims)
    if order == 0.0:
        count = (x.value != 0).to(torch.float64).sum(dims, keepdim=True)
        return x.arithmetic.exact(count)
    if abs(order) == inf:
        size = x.abs()
        return size.amax(dims) if order > 0 else size.amin(dims)
    return x.power(order).sum(dims).power(1.0 / order)


def _norm(call: FormulaCall) -> tuple[Bounded, ...] | None:
    x = call.value("self")
    dims = call.dims("dim", x.value.dim())
    result = norm_of(x, call.number("ord" if "ord" in call.bound else "p", 2.0), dims)
    return None if result is None else (call.reduced(result, dims),)


def _linalg_norm(call: FormulaCall) -> tuple[Bounded, ...] | None:
    order, rank = call.bound.get("ord"), call.tensor("self").dim()
    dims = call.dims("dim", rank)
    if order is None or (len(dims) == 1 and not isinstance(order, str)):
        return _norm(call)
    return _matrix_norm_along(call, order, dims)


def _matrix_norm(call: FormulaCall) -> tuple[Bounded, ...] | None:
    return _matrix_norm_along(call, call.bound.get("ord", "fro"), call.dims("dim", call.tensor("self").dim()))


def _matrix_norm_along(call: FormulaCall, order: object, dims: tuple[int, ...]) -> tuple[Bounded, ...] | None:
    """Frobenius, 1 and infinity; those by singular values are bounded in norm (normwise/matrices.py)."""
    x = call.value("self")
    if x.value.is_complex() or x.value.numel() == 0 or len(dims) != 2:
        return None
    if order == "fro":
        return (call.reduced(x.square().sum(dims).sqrt(), dims),)
    if not isinstance(order, int | float) or abs(order) not in (1.0, inf):
        return None
    added, chosen = dims if abs(order) == 1.0 else dims[::-1]
    totals = x.abs().sum(added)
    return (call.reduced(totals.amax(chosen) if order > 0 else totals.amin(chosen), dims),)


def _frobenius_norm(call: FormulaCall) -> tuple[Bounded, ...] | None:
    x = call.value("self")
    dims = call.dims("dim", x.value.dim())
    result = norm_of(x, 2.0, dims)
    return None if result is None else (call.reduced(result, dims),)


def _pairwise_distance(call: FormulaCall) -> tuple[Bounded, ...] | None:
    gap = call.value("x1") - call.value("x2") + call.number("eps", 1e-6)
    last = gap.value.dim() - 1
    result = norm_of(gap, call.number("p", 2.0), (last,))
    return None if result is None else (call.reduced(result, (last,)),)


def _dist(call: FormulaCall) -> tuple[Bounded, ...] | None:
    gap = call.value("self") - call.value("other")
    if gap.value.dim() == 0:
        return (gap.abs(),)
    dims = tuple(range(gap.value.dim()))
    result = norm_of(gap, call.number("p", 2.0), dims)
    return None if result is None else (call.reduced(result, dims),)


def _cdist(call: FormulaCall) -> tuple[Bounded, ...] | None:
    left, right = call.value("x1"), call.value("x2")
    mode, rows = int(call.number("compute_mode", 0)), max(left.value.shape[-2], right.value.shape[-2])
    order = call.number("p", 2.0)
    gap = left.apply(lambda tensor: tensor.unsqueeze(-2)) - right.apply(lambda tensor: tensor.unsqueeze(-3))
    if gap.value.numel() == 0:
        return None
    direct = norm_of(gap, order, (gap.value.dim() - 1,))
    if direct is None:
        return None
    direct = direct.apply(lambda tensor: tensor.squeeze(-1))
    if order == 2.0 and (mode == _BY_MATRIX or (mode != _DIRECT and rows > _MATRIX_ROWS)):
        direct = _by_matrix(direct, left.value, right.value)
    return (direct,)


def _euclidean_distance(call: FormulaCall) -> tuple[Bounded, ...]:
    left, right = call.value("x1"), call.value("x2")
    gap = left.apply(lambda tensor: tensor.unsqueeze(-2)) - right.apply(lambda tensor: tensor.unsqueeze(-3))
    direct = gap.square().sum(-1).sqrt().apply(lambda tensor: tensor.squeeze(-1))
    return (_by_matrix(direct, left.value, right.value),)


def _by_matrix(distance: Bounded, left: Tensor, right: Tensor) -> Bounded:
    """Also sqrt(|x|² + |y|² - 2 x·y), as eager has it: its square errs at the size of |x|² + |y|²."""
    unit = distance.arithmetic.unit
    sizes = left.square().sum(-1).unsqueeze(-1) + right.square().sum(-1).unsqueeze(-2)
    error = 2 * (sum_error(left.shape[-1], unit) + 2 * unit) * sizes
    return distance.widened(torch.minimum(error / (2 * distance.value), error.sqrt()).nan_to_num(nan=0.0))


def _pdist(call: FormulaCall) -> tuple[Bounded, ...] | None:
    x = call.value("self")
    first, second = torch.triu_indices(x.value.shape[0], x.value.shape[0], 1)
    gap = x.apply(lambda tensor: tensor[first]) - x.apply(lambda tensor: tensor[second])
    result = norm_of(gap, call.number("p", 2.0), (1,))
    return None if result is None else (result.apply(lambda tensor: tensor.squeeze(1)),)


def _cosine_similarity(call: FormulaCall) -> tuple[Bounded, ...]:
    left, right, dim = call.value("x1"), call.value("x2"), int(call.number("dim", 1))
    eps = call.arithmetic.exact(torch.tensor(call.number("eps", 1e-8), dtype=torch.float64))
    norms = [entry.square().sum(dim).sqrt().maximum(eps) for entry in (left, right)]
    result = ((left / norms[0]) * (right / norms[1])).sum(dim)
    return (result.apply(lambda tensor: tensor.squeeze(dim)),)


def _renormalised(x: Bounded, order: float, dims: tuple[int, ...], most: float) -> Bounded | None:
    length = norm_of(x, order, dims)
    if length is None:
        return None
    limit = x.arithmetic.exact(torch.tensor(most, dtype=torch.float64))
    shrunk = x * (limit / (length + 1e-7))
    edge = (length.value - most).abs() <= length.bound  # either side of the limit: x, or x within rounding of it
    scaled = shrunk.where(length.value > most, x)
    return scaled.widened(torch.where(edge, 4 * x.arithmetic.unit * x.value.abs(), 0.0))


def _renorm(call: FormulaCall) -> tuple[Bounded, ...] | None:
    x = call.value("self")
    rank = x.value.dim()
    kept = int(call.number("dim", 0)) % rank
    dims = tuple(d for d in range(rank) if d != kept)
    result = _renormalised(x, call.number("p", 2.0), dims, call.number("maxnorm", 1.0))
    return None if result is None else (result,)


def _embedding_renorm(call: FormulaCall) -> tuple[Bounded, ...] | None:
    x = call.value("self")
    result = _renormalised(x, call.number("norm_type", 2.0), (1,), call.number("max_norm", 1.0))
    if result is None:
        return None
    touched = torch.zeros(x.value.shape[0], 1, dtype=torch.bool)
    touched[cast(Tensor, call.bound["indices"]).flatten()] = True
    return (result.where(touched, x),)


def _weight_norm(call: FormulaCall) -> tuple[Bounded | None, ...] | None:
    v, g, dim = call.value("v"), call.value("g"), int(call.number("dim", 0))
    rank = v.value.dim()
    dims: Sequence[int] = range(rank) if dim == -1 else [d for d in range(rank) if d != dim % rank]
    length = norm_of(v, 2.0, tuple(dims))
    return None if length is None else (v * (g / length), None)


FORMULAS: dict[str, Formula] = {
    "norm": _norm,
    "linalg_vector_norm": _norm,
    "linalg_norm": _linalg_norm,
    "linalg_matrix_norm": _matrix_norm,
    "frobenius_norm": _frobenius_norm,
    "pairwise_distance": _pairwise_distance,
    "dist": _dist,
    "cdist": _cdist,
    "_cdist_forward": _cdist,
    "_euclidean_dist": _euclidean_distance,
    "pdist": _pdist,
    "_pdist_forward": _pdist,
    "cosine_similarity": _cosine_similarity,
    "renorm": _renorm,
    "embedding_renorm": _embedding_renorm,
    "_weight_norm": _weight_norm,
    "_weight_norm_interface": _weight_norm,
}
