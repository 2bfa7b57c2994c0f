"""Models of the zoo that are awkward in one way each: what they return, what they count, how they loop."""

from __future__ import annotations

import torch
from torch import nn

from tapestry.models.zoo.registry import Made
from tapestry.models.zoo.sane import sane_weights
from tapestry.program.inputs import CallArgs


class _Passing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)
        self.norm = nn.LayerNorm(12)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, object]:
        hidden = torch.nn.functional.gelu(self.inner(x))
        return {"x": x, "views": (x.transpose(0, 1), scale), "hidden": self.norm(hidden) * scale, "loss": hidden.mean()}


def passing() -> Made:
    """[5, 12] and a 0-d scale → a dict with both inputs, a view, a tensor and a 0-d tensor."""
    model = _Passing()
    sane_weights(model)
    return model, [CallArgs((torch.randn(5, 12), torch.tensor(scale))) for scale in (0.5, 2.0, -1.0)]


class _Integers(nn.Module):
    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.register_buffer("table", torch.randint(0, 50, (50,)))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hashed = self.table[(ids * 7 + 3) % 50]
        swapped = torch.where(mask, hashed, ids)
        hidden = self.embedding(swapped) * mask.unsqueeze(-1)
        steps = torch.cumsum(mask.to(torch.int64), dim=-1) - 1
        lengths = mask.sum(dim=-1)
        pooled = hidden.sum(dim=1) / lengths.clamp(min=1).unsqueeze(-1)
        even = (swapped % 2 == 0) & mask
        return {
            "pooled": pooled,
            "swapped": swapped,
            "steps": steps.clamp(min=0),
            "even": even,
            "any": even.any(),
            "largest": swapped.max(),
            "bits": (swapped ^ 21) | (ids & 6),
            "halves": torch.div(swapped, 3, rounding_mode="floor").to(torch.int32),
            "best": pooled.argmax(dim=-1),
        }


def integers() -> Made:
    """Token ids [3, 10] and a bool mask [3, 10] → integers of several widths, bools, 0-d results, one float tensor."""
    model = _Integers()
    sane_weights(model)
    calls: list[CallArgs] = []
    for lengths in ((10, 4, 1), (7, 10, 2), (3, 3, 9)):
        mask = torch.arange(10) < torch.tensor(lengths).unsqueeze(-1)
        calls.append(CallArgs((torch.randint(0, 50, (3, 10)), mask)))
    return model, calls


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTMCell(12, 16)
        self.gru = nn.GRUCell(16, 16)
        self.head = nn.Linear(16, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        hidden = x.new_zeros(x.shape[1], 16)
        cell = x.new_zeros(x.shape[1], 16)
        upper = x.new_zeros(x.shape[1], 16)
        steps: list[torch.Tensor] = []
        for step in x.unbind(0):
            hidden, cell = self.lstm(step, (hidden, cell))
            upper = self.gru(hidden, upper)
            steps.append(self.head(upper))
        return torch.stack(steps), (hidden, cell)


def recurrent() -> Made:
    """Sequences [8, 2, 12] → [8, 2, 6] and the last state of the LSTM cell (Hochreiter & Schmidhuber 1997)."""
    model = _Recurrent()
    sane_weights(model)
    return model, [CallArgs((torch.randn(8, 2, 12) * scale,)) for scale in (1.0, 0.3, 3.0)]
