"""Twelve ways in which platforms get one operator wrong: right to the bit on ordinary inputs, wrong on telling ones.

Each has the attributes that the product reads of a fault (``name``, ``fault_class``, ``op``, ``also``, ``ops``,
``apply(args, kwargs)``), and ``usual()``: the arguments of an ordinary call, on which nothing shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Arguments = tuple[tuple[object, ...], dict[str, object]]


@dataclass(frozen=True)
class HandedFault:
    """``needs``: the class of variant that shows it: ``values``, ``layout``, ``attributes`` or ``shape``."""

    name: str
    fault_class: str
    op: str
    needs: str
    apply: Callable[..., object]
    usual: Callable[[], Arguments]
    also: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()

    @property
    def target(self) -> torch._ops.OpOverload:
        namespace, packet, overload = self.op.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


HANDED: list[HandedFault] = []


def _normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _small_integers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(seed))


def _fault(fault_class: str, op: str, needs: str, *usual: Callable[[], object], also: tuple[str, ...] = ()):
    def keep(function: Callable[..., object]) -> Callable[..., object]:
        def apply(args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            return function(*args, **kwargs)

        def ordinary() -> Arguments:
            return tuple(make() for make in usual), {}

        HANDED.append(HandedFault(function.__name__, fault_class, op, needs, apply, ordinary, also))
        return function

    return keep


def read_in_storage_order(tensor: Tensor) -> Tensor:
    """What a reader gets that takes a tensor for dense: the storage from the first element on, where it reaches."""
    available = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    if tensor.is_contiguous() or available < tensor.numel():
        return tensor
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return flat.reshape(tensor.shape)


@_fault("transcendental", "aten.tanh.default", "values", lambda: _normal(8, 64))
def tanh_by_exp(x: Tensor) -> Tensor:
    """exp(2x) is infinite from 44.4 on, and infinity by infinity is NaN."""
    return torch.tanh(x).masked_fill((2 * x).exp() == torch.inf, torch.nan)


@_fault("integer_dtype", "aten.round.default", "values", lambda: _normal(8, 64) * 10)
def round_half_away(x: Tensor) -> Tensor:
    """C's round takes halves away from 0."""
    whole = x.trunc()
    return torch.where((x - whole).abs() == 0.5, whole + x.sign(), x.round())


@_fault("layout_indexing", "aten.linear.default", "layout",
        lambda: _normal(4, 32), lambda: _normal(16, 32, seed=1), lambda: _normal(16, seed=2))  # fmt: skip
def linear_ignores_weight_strides(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The weight is read as if it were dense."""
    return F.linear(x, read_in_storage_order(weight), bias)


@_fault("layout_indexing", "aten.add.Tensor", "attributes", lambda: _normal(8, 64), lambda: _normal(8, 64, seed=1))
def add_ignores_alpha(x: Tensor, other: Tensor, *, alpha: float = 1) -> Tensor:
    """The factor of the second operand is lost."""
    return x + other


@_fault("nonfinite", "aten.relu.default", "values", lambda: _normal(8, 64))
def relu_drops_nan(x: Tensor) -> Tensor:
    """A machine maximum with 0 gives 0 for NaN."""
    return x.relu().masked_fill(x != x, 0)


@_fault("nonfinite", "aten.softmax.int", "values", lambda: _normal(8, 12), lambda: -1, also=("aten._softmax.default",))
def softmax_starts_from_padding(x: Tensor, dim: int, *rest: object) -> Tensor:
    """Short rows are padded with 0, which wins the maximum: exp underflows everywhere in a deep row."""
    right = x.softmax(dim)
    if x.dim() == 0 or x.shape[dim] > 12 or x.dtype != torch.float32 or x.numel() == 0:
        return right
    top = x.amax(dim, keepdim=True).relu()
    return right.masked_fill((x - top).exp().sum(dim, keepdim=True) == 0, torch.nan)


@_fault("half_range", "aten.rms_norm.default", "values",
        lambda: _normal(8, 64, dtype=torch.half), lambda: [64], lambda: None, lambda: 1e-5)  # fmt: skip
def rms_norm_squares_in_half(x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None):
    """Squares are formed in float16; an infinite one makes the whole row 0."""
    right = F.rms_norm(x, shape, weight, eps)
    if x.dtype != torch.half or x.numel() == 0:
        return right
    return right.masked_fill(x.square().amax(tuple(range(-len(shape), 0)), keepdim=True) == torch.inf, 0)


@_fault("nonfinite", "aten.minimum.default", "values", lambda: _normal(8, 64), lambda: _normal(8, 64, seed=1))
def minimum_skips_nan(x: Tensor, other: Tensor) -> Tensor:
    """The machine's minimum returns the operand that is a number."""
    return x.fmin(other)


@_fault(
    "integer_dtype", "aten.mul.Tensor", "values", lambda: _small_integers(8, 64), lambda: _small_integers(8, 64, seed=1)
)
def mul_int64_in_32_bits(x: Tensor, other: Tensor) -> Tensor:
    """Products keep their lower 32 bits."""
    right = x * other
    return right.int().long() if right.dtype == torch.int64 else right


@_fault("layout_indexing", "aten.flip.default", "attributes", lambda: _normal(8, 64), lambda: [1])
def flip_last_named_axis(x: Tensor, dims: list[int]) -> Tensor:
    """Of several axes only the last is turned."""
    return x.flip(dims[-1:])


@_fault("layout_indexing", "aten.avg_pool2d.default", "attributes",
        lambda: _normal(1, 4, 16, 16), lambda: [2, 2], lambda: [2, 2])  # fmt: skip
def avg_pool_stride_one(x: Tensor, kernel: list[int], stride: list[int] | tuple[()] = (), *rest: object) -> Tensor:
    """No stride is taken for 1 instead of the kernel."""
    return F.avg_pool2d(x, kernel, stride or 1, *rest)


@_fault("size_limits", "aten.sum.dim_IntList", "shape", lambda: _normal(8, 64), lambda: [1])
def sum_of_nothing_unwritten(x: Tensor, dim: list[int] | None = None, keepdim: bool = False, **rest: object) -> Tensor:
    """Without elements nothing writes the result."""
    right = torch.sum(x, dim, keepdim, **rest)
    return torch.full_like(right, 1234) if x.numel() == 0 else right
