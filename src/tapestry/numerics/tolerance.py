"""Tolerance classes: which one an operator's result belongs to, and the bound it gives. Compares nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tapestry.numerics import elementwise, products
from tapestry.numerics.arguments import names
from tapestry.numerics.bounded import Arithmetic
from tapestry.numerics.exact import is_exact
from tapestry.numerics.facts import CallFacts
from tapestry.numerics.formats import accumulation_dtype, largest, smallest_normal, unit_roundoff
from tapestry.numerics.formulas import FORMULAS, FormulaCall
from tapestry.numerics.normwise import ALLOWED_FACTOR, NORMWISE
from tapestry.numerics.products import Terms

EXACT = "exact"
ELEMENTWISE = "elementwise"
SUM = "sum of products"
COMPOSITE = "composite"
PRODUCT = "product"
NORMWISE_KIND = "in norm"
GRID = "grid"
INTERPOLATION = "interpolation"
UNKNOWN = "unknown: scaled by the source"
UNKNOWN_POINTWISE = "unknown pointwise: scaled by the source"

_GRIDS = names("arange linspace logspace range hann_window hamming_window blackman_window bartlett_window")
_INTERPOLATIONS = names("""
    upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa
    _upsample_bicubic2d_aa grid_sampler grid_sampler_2d grid_sampler_3d affine_grid_generator""")
#: Complex results are judged by the modulus of the error; these have a bound of their own.
_COMPLEX_ELEMENTWISE = names("add sub mul div exp reciprocal square")
#: The unknown class: units of roundoff at the largest expected value, and times the source's own largest error.
_UNKNOWN_UNITS, _UNKNOWN_SOURCE = 32.0, 4.0
_GRID_UNITS = 4.0
_INTERPOLATION_UNITS = 16.0
#: Relative error, in units of the roundoff computed in, up to which a sum or composite passes without its bound.
_QUICK_UNITS = 4.0


def class_of(facts: CallFacts) -> str:
    """The tolerance class of the call's floating results."""
    if is_exact(facts):
        return EXACT
    if facts.has_complex:
        return _class_of_complex(facts)
    if facts.name in FORMULAS:
        return COMPOSITE
    if products.is_product(facts):
        return PRODUCT
    if products.is_sum(facts):
        return SUM
    if facts.name in NORMWISE:
        return NORMWISE_KIND
    if elementwise.known(facts):
        return ELEMENTWISE
    if facts.name in _GRIDS:
        return GRID
    if facts.name in _INTERPOLATIONS:
        return INTERPOLATION
    return UNKNOWN_POINTWISE if torch.Tag.pointwise in facts.target.tags else UNKNOWN


def _class_of_complex(facts: CallFacts) -> str:
    if products.is_sum(facts):
        return SUM
    if facts.name in _COMPLEX_ELEMENTWISE and facts.bound.get("alpha", 1) == 1:
        return ELEMENTWISE
    if facts.name in NORMWISE:
        return NORMWISE_KIND
    return UNKNOWN_POINTWISE if torch.Tag.pointwise in facts.target.tags else UNKNOWN


@dataclass(frozen=True)
class Tolerance:
    """The bound for one floating result: ``want`` in float64, ``declared`` its dtype, ``source`` eager's result."""

    facts: CallFacts
    index: int
    want: Tensor
    declared: torch.dtype
    source: Tensor | None

    @cached_property
    def kind(self) -> str:
        kind = self._class
        if self.want.numel() == 0:
            return kind
        if kind == COMPOSITE and self._composite("careful") is None:
            kind = NORMWISE_KIND if self.facts.name in NORMWISE else UNKNOWN
        return UNKNOWN if kind == NORMWISE_KIND and self._normwise is None else kind

    @cached_property
    def _class(self) -> str:
        return class_of(self.facts)

    @property
    def is_exact(self) -> bool:
        """Whether no bound is needed: equality decides."""
        return self._class == EXACT

    @property
    def judged_by(self) -> str:
        """The class that decided: without asking a formula that nothing has needed."""
        return self.__dict__.get("kind", self._class)

    @cached_property
    def unit(self) -> float:
        """Unit roundoff of the arithmetic; doubled for float64, where the oracle itself is no better."""
        own = unit_roundoff(accumulation_dtype(self.declared))
        return 2 * own if self.declared.itemsize > 4 and self.declared != torch.complex64 else own

    def quick(self) -> Tensor:
        """A bound that is never above the class's own: what passes it needs no further look."""
        if self._class in (ELEMENTWISE, EXACT, GRID):
            return torch.zeros(())
        return self.want.abs() * (_QUICK_UNITS * self.unit) + self._output_rounding("careful")

    def bound(self, column: str) -> Tensor:
        """What each element may be off by; ``column`` is ``careful`` or ``allowed``."""
        if self.want.numel() == 0:  # formulas know nothing of it, such as the statistics of a batch norm for inference
            return torch.zeros(self.want.shape, dtype=torch.float64)
        if self.kind == SUM:
            return products.element_bound(self.terms, self.declared, column) + self._floor(column)
        return self._inner(column) + self._output_rounding(column)

    def rms_bound(self, keep: Tensor) -> float | None:
        """What the rms error over the kept elements may be; None where only elements count."""
        if self.kind != SUM or int(keep.sum()) < products.RMS_ELEMENTS:
            return None
        bound = products.rms_bound(self.terms, self.declared, keep)
        floor = self._floor("allowed").expand(keep.shape)[keep]
        return None if bound is None else bound + float(floor.square().mean().sqrt())

    def overflows(self, shape: torch.Size) -> Tensor:
        """Where a sum on the way leaves the range of the arithmetic (bool, of this shape), so that there is no telling.

        A sum of finite float32 values near the end of their range overflows in one order of adding and not in
        another. 16-bit operands are summed in float32, which they cannot leave.
        """
        found = torch.zeros(shape, dtype=torch.bool)
        if self.want.is_complex():
            return found
        for beyond in self._overflowing:
            try:
                found = found | beyond.expand(shape)
            except RuntimeError:  # of other axes than the result: every element may have read it
                return torch.ones(shape, dtype=torch.bool)
        return found

    @cached_property
    def _overflowing(self) -> list[Tensor]:
        end = largest(accumulation_dtype(self.declared))
        if self.kind == SUM:
            averaged = self.facts.name in products.AVERAGED
            return [self.terms.magnitude * (self.terms.length if averaged else 1.0) > end]
        if self.kind != COMPOSITE:
            return []
        arithmetic = Arithmetic(self.unit, "careful", largest=end)
        FORMULAS[self.facts.name](FormulaCall(self.facts.wide, arithmetic))
        return arithmetic.overflows

    @cached_property
    def terms(self) -> Terms:
        return Terms(self.facts, self.index, self.want)

    def _inner(self, column: str) -> Tensor:
        if self.kind == ELEMENTWISE:
            return elementwise.bound(self.facts, self.want, self.unit, unit_roundoff(self.declared), column)
        if self.kind == COMPOSITE:
            bound = self._composite(column)
            assert bound is not None
            return bound
        if self.kind == NORMWISE_KIND:
            assert self._normwise is not None
            return self._normwise * (self.unit * (ALLOWED_FACTOR if column == "allowed" else 1.0))
        if self.kind == PRODUCT:
            return self.terms.length * self.want.abs() * self.unit
        if self.kind == GRID:
            return _largest(self.want) * (_GRID_UNITS * self.unit)
        if self.kind == INTERPOLATION:
            return self._interpolation()
        return self._unknown()

    @cached_property
    def _normwise(self) -> Tensor | None:
        size = NORMWISE[self.facts.name](self.facts, self.index, self.want)
        return None if size is None else size.abs()

    def _composite(self, column: str) -> Tensor | None:
        return self._careful_formula if column == "careful" else self._allowed_formula

    @cached_property
    def _careful_formula(self) -> Tensor | None:
        return self._formula("careful", 0.0)

    @cached_property
    def _allowed_formula(self) -> Tensor | None:
        return self._formula("allowed", unit_roundoff(self.declared) if products.is_narrow(self.declared) else 0.0)

    def _formula(self, column: str, storage: float) -> Tensor | None:
        smallest = smallest_normal(accumulation_dtype(self.declared))
        results = FORMULAS[self.facts.name](
            FormulaCall(self.facts.wide, Arithmetic(self.unit, column, smallest, storage=storage))
        )
        if results is None or self.index >= len(results):
            return None
        result = results[self.index]
        return None if result is None or not _fits(result.bound, self.want) else result.bound

    def _interpolation(self) -> Tensor:
        """Weights come from coordinates, which round at the size of the map."""
        operand = next((value for value in self.facts.wide.values() if isinstance(value, Tensor)), self.want)
        size = max([1, *operand.shape[2:], *self.want.shape[2:]])
        return _largest(operand) * (_INTERPOLATION_UNITS * self.unit * size)

    def _unknown(self) -> Tensor:
        size = self.want.abs() if self.kind == UNKNOWN_POINTWISE else _largest(self.want)
        base = size * (_UNKNOWN_UNITS * self.unit)
        if self.source is None or self.source.shape != self.want.shape:
            return base
        return base + _UNKNOWN_SOURCE * _largest(self.source.to(self.want.dtype) - self.want)

    def _output_rounding(self, column: str) -> Tensor:
        floor = self._floor(column)
        if not products.is_narrow(self.declared):
            return floor
        units = 1.0 + 2.0**-9 if column == "careful" else 2.0
        return self.want.abs() * (unit_roundoff(self.declared) * units) + floor

    def _floor(self, column: str) -> Tensor:
        """Absolute room for what is too small for the declared format.

        In a wide format the smallest normal number, which is nothing to the values of a model. Float16's is 6e-5, and
        so only what must have it gets it: results that are flushed to zero, or all where operands may have been.
        """
        smallest = smallest_normal(self.declared)
        if not products.is_narrow(self.declared):
            return torch.tensor(smallest, dtype=torch.float64)
        spacing = torch.tensor(smallest * unit_roundoff(self.declared), dtype=torch.float64)  # half of it
        if column == "careful":
            return spacing
        if self.facts.has_subnormal:
            return torch.tensor(smallest, dtype=torch.float64)
        size = self.want.abs()
        return torch.where(size <= smallest, torch.maximum(size, 2 * spacing), 2 * spacing)


def _fits(bound: Tensor, want: Tensor) -> bool:
    """Whether a formula's bound is about this result: a kernel may take operands that the formula broadcasts."""
    try:
        return torch.broadcast_shapes(bound.shape, want.shape) == want.shape
    except RuntimeError:
        return False


def _largest(value: Tensor) -> Tensor:
    magnitudes = value.abs().nan_to_num(nan=0.0, posinf=0.0)
    return magnitudes.max() if magnitudes.numel() else torch.zeros((), dtype=torch.float64)
