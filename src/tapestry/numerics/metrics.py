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
        error, size = (got - want).abs(), want.abs()
        largest = float(error.max())
        self.want_squares += float(size.square().sum())
        if largest == 0.0:
            self.got_squares += float(size.square().sum())
            self.products += float(size.square().sum())
            return
        self.max_abs = max(self.max_abs, largest)
        self.error_squares += float(error.square().sum())
        self.got_squares += float(got.abs().square().sum())
        self.products += float((got * want.conj()).real.sum() if got.is_complex() else (got * want).sum())
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
