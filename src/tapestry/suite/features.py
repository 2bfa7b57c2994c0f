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


def features_of(tensor: torch.Tensor) -> Features:
    """The features of a tensor, in a few passes over it and no copy of it."""
    if tensor.numel() == 0:
        return _EMPTY
    if tensor.dtype == torch.bool:
        return _bool_features(tensor)
    if tensor.is_complex():
        return features_of(torch.view_as_real(tensor.resolve_conj()))
    low, high = (entry.item() for entry in torch.aminmax(tensor.detach()))
    if tensor.is_floating_point():
        return _float_features(tensor, float(low), float(high))
    return _integer_features(tensor, int(low), int(high))


def _bool_features(tensor: torch.Tensor) -> Features:
    some, every = bool(tensor.any()), bool(tensor.all())
    return Features(frozenset({"all true" if every else "mixed" if some else "all false"}), float(some))


def _integer_features(tensor: torch.Tensor, low: int, high: int) -> Features:
    limits = torch.iinfo(tensor.dtype)
    tokens = {_sign(low, high), f"bits {max(abs(low), abs(high)).bit_length()}"}
    if low == limits.min or high == limits.max:
        tokens.add("extreme")
    if low == high:
        tokens.add("all equal")
    return Features(frozenset(tokens), float(max(abs(low), abs(high))))


def _float_features(tensor: torch.Tensor, low: float, high: float) -> Features:
    tokens: set[str] = set()
    if not (math.isfinite(low) and math.isfinite(high)):
        tokens |= _nonfinite_tokens(tensor)
        finite = tensor[torch.isfinite(tensor)]
        if finite.numel() == 0:
            return Features(frozenset(tokens), 0.0)
        low, high = (float(entry.item()) for entry in torch.aminmax(finite))
    peak = max(abs(low), abs(high))
    tokens.add(_sign(low, high))
    tokens.add(f"peak 2^{_exponent(peak)}")
    if low == high:
        tokens.add("all equal")
    # abs().amin() is two passes; it finds exact zeros and subnormals, the values that flushing changes.
    smallest = float(tensor.abs().amin())
    if smallest == 0:
        tokens.add("zeros")
    elif smallest < torch.finfo(tensor.dtype).tiny:
        tokens.add("subnormal")
    if peak > torch.finfo(tensor.dtype).max / 2:
        tokens.add("saturated")
    if peak > 256:
        tokens.add("squares leave float16")
    return Features(frozenset(tokens), peak)


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
