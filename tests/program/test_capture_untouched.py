"""Capture leaves the module, the arguments and the random generator as they were, also when it fails."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from support.eager import same_bits
from tapestry.errors import CaptureError
from tapestry.program.capture import capture


class Busy(nn.Module):
    """Writes everything that a module can write."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("cache", torch.tensor([1.0, float("nan"), 3.0]))
        self.register_buffer("window", torch.zeros(3))
        self.calls = 0
        self.last: Tensor | None = None
        self.past: list[object] = ["start"]
        self.names = {"a": 1}
        self.seen = {1}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x
        self.past.append(x)
        self.names["b"] = 2
        self.seen.add(2)
        self.fresh = 1
        with torch.no_grad():
            self.weight.mul_(2)
        self.cache.add_(1)
        self.window = self.window + 1
        x.mul_(3)
        return self.norm(x) * self.weight + torch.nn.functional.dropout(x, 0.5)


class Fails(Busy):
    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        if x.sum() > 0:
            return x
        return -x


@pytest.mark.parametrize("kind", [Busy, Fails])
def test_the_module_is_as_before(kind: type[Busy]) -> None:
    model = kind().train()
    model.norm.eval()
    model.weight.grad = torch.full((3,), 7.0)
    before = copy.deepcopy(model)
    objects = {name: id(value) for name, value in [*model.named_parameters(), *model.named_buffers()]}
    x = torch.randn(2, 3)
    given, generator = x.clone(), torch.get_rng_state()
    if kind is Fails:
        with pytest.raises(CaptureError):
            capture(model, (x,))
    else:
        capture(model, (x,))
    assert torch.equal(x, given)
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.is_grad_enabled()
    assert model.training
    assert not model.norm.training
    assert {name: id(value) for name, value in [*model.named_parameters(), *model.named_buffers()]} == objects
    for name, tensor in before.state_dict().items():
        assert same_bits(model.state_dict()[name], tensor), name
    assert model.weight.grad.tolist() == [7, 7, 7]
    assert model.weight.requires_grad
    assert (model.calls, model.last, model.past, model.names, model.seen) == (0, None, ["start"], {"a": 1}, {1})
    assert not hasattr(model, "fresh")


def test_an_interrupt_puts_the_module_back() -> None:
    class Interrupted(Busy):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise KeyboardInterrupt

    model = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        capture(model, (torch.ones(2, 3),))
    assert model.calls == 0


def test_the_program_shares_the_memory_of_parameters() -> None:
    """Parameters are large: they are not copied."""
    model = nn.Linear(3, 2)
    program = capture(model, (torch.ones(1, 3),))
    assert program.tensors["param:weight"].data_ptr() == model.weight.data_ptr()
    assert not program.tensors["param:weight"].requires_grad
