"""Histograms: counts are exact, except for values within rounding of an edge between two bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from tapestry.numerics.bounded import Bounded
from tapestry.numerics.formulas.call import Formula, FormulaCall

#: Roundings of (x - low) * (bins / (high - low)), in units of roundoff at the number of bins.
_EDGE_UNITS = 8.0


def _histc(call: FormulaCall) -> tuple[Bounded, ...]:
    x, bins = call.value("self").value.flatten(), int(call.number("bins", 100.0))
    low, high = call.number("min", 0.0), call.number("max", 0.0)
    if low == high and x.numel():
        low, high = float(x.min()), float(x.max())
    if low == high:
        low, high = low - 1.0, high + 1.0
    unsure = _unsure(x, low, high, bins, call.arithmetic.unit)
    return (Bounded(unsure, unsure, call.arithmetic),)


def _unsure(x: Tensor, low: float, high: float, bins: int, unit: float) -> Tensor:
    """For each bin, how many values lie within rounding of its edges: they may be counted next door."""
    inside = x[(x >= low) & (x <= high)]
    place = (inside - low) * (bins / (high - low))
    edge = place.round()
    scale = bins * (1.0 + max(abs(low), abs(high)) / (high - low))
    near = ((place - edge).abs() <= _EDGE_UNITS * unit * scale) & (edge > 0) & (edge < bins)
    edges = edge[near].to(torch.int64)
    counts = torch.zeros(bins + 1, dtype=torch.float64)
    counts.scatter_add_(0, edges, torch.ones_like(edges, dtype=torch.float64))
    return counts[:-1] + counts[1:]


def _histogram(call: FormulaCall) -> tuple[Bounded, ...] | None:
    if call.bound.get("weight") is not None or call.flag("density"):
        return None
    bins = call.bound["bins"]
    if isinstance(bins, Tensor):
        nothing = call.arithmetic.exact(torch.zeros((), dtype=torch.float64))
        return (nothing, nothing)
    x = call.value("self").value.flatten()
    given = cast(Sequence[float] | None, call.bound.get("range"))
    low, high = given or (float(x.min()), float(x.max()))
    if low == high:
        low, high = low - 1.0, high + 1.0
    unsure = _unsure(x, low, high, int(cast(int, bins)), call.arithmetic.unit)
    edges = torch.tensor(_EDGE_UNITS * call.arithmetic.unit * max(abs(low), abs(high)), dtype=torch.float64)
    return (Bounded(unsure, unsure, call.arithmetic), Bounded(edges, edges, call.arithmetic))


FORMULAS: dict[str, Formula] = {"histc": _histc, "histogram": _histogram}
