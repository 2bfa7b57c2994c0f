"""The migration's steps as a drawing: nodes and regions on the target, and the error against its bound.

Geometry only, in SVG units; the template turns it into markup and the style sheet into colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tapestry.migration.result import Step
from tapestry.report import numbers
from tapestry.report.scale import CountScale, LogScale, Tick, drawable

_LEFT, _RIGHT, _TOP = 46.0, 12.0, 26.0
_COUNTS, _GAP, _ERRORS, _BOTTOM = 130.0, 34.0, 130.0, 26.0
#: Width of a letter of a label, about.
_LETTER = 6.6
#: What a step's error is drawn as: in or over the bound, nothing at all, or not finite.
_MARKS = {True: "good", False: "bad"}


@dataclass(frozen=True)
class Band:
    """Steps of one kind in a row: a strip over the whole height, named where there is room."""

    kind: str
    x: float
    width: float
    label: str


@dataclass(frozen=True)
class Mark:
    """One step: where its column is, where its error is drawn, how, and what hovering says. ``y`` None: no error."""

    x: float
    left: float
    width: float
    y: float | None
    look: str
    text: str


@dataclass(frozen=True)
class Timeline:
    """The drawing. Paths are SVG path data."""

    width: float
    height: float
    left: float
    right: float
    counts_top: float
    counts_bottom: float
    errors_top: float
    errors_bottom: float
    bands: tuple[Band, ...]
    count_ticks: tuple[Tick, ...]
    error_ticks: tuple[Tick, ...]
    step_ticks: tuple[Tick, ...]
    nodes_area: str
    nodes_line: str
    regions_line: str
    bound_line: str
    marks: tuple[Mark, ...]


def timeline(steps: Sequence[Step], width: float) -> Timeline:
    """Draw the steps from left to right on a drawing of this width; there must be at least one."""
    right = width - _RIGHT
    column = (right - _LEFT) / len(steps)
    counts_bottom = _TOP + _COUNTS
    errors_top = counts_bottom + _GAP
    errors_bottom = errors_top + _ERRORS
    counts = CountScale.over((step.nodes for step in steps), counts_bottom, _TOP)
    values = [value for step in steps for value in (step.max_rel_error, step.bound)]
    errors = LogScale.over(values, errors_bottom, errors_top)
    lefts = [_LEFT + column * place for place in range(len(steps))]
    tried = [place for place, step in enumerate(steps) if step.max_rel_error is not None]
    nodes = _stairs([(lefts[place], column, counts.at(steps[place].nodes)) for place in tried])
    floor = f"{counts_bottom:.1f}"
    area = f"{nodes}V{floor}H{lefts[tried[0]]:.1f}Z" if tried else ""
    return Timeline(
        width=width,
        height=errors_bottom + _BOTTOM,
        left=_LEFT,
        right=right,
        counts_top=_TOP,
        counts_bottom=counts_bottom,
        errors_top=errors_top,
        errors_bottom=errors_bottom,
        bands=_bands(steps, column),
        count_ticks=counts.ticks,
        error_ticks=errors.ticks,
        step_ticks=_step_ticks(len(steps), column),
        nodes_area=area,
        nodes_line=nodes,
        regions_line=_stairs([(lefts[place], column, counts.at(steps[place].regions)) for place in tried]),
        bound_line=_bound_line(steps, lefts, column, errors),
        marks=tuple(_mark(place, step, lefts[place], column, errors) for place, step in enumerate(steps)),
    )


def _stairs(parts: Sequence[tuple[float, float, float]]) -> str:
    """A line of level pieces (left, width, y), joined by upright ones."""
    path = ""
    for place, (left, width, y) in enumerate(parts):
        path += f"M{left:.1f} {y:.1f}" if place == 0 else f"H{left:.1f}V{y:.1f}"
        path += f"H{left + width:.1f}"
    return path


def _bound_line(steps: Sequence[Step], lefts: Sequence[float], column: float, scale: LogScale) -> str:
    """Level pieces at each step's bound, joined where neighbours have one."""
    path = ""
    joined = False
    for left, step in zip(lefts, steps, strict=True):
        if not drawable(step.bound):
            joined = False
            continue
        y = scale.at(step.bound)
        path += f"V{y:.1f}" if joined else f"M{left:.1f} {y:.1f}"
        path += f"H{left + column:.1f}"
        joined = True
    return path


def _bands(steps: Sequence[Step], column: float) -> tuple[Band, ...]:
    bands: list[Band] = []
    begin = 0
    for kind, group in groupby(steps, key=lambda step: step.kind):
        size = len(list(group))
        width = column * size
        bands.append(Band(kind, _LEFT + column * begin, width, kind if width >= _LETTER * len(kind) + 6 else ""))
        begin += size
    return tuple(bands)


def _step_ticks(count: int, column: float) -> tuple[Tick, ...]:
    """Numbers under the first step and under every round one that has room."""
    wide = _LETTER * len(str(count)) + 14
    strides = (factor * 10**power for power in range(9) for factor in (1, 2, 5))
    stride = next(stride for stride in strides if stride * column >= wide)
    shown = [number for number in range(1, count + 1) if number % stride == 0 or (number == 1 and stride > 1)]
    return tuple(Tick(_LEFT + column * (number - 0.5), str(number)) for number in shown)


def _mark(place: int, step: Step, left: float, column: float, scale: LogScale) -> Mark:
    look = _MARKS[step.good]
    y: float | None = None
    if step.max_rel_error is not None:
        y = scale.at(step.max_rel_error)
        if not math.isfinite(step.max_rel_error):
            look = "infinite"
    return Mark(left + column / 2, left, column, y, look, step_text(place + 1, step))


def step_text(number: int, step: Step) -> str:
    """A step in one line."""
    what = (
        f"Step {number}, {step.kind}: {numbers.plural(step.nodes, 'node')} in {numbers.plural(step.regions, 'region')}"
    )
    parts = [what, "good" if step.good else "bad"]
    if step.max_rel_error is not None:
        allowed = f" of allowed {numbers.error(step.bound)}" if drawable(step.bound) else ""
        parts.append(f"error {numbers.error(step.max_rel_error)}{allowed}")
    parts.append("from the journal" if step.resumed else numbers.seconds(step.seconds))
    if step.reason:
        parts.append(step.reason)
    return "; ".join(parts)
