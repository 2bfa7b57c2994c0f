"""Programs on a mock device that runs what the eager backend compiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from support.eager_device import Bench
from tapestry.program.capture import capture

MakeBench = Callable[..., Bench]


@pytest.fixture
def bench() -> Iterator[MakeBench]:
    """Captures a model with its arguments; every bench must be left with nothing on its device."""
    made: list[Bench] = []

    def make(model: torch.nn.Module, *args: object, **kwargs: object) -> Bench:
        made.append(Bench(capture(model, args, kwargs)))
        return made[-1]

    yield make
    for entry in made:
        entry.close()
