"""Regions on the four runtimes: right, with results of their own, for any weights of one structure."""

from __future__ import annotations

import pytest
import torch

from support.host_bench import BACKENDS, HostBench, encoder
from tapestry.backends.base import Backend
from tapestry.program.capture import capture

#: A few roundings of sums of up to 64 products in float32, on values near 1.
CLOSE = {"rtol": 0.0, "atol": 2e-5}

pytestmark = pytest.mark.parametrize("backend", BACKENDS, indirect=True)


@pytest.mark.parametrize("worker", [False, True], ids=["in-process", "worker"])
def test_results_are_right_and_belong_to_the_caller(host: HostBench, backend: Backend, worker: bool) -> None:
    model, (ids, shift) = encoder()
    executable = host.build(capture(model, (ids, shift)), backend, worker=worker)
    first = executable(ids, shift)
    want = model(ids, shift)
    kept = [tensor.clone() for tensor in first]
    other = (ids.flip(1), -shift)
    torch.testing.assert_close(executable(*other), model(*other), **CLOSE)
    torch.testing.assert_close(first, want, **CLOSE)
    torch.testing.assert_close(list(first), kept, rtol=0, atol=0)


def test_one_structure_with_two_sets_of_weights(host: HostBench, backend: Backend) -> None:
    (one, args), (two, _) = encoder(0), encoder(1)
    executables = [host.build(capture(model, args), backend) for model in (one, two)]
    for _ in range(2):
        for executable, model in zip(executables, (one, two), strict=True):
            torch.testing.assert_close(executable(*args), model(*args), **CLOSE)
    modules = {entry.bound.compiled.module.digest for ex in executables for entry in ex.layout.bound_steps}
    assert len(modules) == 1, "weights are no part of what is compiled"


class Counter(torch.nn.Module):
    """Adds what it is given to a buffer, and returns twice the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


def test_state_is_written_by_the_executor(host: HostBench, backend: Backend) -> None:
    executable = host.build(capture(Counter(), (torch.ones(3),)), backend)
    results = [executable(torch.full((3,), value)) for value in (1.0, 2.0, 4.0)]
    torch.testing.assert_close(results, [torch.full((3,), value) for value in (2.0, 6.0, 14.0)], rtol=0, atol=0)


def test_inputs_with_strides(host: HostBench, backend: Backend) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).reshape(-1) + 1

    x = torch.arange(12.0).view(4, 3).t()
    executable = host.build(capture(model, (x,)), backend)
    torch.testing.assert_close(executable(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_copy_is_written(host: HostBench, backend: Backend, dtype: torch.dtype) -> None:
    """Runtimes drop copies, and then nothing may write to the memory of the result."""

    class Copies(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

    x = torch.arange(6).to(dtype)
    executable = host.build(capture(Copies(), (x,)), backend)
    for value in (x, x + 1):
        assert torch.equal(executable(value), value)


def test_inputs_that_nothing_reads(host: HostBench, backend: Backend) -> None:
    """The first gives its shape and dtype only; converters leave it out."""

    class Unread(torch.nn.Module):
        unread: torch.Tensor
        read: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("unread", torch.ones(3))
            self.register_buffer("read", torch.arange(3.0))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.new_zeros(3) + y * self.read, self.unread.new_ones(2) + x.new_zeros(1, 2)

    args = (torch.full((2, 2), 7.0), torch.tensor([1.0, 2.0, 3.0]))
    model = Unread()
    executable = host.build(capture(model, args), backend)
    for value in (args[1], -args[1]):
        torch.testing.assert_close(executable(args[0], value), model(args[0], value), rtol=0, atol=0)
