"""Operators whose error is bounded in norm: Fourier transforms and linear algebra, real and complex.

Each entry gives, for one result, the size of a careful implementation's absolute error in units of roundoff.
"""

from __future__ import annotations

from tapestry.numerics.normwise import matrices, spectral
from tapestry.numerics.normwise.size import Size

NORMWISE: dict[str, Size] = {**matrices.SIZES, **spectral.SIZES}
#: What another algorithm for the same thing may take beyond a careful one.
ALLOWED_FACTOR = 4.0

__all__ = ["ALLOWED_FACTOR", "NORMWISE", "Size"]
