"""Platforms that compute one operator right, and otherwise than eager does: no audit may report one of them.

Each returns what a correct implementation may: sums in another order, one rounding for two, float64 on the way, flushed
subnormals, zeros and NaN with another sign, another one of equal elements, what no specification fixes. They have the
attributes that the product reads of a fault, so that a file of them is a file of faults. Not here: platforms that are
only as good as a device specification allows (support/at_limit.py).
"""

from __future__ import annotations

# ruff: noqa: SLF001 - names of ATen operators begin with an underscore
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten


@dataclass(frozen=True)
class QuietControl:
    """A right platform: ``apply(args, kwargs)`` returns what it gives for one call of ``op`` or of one in ``also``."""

    name: str
    fault_class: str
    op: str
    apply: Callable[..., object]
    also: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()


CONTROLS: list[QuietControl] = []


def _control(fault_class: str, op: str, *also: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    def keep(function: Callable[..., object]) -> Callable[..., object]:
        def apply(args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            return function(*args, **kwargs)

        CONTROLS.append(QuietControl(function.__name__, fault_class, op, apply, also))
        return function

    return keep


def _computed(dtype: torch.dtype) -> torch.dtype:
    """What 16-bit floats are computed in: float32. Any other dtype: itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _in_float64(target: Any, *args: object, **kwargs: object) -> Tensor:
    """The call in float64, rounded at the end to the dtype that eager gives."""
    wide = tuple(arg.double() if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args)
    return target(*wide, **kwargs).to(target(*args, **kwargs).dtype)


def _pairwise(x: Tensor) -> Tensor:
    """The sum over the last dimension, in halves."""
    while x.shape[-1] > 1:
        half = (x.shape[-1] + 1) // 2
        rest = F.pad(x[..., half:], (0, 2 * half - x.shape[-1]))
        x = x[..., :half] + rest
    return x[..., 0] if x.shape[-1] else x.sum(-1)


# Sums in another order, products that are contracted, one rounding instead of two.


@_control("precision", "aten.linear.default")
def linear_from_the_last_feature_on(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x.flip(-1), weight.flip(-1), bias)


@_control("precision", "aten.matmul.default")
def matmul_in_two_halves(left: Tensor, right: Tensor) -> Tensor:
    half = left.shape[-1] // 2
    if right.dim() < 2 or not left.is_floating_point() or not half > 0:
        return torch.matmul(left, right)
    wide = _computed(left.dtype)
    halves = [(left[..., :half], right[..., :half, :]), (left[..., half:], right[..., half:, :])]
    first, second = (torch.matmul(a.to(wide), b.to(wide)) for a, b in halves)
    return (first + second).to(left.dtype)


@_control("half_range", "aten.sum.dim_IntList")
def sum_in_pairs(
    x: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    if dtype is not None or x.dim() == 0 or not x.is_floating_point():
        return aten.sum.dim_IntList(x, dim, keepdim, dtype=dtype)
    dims = sorted(d % x.dim() for d in dim or range(x.dim()))
    wide = x.to(_computed(x.dtype)).movedim(dims, list(range(-len(dims), 0)))
    total = _pairwise(wide.flatten(-len(dims))).to(x.dtype)
    for d in dims if keepdim else ():
        total = total.unsqueeze(d)
    return total


@_control("precision", "aten.mean.dim")
def mean_by_a_reciprocal(
    x: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    right = aten.mean.dim(x, dim, keepdim, dtype=dtype)
    if dtype is not None or not x.is_floating_point() or not right.numel() or not x.numel():
        return right
    count = x.numel() // right.numel()
    wide = x.to(_computed(x.dtype))
    return (aten.sum.dim_IntList(wide, dim, keepdim) * (1.0 / count)).to(right.dtype)


@_control("precision", "aten.conv2d.default")
def conv2d_as_a_matrix_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Tensor:
    right = aten.conv2d.default(x, weight, bias, stride, padding, dilation, groups)
    if groups != 1 or x.dim() != 4 or x.dtype != torch.float32 or not right.numel():
        return right
    kernel = (weight.shape[2], weight.shape[3])
    columns = F.unfold(x, kernel, dilation=tuple(dilation), padding=tuple(padding), stride=tuple(stride))
    result = (weight.flatten(1) @ columns).reshape(right.shape)
    return result if bias is None else result + bias.reshape(-1, 1, 1)


@_control("precision", "aten.addcmul.default")
def addcmul_with_one_rounding(x: Tensor, left: Tensor, right: Tensor, *, value: float = 1) -> Tensor:
    if any(entry.dtype != torch.float32 for entry in (x, left, right)):
        return torch.addcmul(x, left, right, value=value)
    return _in_float64(aten.addcmul.default, x, left, right, value=float(torch.tensor(float(value))))


@_control("precision", "aten.add.Tensor")
def add_contracted_with_its_factor(x: Tensor, other: Tensor, *, alpha: float = 1) -> Tensor:
    if x.dtype != torch.float32 or other.dtype != torch.float32:
        return aten.add.Tensor(x, other, alpha=alpha)
    return (x.double() + other.double() * float(torch.tensor(float(alpha)))).float()


@_control("precision", "aten.layer_norm.default")
def layer_norm_in_float64(
    x: Tensor, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enable: bool = True
) -> Tensor:
    return _layer_norm64(x, shape, weight, bias, eps)


def _layer_norm64(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Tensor:
    parameters = (None if value is None else value.double() for value in (weight, bias))
    return F.layer_norm(x.double(), list(shape), *parameters, eps=eps).to(x.dtype)


@_control("precision", "aten._native_batch_norm_legit_no_training.default")
def batch_norm_folded_into_one_factor(
    x: Tensor, weight: Any, bias: Any, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> object:
    right = aten._native_batch_norm_legit_no_training.default(x, weight, bias, mean, variance, momentum, eps)
    if any(value is None or value.dtype != torch.float32 for value in (x, weight, bias)) or x.dim() < 2:
        return right
    shape = [1, -1] + [1] * (x.dim() - 2)
    factor = weight * torch.rsqrt(variance + eps)
    return (x * factor.reshape(shape) + (bias - mean * factor).reshape(shape), *right[1:])


@_control("precision", "aten.softmax.int", "aten._softmax.default")
def softmax_in_float64(x: Tensor, dim: int, last: Any = None) -> Tensor:
    target = aten._softmax.default if isinstance(last, bool) else aten.softmax.int
    right = target(x, dim, last)
    return torch.softmax(x.double(), dim).to(right.dtype) if isinstance(last, bool) or last is None else right


@_control("nonfinite", "aten.scaled_dot_product_attention.default")
def attention_with_nan_where_all_is_masked(
    query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any
) -> object:
    right = F.scaled_dot_product_attention(query, key, value, *rest, **named)
    mask = named.get("attn_mask", rest[0] if rest else None)
    if not isinstance(mask, Tensor) or not mask.numel():
        return right
    hidden = ~mask if mask.dtype == torch.bool else mask == -math.inf
    return right.masked_fill(hidden.all(-1, keepdim=True).expand(*right.shape[:-1], 1), math.nan)


# Functions by other formulas of the same accuracy.


@_control("transcendental", "aten.sigmoid.default")
def sigmoid_by_one_exponential(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return torch.sigmoid(x)
    wide = x.to(_computed(x.dtype))
    return (1 / (1 + torch.exp(-wide))).to(x.dtype)


@_control("transcendental", "aten.silu.default")
def silu_by_sigmoid(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return F.silu(x)
    wide = x.to(_computed(x.dtype))
    return (wide * sigmoid_by_one_exponential(wide)).to(x.dtype)  # pyright: ignore[reportOperatorIssue]


@_control("transcendental", "aten.gelu.default")
def gelu_by_its_tail(x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate != "none" or not x.is_floating_point():
        return F.gelu(x, approximate=approximate)
    wide = x.double()
    result = 0.5 * wide * torch.erfc(-wide * math.sqrt(0.5))
    return torch.where(wide == -math.inf, F.gelu(x).double(), result).to(x.dtype)


@_control("transcendental", "aten.exp.default")
def exp_in_float64(x: Tensor) -> Tensor:
    return _in_float64(aten.exp.default, x)


@_control("transcendental", "aten.logsumexp.default")
def logsumexp_in_float64(x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    return _in_float64(aten.logsumexp.default, x, dim, keepdim)


@_control("transcendental", "aten.pow.Tensor_Scalar")
def squares_are_multiplied_out(x: Tensor, exponent: float) -> Tensor:
    return x * x if exponent == 2 and x.is_floating_point() else torch.pow(x, exponent)


@_control("precision", "aten.var.correction")
def variance_in_two_passes(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    right = aten.var.correction(x, dim, correction=correction, keepdim=keepdim)
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16) or not x.numel():
        return right
    dims = list(dim) if dim else list(range(x.dim()))
    count = x.numel() // max(1, right.numel())
    wide = x.to(torch.float32)
    squares = (wide - wide.mean(dims, keepdim=True)).square().sum(dims, keepdim=keepdim)
    return (squares / max(0.0, count - (1.0 if correction is None else float(correction)))).to(x.dtype)


# Subnormals, signs of zero, payloads of NaN.


def _flushed(x: Tensor) -> Tensor:
    return torch.where(x.abs() < torch.finfo(x.dtype).smallest_normal, torch.zeros_like(x), x)


@_control("nonfinite", "aten.mul.Tensor")
def products_flush_subnormals(x: Tensor, other: Any) -> Tensor:
    right = aten.mul.Tensor(x, other)
    if right.dtype != torch.float32 or any(isinstance(v, Tensor) and v.dtype != torch.float32 for v in (x, other)):
        return right
    operands = [_flushed(value) if isinstance(value, Tensor) else value for value in (x, other)]
    return _flushed(aten.mul.Tensor(*operands))


@_control("nonfinite", "aten.relu.default")
def relu_gives_negative_zeros(x: Tensor) -> Tensor:
    right = torch.relu(x)
    return torch.where(right == 0, -right, right)


@_control("nonfinite", "aten.maximum.default")
def maximum_gives_a_nan_with_a_sign(x: Tensor, other: Tensor) -> Tensor:
    right = torch.maximum(x, other)
    if not right.is_floating_point():
        return right
    right = torch.where(right.isnan(), -right.abs(), right)
    return torch.where(right == 0, torch.zeros_like(right), right)


# Another one of equals, and what no specification fixes.


@_control("integer_dtype", "aten.argmax.default")
def argmax_of_the_last_of_equals(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    if dim is None:
        right = x.numel() - 1 - x.flatten().flip(0).argmax()
        return right.reshape([1] * x.dim()) if keepdim else right
    size = x.shape[dim] if x.dim() else 1
    return size - 1 - (x.flip(dim) if x.dim() else x).argmax(dim, keepdim)


@_control("integer_dtype", "aten.sort.default")
def sort_with_equals_the_other_way_round(x: Tensor, dim: int = -1, descending: bool = False) -> object:
    if not x.dim():
        return torch.sort(x, dim, descending)
    values, places = torch.sort(x.flip(dim), dim=dim, descending=descending, stable=True)
    return values, x.shape[dim] - 1 - places


@_control("integer_dtype", "aten.to.dtype", "aten._to_copy.default")
def casts_to_integers_saturate(x: Tensor, dtype: torch.dtype | None = None, *rest: Any, **named: Any) -> Tensor:
    right = torch.ops.aten._to_copy.default(x, dtype=dtype) if dtype is not None else x
    if dtype is None or not x.is_floating_point() or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        raise NotImplementedError
    limits = torch.iinfo(dtype)
    whole = x.double().nan_to_num(nan=0.0).trunc()
    right = torch.where(whole >= float(limits.max), limits.max, right)
    right = torch.where(whole <= float(limits.min), limits.min, right)
    return torch.where(x.isnan(), 0, right).to(dtype)


@_control("layout_indexing", "aten.scatter.src")
def scatter_lets_the_first_write_win(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if not x.dim() or not index.dim() or not index.numel():
        return torch.scatter(x, dim, index, source)
    used = source[tuple(slice(size) for size in index.shape)]
    return torch.scatter(x, dim, index.flip(dim), used.flip(dim))


@_control("layout_indexing", "aten.index_put.default")
def index_put_from_the_last_place_on(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    (index,) = (entry for entry in indices if entry is not None) if len(indices) == 1 else (None,)
    if index is None or index.dtype == torch.bool or index.dim() != 1 or values.dim() != x.dim():
        return aten.index_put.default(x, indices, values, accumulate)
    if values.shape[0] != index.shape[0]:
        return aten.index_put.default(x, indices, values, accumulate)
    return aten.index_put.default(x, [index.flip(0)], values.flip(0), accumulate)


# Copies with other strides, and results in other memory.


@_control("layout_indexing", "aten.permute.default")
def permute_gives_a_dense_copy(x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.permute(list(dims)).contiguous()


@_control("layout_indexing", "aten.expand.default")
def expand_writes_every_element(x: Tensor, size: Sequence[int], *, implicit: bool = False) -> Tensor:
    return x.expand(list(size)).clone(memory_format=torch.contiguous_format)


@_control("layout_indexing", "aten.cat.default")
def cat_gives_its_first_dim_last_in_memory(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    right = torch.cat(list(tensors), dim)
    return right.transpose(0, -1).contiguous().transpose(0, -1) if right.dim() else right
