"""Value classes of a chain: the same steps on other tensors, so that what a fault changes shows.

Negative values before a relu, no two elements alike, large ones, 16-bit ones, NaN and infinities. Memory that is shared
stays shared. Not here: the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

from tapestry.suite.composition.editing import Steps, fresh, redrawn

_SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0)


def redrawn_as(kind: str, calls: list[Steps], rng: Random) -> list[Steps]:
    """The calls with values of a kind (`KINDS`)."""
    draw = KINDS[kind]
    if kind != "special":
        return redrawn(calls, lambda flat: draw(flat, rng))
    # Only the first floating tensor: weights and statistics that are not finite are no platform's matter.
    left = [draw]
    plain = KINDS["normal"]
    return redrawn(calls, lambda flat: (left.pop() if left and flat.dtype.is_floating_point else plain)(flat, rng))


def _drawn(scale: float) -> Callable[[Tensor, Random], Tensor]:
    return lambda flat, rng: fresh(flat, rng, scale)


def _in(dtype: torch.dtype) -> Callable[[Tensor, Random], Tensor]:
    def draw(flat: Tensor, rng: Random) -> Tensor:
        made = fresh(flat, rng)
        return made.to(dtype) if made.dtype.is_floating_point else made

    return draw


def _given(flat: Tensor, rng: Random) -> Tensor:
    return flat.clone()


def _negative(flat: Tensor, rng: Random) -> Tensor:
    made = fresh(flat, rng)
    return -made.abs() - 0.25 if made.dtype.is_floating_point else made


def _whole(flat: Tensor, rng: Random) -> Tensor:
    """Small whole numbers and halves: ties, zeros, and sums that no rounding hides."""
    made = fresh(flat, rng, 3.0)
    return (made * 2).round() / 2 if made.dtype.is_floating_point else made


def _special(flat: Tensor, rng: Random) -> Tensor:
    made = fresh(flat, rng)
    if not made.dtype.is_floating_point or made.numel() == 0:
        return made
    for value in _SPECIAL:
        made[rng.randrange(made.numel())] = value
    return made


#: The kinds of values, the most telling first.
KINDS: dict[str, Callable[[Tensor, Random], Tensor]] = {
    "normal": _drawn(2.0),
    "given": _given,
    "large": _drawn(100.0),
    "whole": _whole,
    "negative": _negative,
    "float16": _in(torch.float16),
    "float64": _in(torch.float64),
    "special": _special,
    "small": _drawn(0.01),
    "bfloat16": _in(torch.bfloat16),
}
