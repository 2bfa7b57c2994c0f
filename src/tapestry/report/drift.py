"""Errors along the depth of a model as a drawing: on the target and on the source, each operator against the oracle.

Geometry only, in SVG units; the template turns it into markup and the style sheet into colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tapestry.migration.result import DriftPoint
from tapestry.report import numbers
from tapestry.report.scale import LogScale, Tick, drawable

_LEFT, _RIGHT, _TOP, _HEIGHT, _BOTTOM = 46.0, 12.0, 24.0, 170.0, 14.0
#: Width of a letter of a label, about.
_LETTER = 6.6


@dataclass(frozen=True)
class Layer:
    """Nodes of one part of the model in a row: a strip, named where there is room."""

    x: float
    width: float
    label: str


@dataclass(frozen=True)
class Spot:
    """One node: its column, where its errors are drawn (None: exact or not finite), and what hovering says."""

    x: float
    left: float
    width: float
    target: float | None
    source: float | None
    text: str


@dataclass(frozen=True)
class DriftDrawing:
    """The drawing. Paths are SVG path data."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    layers: tuple[Layer, ...]
    ticks: tuple[Tick, ...]
    target_line: str
    source_line: str
    spots: tuple[Spot, ...]


def drift_drawing(points: Sequence[DriftPoint], width: float) -> DriftDrawing:
    """Draw the points from left to right on a drawing of this width; there must be at least one."""
    right, bottom = width - _RIGHT, _TOP + _HEIGHT
    column = (right - _LEFT) / len(points)
    scale = LogScale.over([value for point in points for value in (point.target, point.source)], bottom, _TOP)
    xs = [_LEFT + column * (place + 0.5) for place in range(len(points))]
    spots = tuple(
        Spot(x, x - column / 2, column, _y(point.target, scale), _y(point.source, scale), _text(point))
        for x, point in zip(xs, points, strict=True)
    )
    return DriftDrawing(
        width=width,
        height=bottom + _BOTTOM,
        left=_LEFT,
        right=right,
        top=_TOP,
        bottom=bottom,
        layers=_layers(points, column),
        ticks=scale.ticks,
        target_line=_line([(spot.x, spot.target) for spot in spots]),
        source_line=_line([(spot.x, spot.source) for spot in spots]),
        spots=spots,
    )


def _y(error: float, scale: LogScale) -> float | None:
    return scale.at(error) if drawable(error) else None


def _line(places: Sequence[tuple[float, float | None]]) -> str:
    """Straight pieces between neighbours that both have a place."""
    path, joined = "", False
    for x, y in places:
        if y is None:
            joined = False
            continue
        path += f"{'L' if joined else 'M'}{x:.1f} {y:.1f}"
        joined = True
    return path


def _layers(points: Sequence[DriftPoint], column: float) -> tuple[Layer, ...]:
    """Strips of the parts of the module tree at the depth that cuts the model into more than a few."""
    depth = next((d for d in range(1, 6) if len({_part(p.module, d) for p in points}) > 3), 5)
    found: list[Layer] = []
    begin = 0
    for part, group in groupby(points, key=lambda point: _part(point.module, depth)):
        count = len(list(group))
        label = part.rpartition(".")[2]
        room = column * count >= _LETTER * len(label) + 6
        found.append(Layer(_LEFT + column * begin, column * count, label if room else ""))
        begin += count
    return tuple(found)


def _part(module: str, depth: int) -> str:
    return ".".join(module.split(".")[:depth])


def _text(point: DriftPoint) -> str:
    return f"{point.node}: {numbers.error(point.target)} on the target, {numbers.error(point.source)} on the source"
