"""Running eager where it may refuse: what it raises or warns of is an answer, not an error. Not here: what is run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def quietly(run: Callable[[], Result]) -> Result | None:
    """What a run without gradients gives, or None where it raises. Warnings are not shown."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            return run()
        except Exception:  # the point is that it refuses, whatever it raises
            return None
