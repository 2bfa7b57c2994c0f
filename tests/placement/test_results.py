"""An executable gives back what eager gives: structure, dtype, shape, strides, shared memory, memory of one's own."""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch.utils import _pytree as pytree

from support.eager_device import Bench, Labels, alone, nothing, whole

Pair = namedtuple("Pair", "first second")


class Triple(NamedTuple):
    """A typed named tuple."""

    a: torch.Tensor
    b: torch.Tensor
    c: int


class Dict(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, object]:
        return {"z": x + 1, "a": (x * 2, [x.sum()]), "n": None, "i": 3, "s": "text", "f": 2.5, "t": True}


class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> object:
        return Pair(x.relu(), Triple(x + 1, x - 1, 7)), ()


class Scalars(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), x.argmax(), x.max() > 0, x.mean().reshape(1, 1), (x > 0).any(), x[0, 0].to(torch.float64)


class Kinds(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 3
        return y > 0, y.to(torch.int8), y.to(torch.int64), y.half(), y.bfloat16(), y.double(), torch.complex(y, y)


class Strides(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y.t(), y[:, ::2] * 1, y[0].expand(5, 4), (x * 2).unfold(1, 2, 1), y.t().contiguous().t(), y.flip(0)


class Empty(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[:0] + 1, x[:, :0].sum(1), torch.cat([x[:0], x]) * 2


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y, y.view(-1), x, x.t()


class Views(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
        self.register_buffer("table", torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, x[1:], x.t(), self.weight, self.weight[0], self.table, self.table.view(2, 8), x @ self.weight


class Constants(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = torch.ones(4, 4).tril()
        return x * mask, mask, torch.arange(4)


MODELS = [Dict, Named, Scalars, Kinds, Strides, Empty, Twice, Views, Constants]
CUTS = [whole, alone, nothing]


def example() -> torch.Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(1))


def same(got: object, want: object) -> None:
    got_leaves, got_spec = pytree.tree_flatten(got)
    want_leaves, want_spec = pytree.tree_flatten(want)
    assert got_spec == want_spec
    for one, other in zip(got_leaves, want_leaves, strict=True):
        assert type(one) is type(other) or isinstance(other, torch.nn.Parameter)
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if other.numel():
            assert one.stride() == other.stride()
        assert torch.equal(one, other)


@pytest.mark.parametrize("model", MODELS)
def test_equals_eager_and_belongs_to_the_caller(
    bench: Callable[..., Bench], model: Callable[[], torch.nn.Module]
) -> None:
    """Five calls on different inputs, everything kept: none changes another, nor does writing into it."""
    module = model()
    made = bench(module, example())
    for cut in CUTS:
        _five_calls(module, made, cut)


def _five_calls(module: torch.nn.Module, made: Bench, cut: Labels) -> None:
    inputs = [example() + number for number in range(5)]
    with torch.no_grad():
        # A copy each: what eager shares with the module or the input, it may share.
        want = [copy.deepcopy(module)(x.clone()) for x in inputs]
    with made.build(cut) as executable:
        got = [executable(x.clone()) for x in inputs]
        for one, other in zip(got, want, strict=True):
            same(one, other)
        for leaf in pytree.tree_leaves(executable(inputs[0].clone())):
            if isinstance(leaf, torch.Tensor) and not _shared(leaf, module):
                leaf.detach().contiguous().zero_()
                if leaf.is_contiguous():
                    leaf.detach().zero_()
        same(executable(inputs[3].clone()), want[3])


def _shared(leaf: torch.Tensor, module: torch.nn.Module) -> bool:
    """Parameters and buffers are handed out as eager hands them out: writing there is meant to last."""
    storages = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    return leaf.untyped_storage().data_ptr() in storages


@pytest.mark.parametrize("cut", CUTS)
def test_outputs_share_memory_as_in_eager(bench: Callable[..., Bench], cut: Labels) -> None:
    module, x = Views(), example()
    program = bench(module, x)
    with program.build(cut) as executable:
        same_x, tail, turned, weight, row, table, flat, product = executable(x)
    assert same_x is x
    for view in (tail, turned):
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert tail.storage_offset() == 4
    assert weight.untyped_storage().data_ptr() == row.untyped_storage().data_ptr()
    assert table.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    assert product.untyped_storage().data_ptr() not in {
        x.untyped_storage().data_ptr(),
        weight.untyped_storage().data_ptr(),
    }
    x[1, 0] = 77.0
    assert tail[0, 0] == 77.0
    assert turned[0, 1] == 77.0


@pytest.mark.parametrize("cut", CUTS)
def test_an_output_returned_twice_is_one_object(bench: Callable[..., Bench], cut: Labels) -> None:
    x = example()
    with bench(Twice(), x).build(cut) as executable:
        first, second, flat, given, turned = executable(x)
    assert first is second
    first[0, 0] = 5.0
    assert flat[0] == 5.0
    assert given is x
    assert turned.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "lay_out",
    [lambda x: x.t().contiguous().t(), lambda x: x[0].expand(4, 4), lambda x: torch.stack([x, x], -1)[..., 0]],
    ids=["transposed", "expanded", "strided"],
)
def test_non_contiguous_inputs(bench: Callable[..., Bench], lay_out: Callable[[torch.Tensor], torch.Tensor]) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    x = example()
    laid_out = lay_out(x)
    made = bench(module, x)
    for cut in CUTS:
        with made.build(cut) as executable, torch.no_grad():
            # The source computes on the caller's layout, a region on the captured one.
            assert torch.equal(executable(laid_out), module(laid_out if cut is nothing else laid_out.contiguous()))


class ViewOfTransposed(torch.nn.Module):
    """Legal only because the input is laid out as it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(1, 0).view(-1) * 2


@pytest.mark.parametrize("cut", CUTS)
def test_views_that_depend_on_the_layout_of_an_input(bench: Callable[..., Bench], cut: Labels) -> None:
    x = torch.arange(6.0).reshape(2, 3).t()
    with bench(ViewOfTransposed(), x).build(cut) as executable:
        assert torch.equal(executable(x), torch.arange(6.0) * 2)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.second = torch.nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def test_tied_weights_and_constants_of_two_regions_travel_once(bench: Callable[..., Bench]) -> None:
    module, x = Tied(), example()
    made = bench(module, x)
    with made.build(alone) as executable, torch.no_grad():
        assert torch.equal(executable(x), module(x))
        _, constants = made.resident.digests
        assert len(constants) == 1


class Random(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        first = torch.rand_like(y)
        z = y + first
        second = torch.randn_like(z)
        return z * second, torch.nn.functional.dropout(z, 0.5, training=True), y.relu() + second


@pytest.mark.parametrize("cut", CUTS)
def test_random_operators_repeat_with_the_seed_and_stay_on_the_source(bench: Callable[..., Bench], cut: Labels) -> None:
    module, x = Random(), example()
    made = bench(module, x)
    with made.build(cut) as executable:
        for seed in (0, 1, 0):
            torch.manual_seed(seed)
            want = module(x)
            torch.manual_seed(seed)
            same(executable(x), want)
        random = [node.id for node in made.program.nodes if node.id not in made.program.placeable]
        assert random
        assert set(random) <= set(executable.log.source_nodes)
