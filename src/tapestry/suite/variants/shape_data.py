"""New tensors drawn like old ones: of another shape or dtype, with values typical of the old. Not here: which shapes.

What lies inside both shapes is kept; the rest is drawn from the values of the old tensor, so that an index stays an
index, a mask a mask and a weight as large as it was. A sorted vector stays sorted, a triangular or symmetric matrix
does not.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch

#: What is drawn where the old tensor has no values to draw from: N(0, 1), or 0 and 1 for integers and bool.
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def generator(name: str) -> torch.Generator:
    """A generator seeded by a name: the same draws for the same name on every run."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def resized(old: torch.Tensor, shape: Sequence[int], name: str) -> torch.Tensor:
    """A new contiguous tensor of ``shape`` and the dtype of ``old``; where both have an element, the same one.

    Ranks may differ: shapes are aligned on the right, a missing leading dim counts as 1. ``name`` seeds the draw.
    """
    fresh = _drawn(old, shape, generator(name))
    aligned = old.detach()
    while aligned.dim() > len(shape):
        if not aligned.shape[0]:
            return fresh
        aligned = aligned[0]
    aligned = aligned[(None,) * (len(shape) - aligned.dim())]
    inside = tuple(slice(0, min(a, b)) for a, b in zip(shape, aligned.shape, strict=True))
    fresh[inside] = aligned[inside]
    if old.dim() == 1 and len(shape) == 1 and _is_sorted(old):
        return fresh.sort().values
    return fresh


def cast_like(old: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy in another dtype whose values survive: fractions are spread over integers, signs dropped for unsigned."""
    if old.dtype == dtype or dtype.is_complex:
        return old.detach().to(dtype)
    values = old.detach().real if old.is_complex() else old.detach()
    if dtype == torch.bool:
        return values > 0
    if dtype.is_floating_point:
        return values.to(dtype)
    if values.is_floating_point():
        values = torch.nan_to_num(values.double(), 0.0, 100.0, -100.0)
        peak = float(values.abs().max()) if values.numel() else 0.0
        values = (values * (10.0 if peak < 10 else 1.0)).round()
    if values.dtype == torch.bool:
        return values.to(dtype)
    info = torch.iinfo(dtype)
    wide = values.to(torch.int64)  # the limits need not be numbers of the old dtype
    if not dtype.is_signed:
        wide = wide.abs()
    return wide.clamp(max(info.min, -(2**52)), min(info.max, 2**52)).to(dtype)


def _drawn(old: torch.Tensor, shape: Sequence[int], source: torch.Generator) -> torch.Tensor:
    """Elements of ``old`` picked at random, or new ones where it is empty."""
    if old.numel():
        count = 1
        for size in shape:
            count *= size
        picks = torch.randint(0, old.numel(), (count,), generator=source)
        drawn = old.detach().reshape(-1)[picks].reshape(tuple(shape))
        return _apart(drawn, source) if count > old.numel() and _has_fractions(old) else drawn
    if old.dtype in _FLOATS:
        return torch.randn(tuple(shape), generator=source).to(old.dtype)
    if old.dtype.is_complex:
        return torch.randn(tuple(shape), generator=source, dtype=old.dtype)
    return torch.randint(0, 2, tuple(shape), generator=source).to(old.dtype)


def _apart(drawn: torch.Tensor, source: torch.Generator) -> torch.Tensor:
    """Values drawn twice made different, so that the place of the largest is one place: up to a tenth nearer to 0."""
    factors = 1 - 0.1 * torch.rand(drawn.shape, generator=source)
    return drawn * factors.to(drawn.dtype)


def _has_fractions(old: torch.Tensor) -> bool:
    return old.dtype in _FLOATS and bool((old.detach() != old.detach().round()).any())


def _is_sorted(old: torch.Tensor) -> bool:
    if old.numel() < 2 or old.dtype.is_complex or old.dtype == torch.bool:
        return False
    return bool((old[1:] >= old[:-1]).all()) and bool((old[1:] > old[:-1]).any())
