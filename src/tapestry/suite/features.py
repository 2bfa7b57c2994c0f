"""What the values of a tensor are like, in a few cheap tokens: range, sign, zeros, subnormals, NaN, infinities.

Carving keeps the samples of an operator whose tokens differ. Not here: which samples are kept (sampler).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Features:
    """Tokens describe the values coarsely; ``peak`` is the largest finite magnitude."""

    tokens: frozenset[str]
    peak: float


_EMPTY = Features(frozenset({"empty"}), 0.0)


#: Tokens of values that platforms get wrong: a sample that shows one is worth more than one of another magnitude.
RARE = frozenset(
    {"nan", "+inf", "-inf", "zeros", "subnormal", "saturated", "extreme", "all equal", "all true", "all false"}
)
#: Unsigned types that PyTorch stores and hardly computes with.
_WIDE_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})


def features_of(tensor: torch.Tensor) -> Features:
    """The features of a tensor, in a few passes over it."""
    if tensor.numel() == 0:
        return _EMPTY
    tensor = tensor.detach()
    if tensor.dtype == torch.bool:
        return _bool_features(tensor)
    if tensor.is_complex():
        return features_of(torch.view_as_real(tensor.resolve_conj()))
    if not tensor.is_floating_point():
        return _integer_features(tensor)
    # 8-bit floats have neither comparisons nor reductions; every value of theirs is a float32.
    return _float_features(tensor.float() if tensor.dtype.itemsize == 1 else tensor, torch.finfo(tensor.dtype))


def _bool_features(tensor: torch.Tensor) -> Features:
    some, every = bool(tensor.any()), bool(tensor.all())
    return Features(frozenset({"all true" if every else "mixed" if some else "all false"}), float(some))


def _integer_features(tensor: torch.Tensor) -> Features:
    limits = torch.iinfo(tensor.dtype)
    if tensor.dtype in _WIDE_UNSIGNED:
        low, high = int(tensor.numpy().min()), int(tensor.numpy().max())
    else:
        low, high = (int(entry.item()) for entry in torch.aminmax(tensor))
    tokens = {_sign(low, high), f"bits {max(abs(low), abs(high)).bit_length()}"}
    if low == limits.min or high == limits.max:
        tokens.add("extreme")
    if low == high:
        tokens.add("all equal")
    return Features(frozenset(tokens), float(max(abs(low), abs(high))))


def _float_features(tensor: torch.Tensor, format_info: torch.finfo) -> Features:
    tokens: set[str] = set()
    low, high = _range(tensor)
    if not (math.isfinite(low) and math.isfinite(high)):
        tokens |= _nonfinite_tokens(tensor)
        tensor = tensor[torch.isfinite(tensor)]
        if tensor.numel() == 0:
            return Features(frozenset(tokens), 0.0)
        low, high = _range(tensor)
    peak = max(abs(low), abs(high))
    tokens.add(_sign(low, high))
    tokens.add(f"peak 2^{_exponent(peak)}")
    if low == high:
        tokens.add("all equal")
    tokens |= _small_tokens(tensor, format_info.tiny)
    if peak > format_info.max / 2:
        tokens.add("saturated")
    if peak > 256:
        tokens.add("squares leave float16")
    return Features(frozenset(tokens), peak)


def _range(tensor: torch.Tensor) -> tuple[float, float]:
    low, high = torch.aminmax(tensor)
    return float(low), float(high)


def _small_tokens(tensor: torch.Tensor, tiny: float) -> set[str]:
    """Exact zeros and subnormals: the values that flushing changes, and those it leaves alone."""
    magnitude = tensor.abs()
    smallest = float(magnitude.amin())
    if smallest >= tiny:
        return set()
    if smallest > 0:
        return {"subnormal"}
    smallest = float(magnitude.masked_fill_(magnitude == 0, math.inf).amin())
    return {"zeros", "subnormal"} if smallest < tiny else {"zeros"}


def _nonfinite_tokens(tensor: torch.Tensor) -> set[str]:
    tokens: set[str] = set()
    if bool(torch.isnan(tensor).any()):
        tokens.add("nan")
    if bool(torch.isposinf(tensor).any()):
        tokens.add("+inf")
    if bool(torch.isneginf(tensor).any()):
        tokens.add("-inf")
    return tokens


def _sign(low: float, high: float) -> str:
    if low >= 0:
        return "not negative"
    return "negative" if high < 0 else "both signs"


def _exponent(peak: float) -> int:
    """The magnitude in steps of 4, which is as fine as samples need to differ."""
    return 0 if peak == 0 else 2 * math.floor(math.log2(peak) / 2)
