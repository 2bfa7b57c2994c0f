"""Regions against brute force on small random graphs: convexity, inputs, outputs, order, and what their keys see."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from support.written_programs import SPEC, call, program_of
from tapestry.errors import UsageError
from tapestry.program.capture import capture
from tapestry.program.graph import Argument, Ref, TensorSpec
from tapestry.program.interpret import run_graph, run_program, start_values
from tapestry.program.program import Program
from tapestry.program.region import path_outside, quotient_order, region_of

aten = torch.ops.aten
X, Y, Z, W = Ref("input:x"), Ref("input:y"), Ref("input:z"), Ref("param:w")


@dataclass(frozen=True)
class Drawn:
    """A program of additions and two-result calls, and for each node the nodes it reads."""

    program: Program
    above: dict[str, set[str]]

    def reaches(self) -> set[tuple[str, str]]:
        """Pairs of nodes with a path from the first to the second, by closure."""
        found = {(source, node) for node, sources in self.above.items() for source in sources}
        names = list(self.above)
        for middle, source, target in product(names, names, names):
            if (source, middle) in found and (middle, target) in found:
                found.add((source, target))
        return found


@st.composite
def graphs(draw: st.DrawFn) -> Drawn:
    count = draw(st.integers(1, 7))
    values = [Ref("input:x"), Ref("input:y"), Ref("param:w")]
    calls, above = [], {}
    for place in range(count):
        name = f"n{place}"
        pair = draw(st.tuples(st.sampled_from(values), st.sampled_from(values)))
        above[name] = {ref.name for ref in pair if ref.name in above}
        if draw(st.booleans()):
            calls.append(call(name, aten.add.Tensor, *pair))
            values.append(Ref(name))
        else:
            calls.append(call(name, aten.max.dim, pair[0], 0, outputs=(SPEC, SPEC)))
            above[name] = {pair[0].name} & above.keys()
            values += [Ref(name, 0), Ref(name, 1)]
    outputs = draw(st.lists(st.sampled_from(values), max_size=3))
    inputs = {"input:x": SPEC, "input:y": SPEC}
    return Drawn(program_of(calls, outputs, inputs, {"param:w": torch.zeros(4)}), above)


def nodes_of(drawn: Drawn) -> st.SearchStrategy[set[str]]:
    loose = [name for name in drawn.above if name not in drawn.program.folded]
    return st.sets(st.sampled_from(loose), min_size=1) if loose else st.just(set[str]())


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.data())
def test_regions_against_brute_force(data: st.DataObject) -> None:
    drawn = data.draw(graphs())
    chosen = data.draw(nodes_of(drawn))
    if not chosen:
        return
    program, reaches = drawn.program, drawn.reaches()
    convex = not any(
        (start, middle) in reaches and (middle, end) in reaches
        for start in chosen
        for end in chosen
        for middle in drawn.above.keys() - chosen
    )
    back = path_outside(program, chosen)
    assert (back is None) is convex
    if back is not None:
        assert back in chosen
        with pytest.raises(UsageError, match="not convex"):
            region_of(program, chosen)
        return
    region = region_of(program, reversed(sorted(chosen)))
    reads = [ref for node in program.nodes if node.id in chosen for ref in node.call.args if isinstance(ref, Ref)]
    assert region.nodes == tuple(node.id for node in program.nodes if node.id in chosen)
    assert region.inputs == tuple(dict.fromkeys(ref for ref in reads if ref.name not in chosen))
    outside = {ref for node in program.nodes if node.id not in chosen for ref in node.call.args}
    outside |= {output.value for output in program.outputs}
    made = [Ref(node.id, item) for node in program.nodes for item in range(len(node.call.outputs))]
    assert region.outputs == tuple(ref for ref in made if ref.name in chosen and ref in outside)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.data())
def test_quotients_against_brute_force(data: st.DataObject) -> None:
    drawn = data.draw(graphs())
    program = drawn.program
    loose = [name for name in drawn.above if name not in program.folded]
    labels = data.draw(st.lists(st.integers(0, 3), min_size=len(loose), max_size=len(loose)))
    groups = [{name for name, label in zip(loose, labels, strict=True) if label == wanted} for wanted in (1, 2, 3)]
    home = {name: name for name in loose}
    for place, group in enumerate(groups):
        home.update(dict.fromkeys(group, f"group {place}"))
    edges = {
        (home[source], home[node]) for node in loose for source in drawn.above[node] if source not in program.folded
    }
    edges = {(source, target) for source, target in edges if source != target}
    cyclic = _has_cycle(set(home.values()), edges)
    if cyclic:
        with pytest.raises(UsageError, match="cycle"):
            quotient_order(program, groups)
        return
    order = quotient_order(program, groups)
    assert sorted(name for group in order for name in group) == sorted(loose)
    place = {home[name]: number for number, group in enumerate(order) for name in group}
    assert all(place[source] < place[target] for source, target in edges)


def _has_cycle(nodes: set[str], edges: set[tuple[str, str]]) -> bool:
    left = set(nodes)
    while left:
        free = {node for node in left if not any(target == node and source in left for source, target in edges)}
        if not free:
            return True
        left -= free
    return False


@pytest.mark.parametrize("nodes", [["nowhere"], ["nowhere", "a"], [], ["folded"], ["a", "folded"]])
def test_what_is_no_region(nodes: list[str]) -> None:
    calls = [
        call("folded", aten.exp.default, Ref("param:w")),
        call("a", aten.add.Tensor, Ref("input:x"), Ref("folded")),
    ]
    program = program_of(calls, [Ref("a")], tensors={"param:w": torch.zeros(4)})
    assert program.folded == {"folded"}
    with pytest.raises(UsageError):
        region_of(program, nodes)


def test_quotients_of_nothing_and_of_the_unknown() -> None:
    program = program_of([call("a", aten.exp.default, Ref("input:x"))], [Ref("a")])
    assert quotient_order(program, []) == (("a",),)
    assert quotient_order(program, [[]]) == (("a",),)
    with pytest.raises(UsageError, match="expected node ids"):
        quotient_order(program, [["nowhere"]])
    with pytest.raises(UsageError, match="two regions"):
        quotient_order(program, [["a"], ["a"]])


def test_random_nodes_keep_their_order() -> None:
    """The first draw waits for a region that ends late; the second one must not overtake it."""
    x = Ref("input:x")
    program = program_of(
        [
            call("early", aten.exp.default, x),
            call("first", aten.rand_like.default, Ref("early")),
            call("second", aten.rand_like.default, x),
            call("third", aten.bernoulli.default, x),
            call("late", aten.sin.default, Ref("early")),
        ],
        [Ref("first"), Ref("second"), Ref("third"), Ref("late")],
    )
    order = [group[0] for group in quotient_order(program, [["early", "late"]])]
    assert [name for name in order if name in {"first", "second", "third"}] == ["first", "second", "third"]
    assert program.random_before == {"second": "first", "third": "second"}


# -- keys


def key(
    *args: Argument, target: torch._ops.OpOverload = aten.add.Tensor, spec: TensorSpec = SPEC, **kwargs: Argument
) -> str:
    inputs = {"input:x": spec, "input:y": spec, "input:z": spec}
    tensors = {"param:w": torch.zeros(4), "param:v": torch.ones(4)}
    program = program_of([call("n", target, *args, outputs=(spec,), **kwargs)], [Ref("n")], inputs, tensors)
    return region_of(program, ["n"]).key


def test_keys_differ_in_what_a_backend_sees() -> None:
    keys = [
        key(X, Y),
        key(X, X),
        key(X, W),
        key(W, X),
        key(X, Y, alpha=2),
        key(X, Y, alpha=2.0),
        key(X, Y, alpha=True),
        key(X, 1, target=aten.add.Scalar),
        key(X, 1.0, target=aten.add.Scalar),
        key(X, 0.0, target=aten.add.Scalar),
        key(X, -0.0, target=aten.add.Scalar),
        key(X, Y, target=aten.sub.Tensor),
        key(X, Y, spec=TensorSpec((5,), (1,), torch.float32)),
        key(X, Y, spec=TensorSpec((4,), (2,), torch.float32)),
        key(X, Y, spec=TensorSpec((4,), (1,), torch.float16)),
        key(X, Y, spec=TensorSpec((1, 4), (4, 1), torch.float32)),
    ]
    assert len(set(keys)) == len(keys)


def test_keys_do_not_see_names() -> None:
    assert key(X, Y) == key(Y, Z)
    assert key(X, W) == key(Y, Ref("param:v"))


def two_calls(first: tuple[Ref, Ref], second: tuple[Ref, Ref], outputs: list[Ref]) -> str:
    calls = [call("a", aten.sub.Tensor, *first), call("b", aten.sub.Tensor, *second)]
    return region_of(program_of(calls, outputs, {"input:x": SPEC, "input:y": SPEC}), ["a", "b"]).key


def test_keys_see_every_edge_and_what_is_handed_out() -> None:
    a, b = Ref("a"), Ref("b")
    keys = [
        two_calls((X, Y), (a, X), [b]),
        two_calls((X, Y), (a, Y), [b]),
        two_calls((X, Y), (X, a), [b]),
        two_calls((X, Y), (a, a), [b]),
        two_calls((X, Y), (X, Y), [a, b]),
        two_calls((X, Y), (Y, X), [a, b]),
        two_calls((X, Y), (a, X), [a, b]),
    ]
    assert len(set(keys)) == len(keys)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.layers[1].weight = nn.Parameter(self.layers[0].weight.detach().clone())
        self.layers[1].bias = nn.Parameter(self.layers[0].bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x) @ layer.weight.t().contiguous())
        return x


def test_equal_layers_share_a_key_and_equal_constants_the_longer_one() -> None:
    torch.manual_seed(0)
    program = capture(Layers(), (torch.ones(2, 4),))
    layers = [[f"layers.{place}.linear", relu] for place, relu in enumerate(["relu", "relu#1", "relu#2"])]
    products = [node.id for node in program.nodes if node.op == "aten.matmul.default"]
    regions = [region_of(program, [*layer, matmul]) for layer, matmul in zip(layers, products, strict=True)]
    assert len({region.key for region in regions}) == 1
    assert regions[0].graph == regions[1].graph
    folded = {f"{ref.name}.{ref.item}": ref.name for region in regions for ref in region.inputs}
    with pytest.raises(UsageError, match="digest of the folded value"):
        regions[0].key_with_constants()
    same = dict.fromkeys(folded, "same")
    assert regions[0].key_with_constants(same) == regions[1].key_with_constants(same)
    assert regions[0].key_with_constants(same) != regions[2].key_with_constants(same)
    assert regions[0].key_with_constants(folded) != regions[1].key_with_constants(folded)
    assert regions[0].key_with_constants(same) != regions[0].key


def test_a_region_runs_alone_as_it_runs_in_the_program() -> None:
    torch.manual_seed(0)
    program = capture(Layers(), (torch.ones(2, 4),))
    region = region_of(program, program.placeable)
    x = torch.randn(2, 4)
    values = run_program(program, start_values(program, program.bind((x,), {}), {}))
    every = start_values(program, program.bind((x,), {}), {})
    kept: dict[str, Tensor] = {}
    run_program(program, every, observe=lambda call, args, kwargs, results: kept.update({call.name: results[0]}))  # pyright: ignore
    given = [every[ref] if ref in every else kept[ref.name] for ref in region.inputs]
    (got,) = run_graph(region.graph, given)  # pyright: ignore[reportArgumentType]
    assert torch.equal(got, values[region.outputs[0]])  # pyright: ignore[reportArgumentType]
