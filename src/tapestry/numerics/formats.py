"""What floating-point formats can hold: unit roundoff, smallest normal, spacing. Knows no operator and no tolerance."""

from __future__ import annotations

import torch
from torch import Tensor

#: The real format that each complex one is made of.
_COMPONENT = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


def is_inexact(dtype: torch.dtype) -> bool:
    """Whether values of the dtype are rounded: floating point or complex."""
    return dtype.is_floating_point or dtype.is_complex


def component(dtype: torch.dtype) -> torch.dtype:
    """The real format of a complex dtype; any other dtype unchanged."""
    return _COMPONENT.get(dtype, dtype)


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number: 2^-24 for float32, 2^-11 for float16, 2^-8 for bfloat16."""
    return torch.finfo(component(dtype)).eps / 2


def smallest_normal(dtype: torch.dtype) -> float:
    """The smallest positive normal number: 2^-126 for float32 and bfloat16, 2^-14 for float16."""
    return torch.finfo(component(dtype)).smallest_normal


def largest(dtype: torch.dtype) -> float:
    """The largest finite number."""
    return torch.finfo(component(dtype)).max


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The format sums and intermediates are held in: float64 for float64, float32 for everything narrower."""
    return torch.float64 if component(dtype) == torch.float64 else torch.float32


def spacing(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The unit in the last place of ``dtype`` at each (float64, finite) value; the subnormal spacing near zero."""
    limits = torch.finfo(component(dtype))
    magnitude = value.abs().clamp(min=limits.smallest_normal)
    _, exponent = torch.frexp(magnitude)
    return torch.ldexp(torch.full_like(magnitude, limits.eps), exponent - 1)


def is_short(value: Tensor) -> Tensor:
    """Where a float32 number needs no more than the 11 significant bits of float16 (bfloat16 and TF32 have fewer)."""
    return (value.contiguous().view(torch.int32) & 0x1FFF) == 0


def to_odd(value: Tensor) -> Tensor:
    """Float64 as float32 rounded to odd, from which any narrower format rounds as if from float64.

    S. Boldo and G. Melquiond, Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd,
    IEEE Trans. Computers 57(4), 2008. PyTorch's own casts from float64 go through float32 and round twice.
    """
    single = value.to(torch.float32)
    inexact = torch.isfinite(single) & (single.to(torch.float64) != value)
    towards_zero = torch.where(single.abs() > value.abs(), torch.nextafter(single, torch.zeros_like(single)), single)
    odd = (towards_zero.view(torch.int32) | 1).view(torch.float32)
    return torch.where(inexact, odd, single)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype the oracle computes in: float64, complex128, or the dtype itself where values are exact."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype
