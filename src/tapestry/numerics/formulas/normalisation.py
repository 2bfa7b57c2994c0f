"""Normalisations in primitives: centred two-pass variance, then scale and shift."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

import torch

from tapestry.numerics.bounded import Bounded, Dims, sum_error
from tapestry.numerics.formulas.call import Formula, FormulaCall


def centred(x: Bounded, mean: Bounded) -> Bounded:
    """X - mean, also where it is computed as x*s - mean*s: two roundings at the size of the operands."""
    unit = x.arithmetic.unit
    bound = mean.bound + x.bound + 2 * unit * (x.value.abs() + mean.value.abs())
    return Bounded(x.value - mean.value, bound.nan_to_num(nan=0.0, posinf=0.0), x.arithmetic)


def variance(x: Bounded, dim: Dims, correction: float) -> tuple[Bounded, Bounded]:
    """Variance and mean along ``dim``, kept as size 1.

    An error m of the mean changes the sum of squares by n m² only (the deviations sum to 0); rounding a deviation
    d to d (1 + u) + u mean changes it by 2 |d| times that.
    """
    unit = x.arithmetic.unit
    mean = x.mean(dim)
    deviation = x.value - mean.value
    size = x.value.shape
    length = prod(size[d] for d in ((dim,) if isinstance(dim, int) else dim)) if size else 1
    squares = deviation.square().sum(dim, keepdim=True)
    x.arithmetic.look(squares)
    rounded = 2 * unit * (deviation.abs() * (deviation.abs() + 1.5 * mean.value.abs())).sum(dim, keepdim=True)
    error = rounded + length * mean.bound.square() + (sum_error(length, unit) + 2 * unit) * squares
    divisor = length - correction
    if divisor <= 0:
        nothing = torch.full_like(squares, torch.nan if length <= 1 else torch.inf)
        return Bounded(nothing, torch.zeros_like(squares), x.arithmetic), mean
    total = Bounded(squares, error.nan_to_num(nan=0.0, posinf=0.0), x.arithmetic)
    return total / x.arithmetic.exact(torch.tensor(float(divisor), dtype=torch.float64)), mean


def _scaled(result: Bounded, weight: Bounded | None, bias: Bounded | None, shape: Sequence[int]) -> Bounded:
    if weight is not None:
        result = result * weight.apply(lambda tensor: tensor.reshape(shape))
    if bias is not None:
        result = result + bias.apply(lambda tensor: tensor.reshape(shape))
    return result


def _layer_norm(call: FormulaCall) -> tuple[Bounded | None, ...]:
    x = call.value("input")
    shape = cast(Sequence[int], call.bound["normalized_shape"])
    dims = tuple(range(x.value.dim() - len(shape), x.value.dim()))
    spread, mean = variance(x, dims, 0.0)
    rstd = (spread + call.number("eps", 1e-5)).rsqrt()
    result = _scaled(centred(x, mean) * rstd, call.optional("weight"), call.optional("bias"), shape)
    return (result, mean, rstd)


def _rms_norm(call: FormulaCall) -> tuple[Bounded | None, ...]:
    x = call.value("input")
    shape = cast(Sequence[int], call.bound["normalized_shape"])
    dims = tuple(range(x.value.dim() - len(shape), x.value.dim()))
    rstd = (x.square().mean(dims) + call.number("eps", 2.0**-23)).rsqrt()
    return (_scaled(x * rstd, call.optional("weight"), None, shape), rstd)


def _group_norm_of(x: Bounded, groups: int, call: FormulaCall) -> tuple[Bounded, ...]:
    shape = x.value.shape
    grouped = x.apply(lambda tensor: tensor.reshape(shape[0], groups, prod(shape[1:]) // groups))
    spread, mean = variance(grouped, 2, 0.0)
    rstd = (spread + call.number("eps", 1e-5)).rsqrt()
    normal = (centred(grouped, mean) * rstd).apply(lambda tensor: tensor.reshape(shape))
    channels = (1, shape[1], *[1] * (len(shape) - 2))
    per_group = tuple(entry.apply(lambda tensor: tensor.reshape(shape[0], groups)) for entry in (mean, rstd))
    return (_scaled(normal, call.optional("weight"), call.optional("bias"), channels), *per_group)


def _group_norm(call: FormulaCall) -> tuple[Bounded, ...]:
    return _group_norm_of(call.value("input"), int(call.number("num_groups", 1)), call)


def _native_group_norm(call: FormulaCall) -> tuple[Bounded, ...]:
    return _group_norm_of(call.value("input"), int(call.number("group", 1)), call)


def _instance_norm(call: FormulaCall) -> tuple[Bounded | None, ...] | None:
    if not call.flag("use_input_stats"):
        return None
    x = call.value("input")
    return _group_norm_of(x, x.value.shape[1], call)[:1]


def _batch_norm_of_batch(call: FormulaCall) -> tuple[Bounded | None, ...]:
    x = call.value("input")
    rank = x.value.dim()
    channels = (1, -1, *[1] * (rank - 2))
    spread, mean = variance(x, (0, *range(2, rank)), 0.0)
    rstd = (spread + call.number("eps", 1e-5)).rsqrt()
    result = _scaled(centred(x, mean) * rstd, call.optional("weight"), call.optional("bias"), channels)
    mean, spread, rstd = (entry.apply(lambda tensor: tensor.reshape(-1)) for entry in (mean, spread, rstd))
    return (result, mean, rstd, *_running(call, mean, spread, x))


def _running(call: FormulaCall, mean: Bounded, spread: Bounded, x: Bounded) -> tuple[Bounded | None, ...]:
    """The running statistics after a batch: (1 - momentum) old + momentum new, the variance unbiased."""
    count = x.value.numel() // x.value.shape[1]
    olds = (call.optional("running_mean"), call.optional("running_var"))
    if "momentum" not in call.bound or count < 2 or any(old is None for old in olds):
        return (None, None)
    momentum, unbiased = call.number("momentum", 0.1), spread * (count / (count - 1))
    return tuple(
        None if old is None else old * (1 - momentum) + new * momentum
        for old, new in zip(olds, (mean, unbiased), strict=True)
    )


def _batch_norm_with_update(call: FormulaCall) -> tuple[Bounded | None, ...]:
    result, mean, rstd, *running = _batch_norm_of_batch(call)
    return (result, mean, rstd, None, *running)


def _batch_norm(call: FormulaCall) -> tuple[Bounded | None, ...] | None:
    if call.flag("training"):
        return _batch_norm_of_batch(call)
    x, mean, spread = call.value("input"), call.optional("running_mean"), call.optional("running_var")
    if mean is None or spread is None:
        return None
    channels = (1, -1, *[1] * (x.value.dim() - 2))
    rstd = (spread + call.number("eps", 1e-5)).rsqrt().apply(lambda tensor: tensor.reshape(channels))
    normal = centred(x, mean.apply(lambda tensor: tensor.reshape(channels))) * rstd
    result = _scaled(normal, call.optional("weight"), call.optional("bias"), channels)
    return (result, None, None, None, None)


def _batch_norm_with_reserve(call: FormulaCall) -> tuple[Bounded | None, ...] | None:
    result = _batch_norm(call)
    return None if result is None else result[:1]


FORMULAS: dict[str, Formula] = {
    "layer_norm": _layer_norm,
    "native_layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "_fused_rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "native_group_norm": _native_group_norm,
    "instance_norm": _instance_norm,
    "batch_norm": _batch_norm,
    "_batch_norm_impl_index": _batch_norm_with_reserve,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "cudnn_batch_norm": _batch_norm,
    "_native_batch_norm_legit_functional": _batch_norm,
    "_batch_norm_with_update": _batch_norm_with_update,
    "_batch_norm_with_update_functional": _batch_norm_with_update,
    "_batch_norm_no_update": _batch_norm,
}
