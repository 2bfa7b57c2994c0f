"""How accurate elementary functions are: error models of careful implementations and of device specifications.

A model bounds |computed - exact| for exact float32 inputs. Sources: *OpenCL* is the table "Relative Error as ULPs" for
single precision in the full profile (OpenCL C specification 3.0, section 7.4); *WGSL* is the table of section
"Floating Point Evaluation" / "Accuracy of built-in functions" (W3C WebGPU Shading Language). docs/numerics.md repeats
them. Not here: error propagation (bounded.py), and which operator uses which function (elementwise.py, formulas).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, pi

import torch
from torch import Tensor


@dataclass(frozen=True)
class Model:
    """|error| <= (ulps + ulps_per_x * |x|) * 2u * |y|, or ``absolute`` where ``low <= x <= high`` if that is larger.

    ``outside`` is the absolute error elsewhere.

    ``u`` is the unit roundoff of the format computed in, so 2u|y| is between one and two ulp of y.
    Absolute errors are meant for float32 and scale with u / 2^-24.
    """

    ulps: float
    ulps_per_x: float = 0.0
    absolute: float = 0.0
    low: float = -inf
    high: float = inf
    outside: float = 0.0

    def error(self, y: Tensor, x: Tensor | None, unit: float) -> Tensor:
        """The bound at each element; ``y`` exact results, ``x`` arguments (float64), ``unit`` the unit roundoff."""
        bound = y.abs() * (2 * unit * self.ulps)
        scale = unit * 2**24
        everywhere = self.low == -inf and self.high == inf
        if x is None or (everywhere and not self.ulps_per_x):
            return bound.clamp(min=self.absolute * scale) if everywhere and self.absolute else bound
        if self.ulps_per_x:
            bound = bound + y.abs() * x.abs() * (2 * unit * self.ulps_per_x)
        if not self.absolute:
            return bound
        if everywhere:
            return bound.clamp(min=self.absolute * scale)
        inside = (x >= self.low) & (x <= self.high)
        return torch.where(inside, bound.clamp(min=self.absolute * scale), bound.clamp(min=self.outside * scale))


@dataclass(frozen=True)
class Accuracy:
    """What a careful implementation reaches, and what a device specification allows."""

    careful: Model
    allowed: Model


def _both(ulps: float, allowed: float | None = None) -> Accuracy:
    return Accuracy(Model(ulps), Model(ulps if allowed is None else allowed))


#: Correct rounding (half an ulp); WGSL lets "correctly rounded" be either neighbour.
CORRECT = _both(0.5, 1.0)
#: Several correctly rounded steps in a row without cancellation.
TWO_STEPS = _both(1.0, 2.0)
#: Operators tagged pointwise that have no line below: the largest entry of the OpenCL table.
UNKNOWN = _both(16.0)

_EXP = Accuracy(Model(3.0), Model(3.0, ulps_per_x=2.0))  # OpenCL 3; WGSL 3 + 2|x|
_LOG = Accuracy(Model(3.0), Model(3.0, absolute=2.0**-21, low=0.5, high=2.0))  # OpenCL 3; WGSL 2^-21 on [0.5, 2]
_SIN = Accuracy(  # OpenCL 4; WGSL 2^-11 on [-pi, pi] and nothing said outside, where 2^-14 is what adapters reach
    Model(4.0), Model(4.0, absolute=2.0**-11, low=-pi, high=pi, outside=2.0**-14)
)

FUNCTIONS: dict[str, Accuracy] = {
    "add": CORRECT,
    "mul": CORRECT,
    "div": _both(0.5, 2.5),  # IEEE 754; OpenCL and WGSL 2.5
    "sqrt": _both(0.5, 4.5),  # IEEE 754; WGSL: 1 / inverseSqrt, 2 + 2.5
    "rsqrt": _both(2.0),  # OpenCL and WGSL 2
    "reciprocal": _both(0.5, 2.5),
    "exp": _EXP,
    "exp2": _EXP,
    "expm1": Accuracy(Model(3.0), Model(8.0, ulps_per_x=2.0)),  # OpenCL 3; WGSL: from exp, as sinh below
    "log": _LOG,
    "log2": _LOG,
    "log10": _LOG,
    "log1p": _both(2.0, 4.0),
    "sin": _SIN,
    "cos": _SIN,
    "tan": _both(5.0),  # and what sin / cos inherits (elementwise.py)
    "asin": Accuracy(Model(4.0), Model(4096.0, absolute=6.81e-5)),  # WGSL: the worse of the two (by atan2)
    "acos": Accuracy(Model(4.0), Model(4096.0, absolute=6.77e-5)),
    "atan": _both(5.0, 4096.0),
    "atan2": _both(6.0, 4096.0),
    "sinh": Accuracy(Model(4.0), Model(8.0, ulps_per_x=2.0)),  # WGSL: from exp; its cancellation near 0 is not let pass
    "cosh": Accuracy(Model(4.0), Model(8.0, ulps_per_x=2.0)),
    "tanh": Accuracy(Model(5.0), Model(5.0, absolute=1e-5)),
    "asinh": _both(4.0, 64.0),
    "acosh": _both(4.0, 64.0),  # and what log(x + sqrt(x² - 1)) inherits
    "atanh": _both(5.0, 64.0),
    "erf": Accuracy(Model(16.0), Model(16.0, absolute=1e-6)),  # OpenCL 16; no WGSL built-in: short polynomials, 1e-6
    "erfc": _both(16.0),
    "pow": _both(16.0),
    "hypot": _both(4.0, 8.0),
    # Inside composites a platform without expm1 and log1p may write exp(x) - 1 and log(1 + x).
    "expm1 inside": Accuracy(Model(3.0), Model(6.0, ulps_per_x=2.0, absolute=2.0**-21, high=1.0)),
    "log1p inside": Accuracy(Model(2.0), Model(4.0, absolute=2.0**-21, high=1.0)),
}
