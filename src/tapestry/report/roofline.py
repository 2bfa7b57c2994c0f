"""The roofline of a device as a drawing: regions by operations per byte and achieved rate, under both roofs, log-log.

Geometry only, in SVG units; the template turns it into markup and the style sheet into colours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tapestry.profiling.result import RegionProfile, Roofs
from tapestry.report import numbers
from tapestry.report.scale import LogScale, Tick

_LEFT, _RIGHT, _TOP, _HEIGHT, _BOTTOM = 52.0, 16.0, 20.0, 300.0, 40.0
#: The radius of a region that takes all the time, and of one that takes none.
_LARGEST, _SMALLEST = 16.0, 3.0
#: Width of a letter of a label and height of its line, about, and how many points are named.
_LETTER, _LINE, _MOST_LABELS = 6.6, 12.0, 8


@dataclass(frozen=True)
class RoofPoint:
    """One row: where it is, its radius by its share of all time (by area), which roof it is under, and its text."""

    x: float
    y: float
    radius: float
    look: str
    text: str


@dataclass(frozen=True)
class Label:
    """The name of a point, from ``x`` on or up to it (``anchor`` as in SVG)."""

    x: float
    y: float
    anchor: str
    text: str


@dataclass(frozen=True)
class Roofline:
    """The drawing. Paths are SVG path data; ``ridge`` is where the roofs meet."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    roof: str
    ridge_x: float
    ridge_y: float
    points: tuple[RoofPoint, ...]
    labels: tuple[Label, ...]


def roofline(rows: Sequence[RegionProfile], roofs: Roofs, width: float) -> Roofline:
    """Draw rows that have operations, bytes and a rate, of which there must be at least one; large ones lie behind."""
    right, bottom = width - _RIGHT, _TOP + _HEIGHT
    along = LogScale.over([*(row.intensity for row in rows), roofs.ridge], _LEFT, right)
    rates = [(row.flops_per_second or 0.0) / 1e9 for row in rows]
    up = LogScale.over([*rates, roofs.flops_per_second / 1e9], bottom, _TOP)
    total = sum(row.seconds for row in rows)
    ordered = sorted(zip(rows, rates, strict=True), key=lambda pair: -pair[0].seconds)
    ridge = along.at(roofs.ridge), up.at(roofs.flops_per_second / 1e9)
    points = [
        RoofPoint(along.at(row.intensity), up.at(rate), _radius(row.seconds, total), row.bound, _text(row))
        for row, rate in ordered
    ]
    return Roofline(
        width=width,
        height=bottom + _BOTTOM,
        left=_LEFT,
        right=right,
        top=_TOP,
        bottom=bottom,
        x_ticks=_plain(along.ticks),
        y_ticks=_plain(up.ticks),
        roof=_roof(roofs, along, up, ridge, right),
        ridge_x=ridge[0],
        ridge_y=ridge[1],
        points=tuple(points),
        labels=tuple(_labels([row for row, _ in ordered], points, right)),
    )


def _labels(rows: Sequence[RegionProfile], points: Sequence[RoofPoint], right: float) -> Iterator[Label]:
    """Names of the points with the most headroom, as far as they have room beside each other and the dots."""
    taken = [(point.x - point.radius, point.x + point.radius, point.y) for point in points]
    ranked = sorted(zip(rows, points, strict=True), key=lambda pair: -(pair[0].headroom_seconds or 0.0))
    given: set[str] = set()
    for row, point in ranked[:_MOST_LABELS]:
        name = row.kind.replace("aten.", "").replace(".default", "")
        width = _LETTER * len(name)
        after = point.x + point.radius + 4
        fits = after + width <= right
        begin = after if fits else point.x - point.radius - 4 - width
        free = all(begin + width < low or begin > high or abs(y - point.y) > _LINE for low, high, y in taken)
        if free and name not in given:
            given.add(name)
            taken.append((begin, begin + width, point.y))
            yield Label(begin if fits else begin + width, point.y + 4, "start" if fits else "end", name)


def _plain(ticks: Sequence[Tick]) -> tuple[Tick, ...]:
    return tuple(Tick(tick.at, f"{float(tick.label):,g}") for tick in ticks)


def _roof(roofs: Roofs, along: LogScale, up: LogScale, ridge: tuple[float, float], right: float) -> str:
    """From where the sloping roof enters the drawing, at its left side or its floor, over the ridge to the right."""
    slope = roofs.bytes_per_second / 1e9
    begin = max(10.0**along.low, 10.0**up.low / slope)
    return f"M{along.at(begin):.1f} {up.at(begin * slope):.1f}L{ridge[0]:.1f} {ridge[1]:.1f}H{right:.1f}"


def _radius(seconds: float, total: float) -> float:
    return _SMALLEST + (_LARGEST - _SMALLEST) * math.sqrt(seconds / total if total else 0.0)


def _text(row: RegionProfile) -> str:
    calls = numbers.plural(row.calls, "call")
    return (
        f"{row.kind} ({row.sites[0].module or row.sites[0].source}): {numbers.rate(row.flops_per_second)} GFLOP/s, "
        f"{numbers.of_roof(row.roof_share)} of the {row.bound} roof, {calls} of "
        f"{numbers.duration(row.timing.median if row.timing else None)}"
    )
