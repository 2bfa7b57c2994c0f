"""Fourier transforms: |error| <= 8 (log2 n + 1) u rms(y), rms over the transformed dimensions.

N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 24.2: in the 2-norm an FFT of n points
errs by log2(n) (mu + 4 sqrt(2) u) to first order, mu the error of the twiddle factors: 6.7 log2(n) u with mu = u.
Errors spread evenly, so that the relative error in norm is one of each element against the rms.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import cast

from torch import Tensor

from tapestry.numerics.facts import CallFacts
from tapestry.numerics.normwise.size import Size, root_mean_square

_UNITS = 8.0


def _transform(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    operand = facts.tensor("self")
    if want.dim() == 0 or want.numel() == 0 or operand is None:
        return None
    dims = _dims(facts, want.dim())
    points = 1
    for d in dims:
        points *= max(want.shape[d], operand.shape[d])
    return (_UNITS * (log2(points) + 1)) * root_mean_square(want, dims)


def _dims(facts: CallFacts, rank: int) -> list[int]:
    dim, sizes = facts.bound.get("dim"), facts.bound.get("s")
    if isinstance(dim, int):
        return [dim % rank]
    if dim:
        return [d % rank for d in cast(Sequence[int], dim)]
    count = len(cast(Sequence[int], sizes)) if sizes else rank
    return list(range(rank - count, rank))


def _short_time(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    """Windows times values, then a transform of each frame: frequencies lie before the frames (and the parts)."""
    if want.numel() == 0:
        return None
    parts = 0 if want.is_complex() else 1
    dims = [want.dim() - 2 - parts, *([want.dim() - 1] if parts else [])]
    points = max(2, int(cast(int, facts.bound["n_fft"])))
    return (_UNITS * (log2(points) + 1)) * root_mean_square(want, dims)


_NAMES = (
    *(f"fft_{kind}{rank}" for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for rank in ("", "2", "n")),
    "_fft_r2c", "_fft_c2r", "_fft_c2c",
)  # fmt: skip
SIZES: dict[str, Size] = {**dict.fromkeys(_NAMES, _transform), "stft": _short_time}
