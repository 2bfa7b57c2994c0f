"""Written references for operators that have no float64 kernel: integer products and quantisation.

Results are exact integers (int64 or the declared integer dtype) or float64. Quantised tensors are returned as their
integer representation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor

Reference = Callable[[Mapping[str, object]], tuple[Tensor | None, ...]]

_LEVELS = {torch.quint8: (0, 255), torch.qint8: (-128, 127), torch.qint32: (-(2**31), 2**31 - 1)}


def find(name: str) -> Reference | None:
    """The reference of an operator by canonical name, or None."""
    return _REFERENCES.get(name)


def _int_mm(bound: Mapping[str, object]) -> tuple[Tensor, ...]:
    left, right = cast(Tensor, bound["self"]), cast(Tensor, bound["mat2"])
    return ((left.to(torch.int64) @ right.to(torch.int64)).to(torch.int32),)


def quantize(value: Tensor, scale: Tensor | float, zero_point: Tensor | int, low: int, high: int) -> Tensor:
    """Levels of an affine quantisation, int64: clamp(round_half_even(value / scale) + zero_point, low, high)."""
    level = torch.round(value.to(torch.float64) / scale) + zero_point
    return level.nan_to_num(nan=low, posinf=high, neginf=low).clamp(low, high).to(torch.int64)


def _quantize_per_tensor(bound: Mapping[str, object]) -> tuple[Tensor, ...]:
    low, high = _LEVELS[cast(torch.dtype, bound["dtype"])]
    value = cast(Tensor, bound["self"])
    return (quantize(value, float(cast(float, bound["scale"])), int(cast(int, bound["zero_point"])), low, high),)


def _quantize_decomposed(bound: Mapping[str, object]) -> tuple[Tensor, ...]:
    value, dtype = cast(Tensor, bound["input"]), cast(torch.dtype, bound["dtype"])
    low, high = int(cast(int, bound["quant_min"])), int(cast(int, bound["quant_max"]))
    scale, zero = cast(float, bound["scale"]), cast(int, bound["zero_point"])
    return (quantize(value, float(scale), int(zero), low, high).to(dtype),)


def _dequantize_decomposed(bound: Mapping[str, object]) -> tuple[Tensor, ...]:
    levels = cast(Tensor, bound["input"]).to(torch.float64)
    return ((levels - cast(int, bound["zero_point"])) * cast(float, bound["scale"]),)


def _dequantize(bound: Mapping[str, object]) -> tuple[Tensor, ...]:
    value = cast(Tensor, bound["self"])
    if not value.is_quantized:
        return (value.to(torch.float64),)
    if value.qscheme() == torch.per_tensor_affine:
        return ((value.int_repr().to(torch.float64) - value.q_zero_point()) * value.q_scale(),)
    shape = [1] * value.dim()
    shape[value.q_per_channel_axis()] = -1
    scale, zero = value.q_per_channel_scales(), value.q_per_channel_zero_points()
    return ((value.int_repr().to(torch.float64) - zero.view(shape)) * scale.to(torch.float64).view(shape),)


_REFERENCES: dict[str, Reference] = {
    "_int_mm": _int_mm,
    "quantize_per_tensor": _quantize_per_tensor,
    "dequantize": _dequantize,
    "quantized_decomposed::quantize_per_tensor": _quantize_decomposed,
    "quantized_decomposed::dequantize_per_tensor": _dequantize_decomposed,
}
