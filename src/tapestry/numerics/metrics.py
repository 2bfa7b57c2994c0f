"""Error metrics between a result and the oracle's, merged over the results of a case. No verdicts here."""

from __future__ import annotations

from dataclasses import dataclass
from math import log10, sqrt

import torch
from torch import Tensor

from tapestry.numerics.formats import is_inexact, spacing
from tapestry.numerics.judgement import Metrics


@dataclass
class ErrorSums:
    """Running maxima and sums over the outputs of one case."""

    max_ulp: float = 0.0
    max_rel: float = 0.0
    max_abs: float = 0.0
    error_squares: float = 0.0
    want_squares: float = 0.0
    got_squares: float = 0.0
    products: float = 0.0

    def add(self, got: Tensor, want: Tensor, declared: torch.dtype) -> None:
        """One output's compared elements: finite float64 or complex128 tensors of one shape, any layout."""
        if got.numel() == 0:
            return
        got, want = got.flatten(), want.flatten()
        error, size = (got - want).abs(), want.abs()
        largest, squares = float(error.max()), float(torch.dot(size, size))
        self.want_squares += squares
        if largest == 0.0:
            self.got_squares += squares
            self.products += squares
            return
        self.max_abs = max(self.max_abs, largest)
        self.error_squares += float(torch.dot(error, error))
        self.got_squares += float(torch.vdot(got, got).real)
        self.products += float(torch.vdot(want, got).real)
        relative = torch.where(size > 0, error / size, 0.0)
        self.max_rel = max(self.max_rel, float(relative.max()))
        ulps = error / spacing(want.abs(), declared) if is_inexact(declared) else error
        self.max_ulp = max(self.max_ulp, float(ulps.max()))

    def finished(self) -> Metrics:
        """The metrics of everything added."""
        if self.error_squares == 0.0:
            return Metrics()
        norms = sqrt(self.want_squares) * sqrt(self.got_squares)
        nmse = self.error_squares / self.want_squares if self.want_squares else float("inf")
        snr = -10 * log10(nmse) if 0.0 < nmse < float("inf") else None
        return Metrics(self.max_ulp, self.max_rel, self.max_abs, nmse, self.products / norms if norms else 0.0, snr)
