"""What an executable refuses: other shapes, dtypes, structures, constants; indices out of range, as eager does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest
import torch

from support.eager_device import Bench, alone, nothing, whole
from tapestry.errors import InputError, UnsupportedError, UsageError
from tapestry.placement.placement import Placement, place_on, read_options
from tapestry.program.graph import Call, Graph, Ref
from tapestry.program.interpret import Values, run_calls

pytestmark = pytest.mark.slow

CUTS = [whole, alone, nothing]


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, factor: int = 2, *, bias: torch.Tensor | None = None) -> torch.Tensor:
        return x * factor if bias is None else x * factor + bias


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((torch.zeros(2, 3), 2), {}, "expected torch.float32"),
        ((torch.zeros(3, 2, dtype=torch.float64), 2), {}, "float64"),
        ((torch.zeros(3, 2), 3), {}, "constant 2"),
        ((torch.zeros(3, 2), 2.0), {}, "constant 2"),
        ((torch.zeros(3, 2), True), {}, "constant 2"),
        ((torch.zeros(3, 2),), {}, "expected 2 positional arguments, got 1"),
        ((torch.zeros(3, 2), 2, 1), {}, "expected 2 positional arguments, got 3"),
        (([torch.zeros(3, 2)], 2), {}, "argument 0 is nested in another way"),
        ((torch.zeros(3, 2), 2), {"bias": torch.zeros(2)}, "got 2 and the keywords bias"),
        ((3.0, 2), {}, "expected a tensor"),
        ((torch.zeros(3, 2, device="meta"), 2), {}, "CPU"),
        ((torch.zeros(3, 2).to_sparse(), 2), {}, "dense"),
    ],
)
def test_other_arguments_are_refused(
    bench: Callable[..., Bench], args: tuple[object, ...], kwargs: dict[str, object], words: str
) -> None:
    with (
        bench(Scaled(), torch.zeros(3, 2), 2).build() as executable,
        pytest.raises(InputError, match=words) as caught,
    ):
        executable(*args, **kwargs)
    assert "expected" in str(caught.value) or "captured for" in str(caught.value)


def test_keyword_arguments_come_in_any_order(bench: Callable[..., Bench]) -> None:
    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return x + a - 2 * b

    x, a, b = torch.randn(3, 2).unbind(1)[0], torch.ones(3), torch.zeros(3)
    with bench(Two(), x, a=a, b=b).build() as executable:
        assert torch.equal(executable(x, b=b, a=a), x + a - 2 * b)


Indexing = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
INDEXINGS: dict[str, Indexing] = {
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "index": lambda x, i: x[i],
    "index second": lambda x, i: x.t()[:, i],
    "two indices": lambda x, i: x[i, i % 2],
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, 2)),
    "index_select": lambda x, i: x.index_select(0, i),
    "take": lambda x, i: x[:, :1].contiguous().take(i),
    "index_put": lambda x, i: x.index_put((i,), torch.ones(2)),
    "scatter": lambda x, i: x.scatter(0, i[:, None].expand(-1, 2), 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None].expand(-1, 2), torch.ones(2, 2)),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(2, 2)),
    "index_copy": lambda x, i: x.index_copy(0, i, torch.ones(2, 2)),
    "index_fill": lambda x, i: x.index_fill(0, i, 9.0),
    "nll_loss": lambda x, i: torch.nn.functional.nll_loss(x.t()[:2], i, ignore_index=-5),
}
POSITIONS = [[0, 2], [3, 0], [1, -1], [-3, 1], [-4, 0], [2, 100], [-5, 1], [-(2**40), 0]]


class Indexes(torch.nn.Module):
    def __init__(self, index: Indexing, computed: bool) -> None:
        super().__init__()
        self.index = index
        self.computed = computed

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return self.index(x, (i * 2) // 2 if self.computed else i) * 2


#: Where the index is the caller's; the check is the same for all.
GIVEN = ("embedding", "index", "gather", "index_select")


@pytest.mark.parametrize(
    ("name", "computed"), [*((name, False) for name in GIVEN), *((name, True) for name in INDEXINGS)]
)
def test_indices_are_taken_and_refused_as_by_eager(bench: Callable[..., Bench], name: str, computed: bool) -> None:
    module = Indexes(INDEXINGS[name], computed)
    x = torch.arange(6.0).reshape(3, 2)
    made = bench(module, x, torch.tensor([0, 1]))
    for cut in CUTS:
        with made.build(cut) as executable:
            for position in POSITIONS:
                _compare(executable, module, x, torch.tensor(position))


def _compare(executable: Callable[..., object], module: torch.nn.Module, x: torch.Tensor, i: torch.Tensor) -> None:
    try:
        want = module(x, i)
    except (IndexError, RuntimeError) as error:
        # Eager's own words, up to where they hold the index itself.
        with pytest.raises(type(error), match=re.escape(str(error)[:18])):
            executable(x, i)
    else:
        assert torch.equal(executable(x, i), want)  # type: ignore[arg-type]


class SilentIndexing(torch.nn.Module):
    def forward(self, table: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(i + 1, table) + 1


def clipping(graph: Graph, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What a kernel may do with an index out of range: take the nearest row."""

    def compute(call: Call, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        if call.target is torch.ops.aten.embedding.default:
            table, index = args[0], args[1]
            assert isinstance(table, torch.Tensor)
            assert isinstance(index, torch.Tensor)
            return call.target(table, index.clamp(0, len(table) - 1))
        return call.target(*args, **kwargs)

    values: Values = {Ref(entry.name): tensor for entry, tensor in zip(graph.inputs, inputs, strict=True)}
    run_calls(graph.calls, values, frozenset(graph.outputs), compute)
    return tuple(cast("torch.Tensor", values[ref]) for ref in graph.outputs)


def test_a_device_that_does_not_raise_is_checked_by_the_host(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = SilentIndexing()
    table, i = torch.randn(5, 2), torch.tensor([0, 3])
    made = bench(module, table, i)
    monkeypatch.setattr("tapestry.backends.eager.run_graph", clipping)
    for cut in (whole, alone):
        with made.build(cut) as executable:
            assert torch.equal(executable(table, i), module(table, i))
            with pytest.raises(IndexError, match="index out of range"):
                executable(table, torch.tensor([0, 4]))
            assert torch.equal(executable(table, i), module(table, i))


def test_placements_that_do_not_fit(bench: Callable[..., Bench]) -> None:
    made = bench(Scaled(), torch.zeros(3, 2), 2)
    other = bench(Indexes(INDEXINGS["index"], True), torch.zeros(3, 2), torch.tensor([0, 1]))
    options = made.backend.options()[0]
    node = made.program.placeable[0]
    with pytest.raises(UsageError, match="another graph"):
        made.builder.build(place_on(other.program, [[other.program.placeable[0]]], other.backend, options, "mock:0"))
    with pytest.raises(UsageError, match="opened are"):
        made.builder.build(place_on(made.program, [[node]], made.backend, options, "opencl:0"))
    with pytest.raises(UsageError, match="two regions"):
        made.builder.build(place_on(made.program, [[node], [node]], made.backend, options, "mock:0"))
    with pytest.raises(UsageError, match=r"does not take the option .speed"):
        read_options(made.backend, {"speed": object()})


def test_what_a_backend_refuses_is_not_built(bench: Callable[..., Bench]) -> None:
    made = bench(Scaled(), torch.zeros(3, 2), 2)
    node = made.program.placeable[0]
    made.backend.refuses_in = lambda graph, node, info: "no multiplication here"  # type: ignore[method-assign]
    placement: Placement = place_on(made.program, [[node]], made.backend, made.backend.options()[0], "mock:0")
    with pytest.raises(UnsupportedError, match="no multiplication here"):
        made.builder.build(placement)
