"""First-order running error analysis: float64 values that carry a bound on what float32 could have made of them.

Each operation propagates the bounds of its operands (N. J. Higham, Accuracy and Stability of Numerical Algorithms,
2nd ed., section 3.3) and adds its own rounding. A bound is never used to judge non-finite values, so it is 0 there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod, sqrt

import torch
from torch import Tensor

from tapestry.numerics.accuracy import FUNCTIONS, Model

#: Terms of one magnitude (magnitude² >= COHERENCE n walk²), added one by one: n COHERENT_FACTOR eps, at most the limit.
COHERENCE, COHERENT_FACTOR, COHERENT_LIMIT = 0.99, 0.25, 2048.0
#: Small terms that large ones swallow, one by one, all round the same way: the constant of plain sums again.
ALLOWED_SUMS = 2.0
#: Below this length the probabilistic bound is the larger one.
COHERENT_FROM = 16

#: The bound of an exact value.
_NOTHING = torch.zeros((), dtype=torch.float64)

Dims = int | tuple[int, ...]


@lru_cache(maxsize=256)
def _number(number: float) -> Tensor:
    return torch.tensor(number, dtype=torch.float64)


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic that is allowed for: its roundoff and underflow, and the column of the accuracy table."""

    unit: float
    column: str  # "careful" or "allowed": a field of Accuracy
    smallest: float = 2.0**-126  # the smallest normal number
    largest: float = 3.4028234663852886e38  # sums beyond it may overflow on the way, in one order or another
    storage: float = (
        0.0  # roundoff of a 16-bit format that what lies between two operators may be stored in; 0: none may
    )
    overflows: list[Tensor] = field(default_factory=list[Tensor], compare=False, repr=False)

    def look(self, magnitude: Tensor) -> None:
        """Remember where a sum of magnitudes (summed axes kept as size 1) leaves the range."""
        beyond = magnitude > self.largest
        if bool(beyond.any()):
            self.overflows.append(beyond)

    def model(self, function: str) -> Model:
        return getattr(FUNCTIONS[function], self.column)

    def exact(self, value: Tensor) -> Bounded:
        """A value that carries no error: an input."""
        return Bounded(value, _NOTHING, self)

    def constant(self, number: float) -> Bounded:
        """A number written into the formula, rounded once."""
        value = _number(number)
        return Bounded(value, value.abs() * self.unit, self)


@dataclass(frozen=True)
class Bounded:
    """``value``: exact to first order; ``bound``: how far float32 may be from it. Shapes broadcast together."""

    value: Tensor
    bound: Tensor
    arithmetic: Arithmetic

    def _rounded(self, value: Tensor, carried: Tensor, function: str, x: Tensor | None = None) -> Bounded:
        own = self.arithmetic.model(function).error(value, x, self.arithmetic.unit)
        if function != "add":  # sums do not underflow; anything else may be flushed to zero
            own = own + self.arithmetic.smallest
        return self._like(value, carried + own)

    def _like(self, value: Tensor, bound: Tensor) -> Bounded:
        return Bounded(value, bound.nan_to_num(nan=0.0, posinf=0.0), self.arithmetic)

    def _lift(self, other: Bounded | float) -> Bounded:
        return other if isinstance(other, Bounded) else self.arithmetic.constant(other)

    def __add__(self, other: Bounded | float) -> Bounded:
        right = self._lift(other)
        return self._rounded(self.value + right.value, self.bound + right.bound, "add")

    def __sub__(self, other: Bounded | float) -> Bounded:
        right = self._lift(other)
        return self._rounded(self.value - right.value, self.bound + right.bound, "add")

    def __mul__(self, other: Bounded | float) -> Bounded:
        right = self._lift(other)
        carried = self.bound * right.value.abs() + right.bound * self.value.abs()
        return self._rounded(self.value * right.value, carried, "mul")

    def __truediv__(self, other: Bounded | float) -> Bounded:
        right = self._lift(other)
        value = self.value / right.value
        return self._rounded(value, (self.bound + right.bound * value.abs()) / right.value.abs(), "div")

    def __neg__(self) -> Bounded:
        return Bounded(-self.value, self.bound, self.arithmetic)

    def stored(self) -> Bounded:
        """What is written to memory in between, by one kernel for the next."""
        storage = self.arithmetic.storage
        return self._like(self.value, self.bound + self.value.abs() * storage) if storage else self

    def scaled_exactly(self, power_of_two: float) -> Bounded:
        """Times a power of two, which does not round."""
        return Bounded(self.value * power_of_two, self.bound * abs(power_of_two), self.arithmetic)

    def abs(self) -> Bounded:
        return Bounded(self.value.abs(), self.bound, self.arithmetic)

    def square(self) -> Bounded:
        return self * self

    def exp(self) -> Bounded:
        value = self.value.exp()
        return self._rounded(value, value * torch.expm1(self.bound.clamp(max=80.0)), "exp", self.value)

    def expm1(self) -> Bounded:
        value = torch.expm1(self.value)
        return self._rounded(value, (value + 1) * self.bound, "expm1 inside", self.value)

    def log(self) -> Bounded:
        return self._rounded(self.value.log(), self.bound / self.value.abs(), "log", self.value)

    def log1p(self) -> Bounded:
        return self._rounded(torch.log1p(self.value), self.bound / (1 + self.value).abs(), "log1p", self.value)

    def exp2(self) -> Bounded:
        value = self.value.exp2()
        return self._rounded(value, value * torch.expm1(self.bound.clamp(max=80.0)), "exp2", self.value)

    def log2(self) -> Bounded:
        return self._rounded(self.value.log2(), 1.4426950408889634 * self.bound / self.value.abs(), "log2", self.value)

    def log1p_by_log(self) -> Bounded:
        """log1p where a platform without it may write log(1 + x)."""
        carried = self.bound / (1 + self.value).abs()
        return self._rounded(torch.log1p(self.value), carried, "log1p inside", self.value)

    def sin(self) -> Bounded:
        return self._rounded(self.value.sin(), self.bound.clamp(max=2.0), "sin", self.value)

    def cos(self) -> Bounded:
        return self._rounded(self.value.cos(), self.bound.clamp(max=2.0), "cos", self.value)

    def power(self, exponent: float) -> Bounded:
        """|x| to a constant power. Around 0 the larger of both ends is taken, where the derivative is useless."""
        size = self.value.abs()
        value = size**exponent
        carried = (abs(exponent) * size ** (exponent - 1) * self.bound).nan_to_num(nan=0.0, posinf=torch.inf)
        if exponent > 0:
            carried = torch.minimum(carried, (size + self.bound) ** exponent)
        result = self._rounded(value, carried, "pow")
        if self.arithmetic.column == "careful":
            return result
        slack = power_slack(size, torch.tensor(exponent, dtype=torch.float64), self.arithmetic.unit)
        return result.widened(value * slack)

    def sqrt(self) -> Bounded:
        value = self.value.sqrt()
        # near zero sqrt(v + b) - sqrt(v) <= sqrt(b), where the derivative is useless
        carried = torch.minimum(self.bound / (2 * value), self.bound.sqrt())
        return self._rounded(value, torch.where(value == 0, self.bound.sqrt(), carried), "sqrt")

    def rsqrt(self) -> Bounded:
        value = self.value.rsqrt()
        return self._rounded(value, self.bound * value / (2 * self.value), "rsqrt")

    def tanh(self) -> Bounded:
        value = self.value.tanh()
        return self._rounded(value, (1 - value * value) * self.bound, "tanh", self.value)

    def erf(self) -> Bounded:
        slope = torch.exp(-self.value * self.value) * 1.1283791670955126  # 2 / sqrt(pi)
        return self._rounded(torch.erf(self.value), slope * self.bound, "erf", self.value)

    def erfc(self) -> Bounded:
        slope = torch.exp(-self.value * self.value) * 1.1283791670955126
        return self._rounded(torch.erfc(self.value), slope * self.bound, "erfc", self.value)

    def widened(self, extra: Tensor) -> Bounded:
        """The same value with a further error of at most ``extra``."""
        return self._like(self.value, self.bound + extra)

    def maximum(self, other: Bounded) -> Bounded:
        return Bounded(torch.maximum(self.value, other.value), torch.maximum(*self._bounds(other)), self.arithmetic)

    def clamp(self, low: float | None, high: float | None) -> Bounded:
        """Between ``low`` and ``high``: where it is cut off for certain, no error is left."""
        value = self.value.clamp(low, high)
        above, below = (self.value + self.bound).clamp(low, high), (self.value - self.bound).clamp(low, high)
        return self._like(value, torch.maximum(above - value, value - below))

    def amax(self, dim: Dims) -> Bounded:
        """The largest along ``dim``, kept as size 1; the largest bound with it."""
        bound = self.bound.expand(self.value.shape)
        return Bounded(self.value.amax(dim, keepdim=True), bound.amax(dim, keepdim=True), self.arithmetic)

    def amin(self, dim: Dims) -> Bounded:
        """The smallest along ``dim``, kept as size 1; the largest bound with it."""
        return -(-self).amax(dim)

    def sum(self, dim: Dims) -> Bounded:
        """The sum along ``dim``, kept as size 1. Own error: sum_error (probabilistic, see products.py)."""
        value = self.value.sum(dim, keepdim=True)
        carried = self.bound.expand(self.value.shape).sum(dim, keepdim=True)
        magnitude = self.value.abs().sum(dim, keepdim=True)
        self.arithmetic.look(magnitude)
        length = self._length(dim)
        own = magnitude * sum_error(length, self.arithmetic.unit)
        if self.arithmetic.column == "allowed":
            own = own * ALLOWED_SUMS
        if self.arithmetic.column == "allowed" and length >= COHERENT_FROM:
            squares = self.value.square().sum(dim, keepdim=True)
            one_by_one = magnitude * coherent_error(length, self.arithmetic.unit)
            own = torch.where(magnitude.square() >= COHERENCE * length * squares, torch.maximum(own, one_by_one), own)
        return self._like(value, carried + own)

    def cumsum(self, dim: int) -> Bounded:
        """Running sums along ``dim``; each has the own error of a sum of as many terms."""
        carried = self.bound.expand(self.value.shape).cumsum(dim)
        count = torch.ones_like(self.value).cumsum(dim)
        own = self.value.abs().cumsum(dim) * count.sqrt() * sum_error(1, self.arithmetic.unit)
        return self._like(self.value.cumsum(dim), carried + own)

    def mean(self, dim: Dims) -> Bounded:
        """The mean along ``dim``, kept as size 1: the sum, divided by the (exact) count."""
        total = self.sum(dim)
        count = torch.tensor(float(self._length(dim)), dtype=torch.float64)
        return total / self.arithmetic.exact(count)

    def matmul(self, other: Bounded) -> Bounded:
        """The matrix product over the last two dimensions; its own error as for ``sum`` over the inner one.

        Each of the products that are summed may underflow.
        """
        magnitude = self.value.abs() @ other.value.abs()
        self.arithmetic.look(magnitude.amax(-1, keepdim=True) if magnitude.numel() else magnitude)
        left = self.bound.expand(self.value.shape) @ other.value.abs()
        right = self.value.abs() @ other.bound.expand(other.value.shape)
        inner = self.value.shape[-1]
        own = magnitude * sum_error(inner, self.arithmetic.unit) + inner * self.arithmetic.smallest
        return self._like(self.value @ other.value, left + right + own)

    def mixed_by(self, weight: Bounded) -> Bounded:
        """``self @ weight`` where errors of the inner elements are independent: they add up as random signs do.

        For recurrences, in which a worst case over thousands of steps would say nothing.
        """
        left = (self.bound.expand(self.value.shape).square() @ weight.value.square()).sqrt()
        own = (self.value.abs() @ weight.value.abs()) * sum_error(self.value.shape[-1], self.arithmetic.unit)
        return self._like(self.value @ weight.value, left + own)

    def where(self, condition: Tensor, other: Bounded) -> Bounded:
        """This value where ``condition`` holds, else ``other``."""
        bounds = torch.where(condition, *self._bounds(other))
        return Bounded(torch.where(condition, self.value, other.value), bounds, self.arithmetic)

    def apply(self, change: Callable[[Tensor], Tensor]) -> Bounded:
        """The result of rearranging elements (reshape, transpose, expand, index)."""
        return Bounded(change(self.value), change(self.bound.expand(self.value.shape)), self.arithmetic)

    def _bounds(self, other: Bounded) -> tuple[Tensor, Tensor]:
        return self.bound, other.bound

    def _length(self, dim: Dims) -> int:
        shape = self.value.shape
        if not shape:
            return 1
        return prod(shape[d] for d in ((dim,) if isinstance(dim, int) else dim)) if dim != () else prod(shape)


def sum_error(length: int, unit: float) -> float:
    """Relative to the sum of magnitudes, what adding ``length`` terms in any sensible order may lose: 2 sqrt(n) u.

    Probabilistic bound (N. J. Higham and T. Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J.
    Sci. Comput. 41(5), 2019), with the constant calibrated in docs/numerics.md; at least one rounding.
    """
    return 2.0 * sqrt(max(length, 1)) * unit


def coherent_error(length: int, unit: float) -> float:
    """The same where all terms have one magnitude, so that one rounding repeats: n / 4 eps, at most 2048 eps."""
    return 2 * unit * max(min(length * COHERENT_FACTOR, COHERENT_LIMIT), sqrt(length))


def power_slack(base: Tensor, exponent: Tensor, unit: float) -> Tensor:
    """Relative error of x^y as WGSL inherits it from exp2(y * log2(x)), t = y log2 |x|.

    The power's 2|t| + 3 ulp, the product's and the logarithm's 4 ulp of t, or the logarithm's 2^-21.
    """
    logarithm = base.abs().log2()
    slack = 2 * unit * (4 * (exponent * logarithm).abs() + 3) + exponent.abs() * 2.0**-21 * (unit * 2**24)
    return slack.nan_to_num(nan=0.0, posinf=0.0)
