"""State over several calls: caches, counters, ring buffers, buffers that change places, the caller's own tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from support.eager_device import Bench, Labels, alone, nothing, whole

pytestmark = pytest.mark.slow

CUTS = [whole, alone, nothing]


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.count += 1
        return x * self.count, self.count


class Cache(torch.nn.Module):
    """A slice write at a position that moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 3))
        self.register_buffer("length", torch.zeros(1, dtype=torch.int64))
        self.inner = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, self.length, self.inner(x))
        self.length += 1
        return torch.softmax(self.cache @ x[0], 0)


class Slices(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(4, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        old = self.ring.clone()
        self.ring[1:] = old[:-1]
        self.ring[0] = x[0]
        return old, self.ring[:2]


class Swap(torch.nn.Module):
    """Two buffers change places, in the order in which a naive write-back would lose one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(1, 3))
        self.register_buffer("b", torch.ones(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.b.clone()
        self.b.copy_(self.a)
        self.a.copy_(kept)
        return x + self.a - 2 * self.b


class Rolled(torch.nn.Module):
    """A buffer that is turned in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.arange(9.0).reshape(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state.copy_(self.state.t().clone())
        return self.state + x


class Mixed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.rand_like(x)
        self.total += x + 0 * noise
        return self.total * 2, self.total


MODELS = [Counter, Cache, Slices, Swap, Rolled, Mixed]


@pytest.mark.parametrize("model", MODELS)
def test_state_over_five_calls(bench: Callable[..., Bench], model: Callable[[], torch.nn.Module]) -> None:
    module = model()
    made = bench(module, torch.randn(1, 3))
    for cut in CUTS:
        _five_calls(model, module, made, cut)


def _five_calls(model: Callable[[], torch.nn.Module], module: torch.nn.Module, made: Bench, cut: Labels) -> None:
    calls = [torch.randn(1, 3) for _ in range(5)]
    with made.build(cut) as executable, torch.no_grad():
        for _ in range(2):
            reference = model()
            reference.load_state_dict(module.state_dict())
            for x in calls:
                want, got = reference(x), executable(x)
                for one, other in zip(_tuple(got), _tuple(want), strict=True):
                    assert torch.equal(one, other)
            for name, value in reference.state_dict().items():
                if f"buffer:{name}" in executable.state:
                    assert torch.equal(executable.state[f"buffer:{name}"], value)
            executable.reset()


def _tuple(value: object) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)  # type: ignore[return-value]


def test_two_executables_have_states_of_their_own(bench: Callable[..., Bench]) -> None:
    made = bench(Counter(), torch.ones(1, 3))
    with made.build(whole) as one, made.build(alone) as other:
        one(torch.ones(1, 3))
        assert one(torch.ones(1, 3))[1] == 2
        assert other(torch.ones(1, 3))[1] == 1


@pytest.mark.parametrize("cut", CUTS)
def test_a_returned_buffer_is_the_state_itself(bench: Callable[..., Bench], cut: Labels) -> None:
    with bench(Counter(), torch.ones(1, 3)).build(cut) as executable:
        _, count = executable(torch.ones(1, 3))
        executable(torch.ones(1, 3))
        assert count == 2  # as in eager, where it is the module's buffer


class WritesItsInput(torch.nn.Module):
    def forward(self, cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[1:2] = x * 2
        cache += 1
        return cache.sum() + x


@pytest.mark.parametrize("cut", CUTS)
def test_mutated_inputs_of_the_caller(bench: Callable[..., Bench], cut: Labels) -> None:
    module, x = WritesItsInput(), torch.randn(1, 3)
    with bench(module, torch.zeros(3, 3), x).build(cut) as executable:
        mine, theirs = torch.zeros(3, 3), torch.zeros(3, 3)
        for _ in range(3):
            assert torch.equal(executable(mine, x), module(theirs, x))
            assert torch.equal(mine, theirs)
        turned = torch.zeros(3, 3).t()
        executable(turned, x)
        fresh = torch.zeros(3, 3)
        module(fresh, x)
        assert torch.equal(turned, fresh)


def test_a_failed_call_leaves_the_state_as_it_was(bench: Callable[..., Bench]) -> None:
    module = Cache()
    with bench(module, torch.randn(1, 3)).build(whole) as executable, torch.no_grad():
        for _ in range(8):
            executable(torch.randn(1, 3))
        before = executable.state["buffer:cache"].clone()
        with pytest.raises((IndexError, RuntimeError)):
            executable(torch.randn(1, 3))
        assert torch.equal(executable.state["buffer:cache"], before)
        assert executable.state["buffer:length"] == 8


def test_state_stays_on_its_device(bench: Callable[..., Bench]) -> None:
    """After the first call only arguments travel there, and only results back."""
    made = bench(Cache(), torch.randn(1, 3))
    with made.build(whole) as executable:
        executable(torch.randn(1, 3))
        assert {entry.name for entry in executable.layout.kept} == {"buffer:cache", "buffer:length"}
        executable(torch.randn(1, 3))
        # Down come the result, and the place that is written to, which the host checks as eager does.
        assert (executable.log.uploads, executable.log.downloads) == (1, 2)
        assert executable.log.upload_bytes == 3 * 4
        # Who looks at it may also write to it: then it travels again.
        executable.state["buffer:length"].zero_()
        executable(torch.randn(1, 3))
        assert executable.log.uploads == 3
        assert executable.state["buffer:length"] == 1


def test_state_that_an_output_shares_memory_with_comes_back(bench: Callable[..., Bench]) -> None:
    """The caller holds the buffer itself, and sees it change, as in eager."""
    made = bench(Mixed(), torch.randn(1, 3))
    with made.build(whole) as executable:
        assert executable.layout.kept == ()
        _, total = executable(torch.ones(1, 3))  # type: ignore[misc]
        executable(torch.ones(1, 3))
        assert torch.equal(total, torch.full((1, 3), 2.0))
