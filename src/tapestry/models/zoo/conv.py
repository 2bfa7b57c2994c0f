"""Convolutional networks of the zoo."""

from __future__ import annotations

import torch
from torch import nn

from tapestry.models.zoo.registry import Made
from tapestry.models.zoo.sane import calibrate, sane_weights
from tapestry.program.inputs import CallArgs


def convnet() -> Made:
    """Images [2, 3, 32, 32] → logits [2, 10]."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(32, 32, 3),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return _on_images(model, (2, 3, 32, 32))


class _Block(nn.Module):
    """The basic residual block of He et al., arXiv 1512.03385."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(channels, wider, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(wider), nn.ReLU()
        )
        self.second = nn.Sequential(nn.Conv2d(wider, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != wider:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, wider, 1, stride=stride, bias=False), nn.BatchNorm2d(wider)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(self.first(x)) + self.shortcut(x))


def resnet() -> Made:
    """Images [1, 3, 32, 32] → logits [1, 10]; four residual blocks of 16 and 32 channels."""
    widths = (16, 16, 32, 32)
    blocks: list[nn.Module] = []
    before = 16
    for width in widths:
        blocks.append(_Block(before, width, 1 if width == before else 2))
        before = width
    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(before, 10),
    )
    return _on_images(model, (1, 3, 32, 32))


class _Kinds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(8, 16, 3, padding=1, groups=4)
        self.depthwise = nn.Conv2d(16, 16, (3, 5), padding=(1, 2), groups=16)
        self.dilated = nn.Conv2d(16, 12, 3, padding=2, dilation=2)
        self.strided = nn.Conv2d(12, 12, (3, 2), stride=(2, 1), bias=False)
        self.up = nn.ConvTranspose2d(12, 8, 4, stride=2, padding=1)
        self.up_grouped = nn.ConvTranspose2d(8, 6, 3, stride=(2, 1), output_padding=(1, 0), groups=2)
        self.line = nn.Conv1d(6, 5, 5, stride=2, padding=2, dilation=1)
        self.up_line = nn.ConvTranspose1d(5, 4, 4, stride=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.grouped(x))
        y = torch.nn.functional.leaky_relu(self.depthwise(y), 0.1)
        y = torch.nn.functional.elu(self.dilated(y))
        y = torch.sigmoid(self.strided(y)) * 2 - 1
        y = torch.tanh(self.up(y))
        y = self.up_grouped(y)
        z = torch.relu(self.line(y.mean(dim=2)))
        return y, self.up_line(z)


def kinds() -> Made:
    """Maps [2, 8, 12, 16] → a map and a signal."""
    return _on_images(_Kinds(), (2, 8, 12, 16))


def _on_images(model: nn.Module, shape: tuple[int, ...]) -> Made:
    calls = [CallArgs((torch.randn(shape) * scale,)) for scale in (1.0, 0.5, 2.0)]
    sane_weights(model)
    calibrate(model, calls)
    return model, calls
