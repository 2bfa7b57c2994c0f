"""What cannot be captured is refused with the line of the model; wrong use of capture is a UsageError."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support import capture_models as models
from tapestry.errors import CaptureError, UsageError
from tapestry.program.capture import capture

X = torch.linspace(-1, 1, 24).view(4, 6)


@pytest.mark.parametrize(
    "name",
    [
        "decides",
        "takes_item",
        "sizes_by_data",
        "loops_by_data",
        "nonzero",
        "masked",
        "unique",
        "branches",
        "through_numpy",
        "raises",
        "misfits",
        "sparse",
    ],
)
def test_the_line_is_named(name: str) -> None:
    function = getattr(models, name)
    with pytest.raises(CaptureError) as caught:
        capture(function, (X,))
    assert f"capture_models.py:{models.line_of(name)}: " in str(caught.value)


def test_the_line_is_named_in_a_module_of_a_module() -> None:
    with pytest.raises(CaptureError) as caught:
        capture(models.Deep(), (X,))
    assert f"capture_models.py:{models.line_of('deep')}: " in str(caught.value)


def test_an_error_while_capturing_leaves_the_message_short() -> None:
    with pytest.raises(CaptureError) as caught:
        capture(models.decides, (X,))
    assert len(str(caught.value)) < 3000


class Opaque:
    """A type that PyTorch does not know."""


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (lambda x, other: x, (X, Opaque())),
        (lambda x: Opaque(), (X,)),
        (lambda x: x, ()),
        (lambda x: x, (X, X)),
        (lambda x: x.to_dense(), (torch.eye(3).to_sparse(),)),
        (lambda x: x * 2, (torch.ones(3, device="meta"),)),
    ],
    ids=["object in", "object out", "too few", "too many", "sparse", "meta"],
)
def test_arguments_that_no_program_takes(model: Any, args: tuple[object, ...]) -> None:
    with pytest.raises(CaptureError):
        capture(model, args)


def test_wrong_use() -> None:
    with pytest.raises(UsageError, match="expected args as a tuple"):
        capture(lambda x: x, X)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="expected kwargs as a dict"):
        capture(lambda x: x, (X,), ["x"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="expected a module or a function"):
        capture(3, (X,))  # pyright: ignore[reportArgumentType]
    with pytest.raises(CaptureError, match="dynamic_shapes=None"):
        capture(lambda x: x, (X,), dynamic_shapes={})


class WritesPastExport(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.data = x + 0
        return x * 2


def test_a_write_that_export_loses_is_refused() -> None:
    with pytest.raises(CaptureError):
        capture(WritesPastExport(), (torch.ones(3),))
