"""State is explicit: what a model writes is a state entry, carried from call to call, whichever way it is written."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from support.eager import assert_like_eager
from tapestry.errors import CaptureError
from tapestry.program.capture import capture

pytestmark = pytest.mark.slow


class Buffers(nn.Module):
    """A key-value cache, a counter and a ring buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 5, 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("ring", torch.zeros(4, 3), persistent=False)
        self.register_buffer("table", torch.arange(3.0))

    def forward(self, value: Tensor, place: Tensor) -> tuple[Tensor, ...]:
        self.keys[:, 1:2] = value
        self.count += 1
        self.ring.index_copy_(0, place, value[0] * self.table)
        return self.keys.sum(), self.count * 2, self.ring.sum(0)


class Assigned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.window = torch.cat([self.window[1:], x[None]])
        return self.window.sum(0)


class WritesParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.bias = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.weight.add_(1)
        return x * self.weight + self.bias


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        return self.total * 1


class Counters(nn.Module):
    """One module used twice, one in a list, one not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.idle = Counter(), Counter(), Counter()
        self.more = nn.ModuleList([Counter(), Counter()])

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)) + self.more[1](x) + self.a(x)


def steps(count: int = 3) -> list[tuple[Tensor, ...]]:
    return [(torch.full((3,), float(place + 1)),) for place in range(count)]


def test_cache_counter_and_ring() -> None:
    calls = [(torch.full((2, 1, 3), float(place)), torch.tensor([place % 2])) for place in range(1, 5)]
    program = assert_like_eager(Buffers(), calls)
    assert {entry.name for entry in program.state} == {"buffer:keys", "buffer:count", "buffer:ring"}
    assert program.state_names.isdisjoint({"buffer:table"})


def test_batch_norm_in_training_updates_its_statistics() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    program = assert_like_eager(model, [(torch.randn(2, 3, 5, 5),) for _ in range(3)])
    names = {entry.name for entry in program.state}
    assert names == {f"buffer:1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}


def test_batch_norm_in_evaluation_has_no_state() -> None:
    torch.manual_seed(0)
    program = assert_like_eager(nn.BatchNorm2d(3).eval(), [(torch.randn(2, 3, 5, 5),)] * 2)
    assert program.state == ()


def test_an_assigned_buffer_is_state() -> None:
    program = assert_like_eager(Assigned(), steps())
    assert [entry.name for entry in program.state] == ["buffer:window"]


def test_a_written_parameter_is_state_under_its_own_name() -> None:
    program = assert_like_eager(WritesParameter(), steps())
    assert [entry.name for entry in program.state] == ["param:weight"]
    assert program.state_names <= program.tensors.keys()


def test_modules_in_modules() -> None:
    program = assert_like_eager(Counters(), steps())
    assert {entry.name for entry in program.state} == {"buffer:a.total", "buffer:b.total", "buffer:more.1.total"}


def test_written_inputs_are_state_named_by_input() -> None:
    program = assert_like_eager(lambda a, b: (a.add_(b), b.relu_())[0], [(torch.ones(3), torch.ones(3)), *[]])
    assert {entry.name for entry in program.state} == {entry.name for entry in program.inputs}


def test_initial_state_is_a_copy() -> None:
    model = Counter()
    program = capture(model, steps()[0])
    model.total.fill_(9)
    assert program.tensors["buffer:total"].tolist() == [0, 0, 0]


def test_state_is_never_constant_nor_folded() -> None:
    class Reads(Counter):
        def forward(self, x: Tensor) -> Tensor:
            self.total.add_(1)
            return x + self.total.exp() + torch.arange(3.0).exp()

    program = assert_like_eager(Reads(), steps())
    made_by = {node.op: node.id in program.folded for node in program.nodes if node.op != "aten.exp.default"}
    assert made_by["aten.arange.default" if "aten.arange.default" in made_by else "aten.arange.start_step"]
    assert [node.id in program.folded for node in program.nodes if node.op == "aten.exp.default"] == [False, True]


# -- what a program cannot hold is refused, not lost


class Hidden(nn.Module):
    """State in attributes that are no buffers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.count = 0
        self.plain = torch.zeros(3)
        self.past: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "number":
            self.count += 1
            return x * self.count
        if self.kind == "tensor":
            self.plain = self.plain + x
            return self.plain
        if self.kind == "in place":
            self.plain += x
            return self.plain * 1
        self.past.append(x)
        return x * len(self.past)


@pytest.mark.parametrize("kind", ["number", "tensor", "in place", "list"])
def test_hidden_state_is_refused(kind: str) -> None:
    with pytest.raises(CaptureError, match="buffer"):
        capture(Hidden(kind), steps()[0])


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.table is None:
            self.table = torch.arange(3.0)
        return x * self.table


def test_attributes_that_do_not_matter_are_let_through() -> None:
    assert_like_eager(Lazy(), steps())


class Shared(nn.Module):
    def __init__(self, whole: bool) -> None:
        super().__init__()
        memory = torch.zeros(4)
        self.register_buffer("a", memory)
        self.register_buffer("b", memory if whole else memory[:2])

    def forward(self, x: Tensor) -> Tensor:
        self.a.add_(x)
        return self.b * 1


@pytest.mark.parametrize("whole", [True, False])
def test_buffers_in_one_memory_of_which_one_is_written(whole: bool) -> None:
    with pytest.raises(CaptureError, match="buffer a and buffer b share memory"):
        capture(Shared(whole), (torch.ones(4),))


def test_arguments_in_one_memory_of_which_one_is_written() -> None:
    x = torch.ones(4)
    with pytest.raises(CaptureError, match="share memory"):
        capture(lambda a, b: a.add_(1) + b, (x, x))


class ReturnsOld(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        old = self.value
        self.value = old + x
        return old


def test_a_result_that_export_swaps_is_refused() -> None:
    """torch.export returns the new buffer in place of the old one."""
    with pytest.raises(CaptureError, match="another result number 0"):
        capture(ReturnsOld(), (torch.ones(3),))
