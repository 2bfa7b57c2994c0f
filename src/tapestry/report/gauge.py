"""The whole-model check as a drawing: source error and target error on one logarithmic axis up to the bound."""

from __future__ import annotations

from dataclasses import dataclass

from tapestry.migration.result import Check
from tapestry.report.scale import LogScale, Tick

_WIDTH, _LEFT, _RIGHT = 340.0, 18.0, 322.0


@dataclass(frozen=True)
class Gauge:
    """Positions along the axis, in SVG units of a drawing ``width`` wide.

    ``source`` and ``bound`` are None for a check that was not completed.
    """

    width: float
    left: float
    right: float
    ticks: tuple[Tick, ...]
    got: float
    source: float | None
    bound: float | None


def gauge(check: Check) -> Gauge:
    """Place the check's numbers; an error of 0 is at the left end, an infinite one at the right."""
    scale = LogScale.over((check.max_rel_error, check.source_error, check.bound), _LEFT, _RIGHT)
    got = scale.at(check.max_rel_error)
    if check.bound <= 0.0:
        return Gauge(_WIDTH, _LEFT, _RIGHT, scale.ticks, got, None, None)
    return Gauge(_WIDTH, _LEFT, _RIGHT, scale.ticks, got, scale.at(check.source_error), scale.at(check.bound))
