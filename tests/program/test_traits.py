"""Which nodes stay on the source and why, what is a view, and what is folded: single operators, and in programs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tapestry.numerics.float64 import is_random as oracle_finds_random
from tapestry.program import traits
from tapestry.program.capture import capture
from tapestry.program.graph import Argument, Call, Ref

aten = torch.ops.aten
X = Ref("x")


def call(target: torch._ops.OpOverload, *args: Argument, **kwargs: Argument) -> Call:
    return Call("n", target, args, tuple(kwargs.items()), (None,))


@pytest.mark.parametrize(
    ("given", "random"),
    [
        (call(aten.dropout.default, X, 0.5, True), True),
        (call(aten.dropout.default, X, 0.5, False), False),
        (call(aten.dropout.default, X, 0.0, True), False),
        (call(aten.native_dropout.default, X, 0.5, True), True),
        (call(aten.native_dropout.default, X, 0.5, False), False),
        (call(aten.native_dropout.default, X, 0.5, None), True),
        (call(aten.scaled_dot_product_attention.default, X, X, X), False),
        (call(aten.scaled_dot_product_attention.default, X, X, X, None, 0.0, True), False),
        (call(aten.scaled_dot_product_attention.default, X, X, X, dropout_p=0.1), True),
        (call(aten.bernoulli.default, X), True),
        (call(aten.bernoulli.p, X, 0.0), True),  # draws all the same: later numbers would move
        (call(aten.lstm.input, X, (X, X), (X,), True, 2, 0.0, True, False, True), False),
        (call(aten.lstm.input, X, (X, X), (X,), True, 2, 0.5, True, False, True), True),
        (call(aten.lstm.input, X, (X, X), (X,), True, 2, 0.5, False, False, True), False),
        (call(aten.rand_like.default, X), True),
        (call(aten.randperm.default, 4), True),
        (call(aten.multinomial.default, X, 2), True),
        (call(aten.relu.default, X), False),
    ],
)
def test_random(given: Call, random: bool) -> None:
    assert traits.is_random(given) is random
    reason = traits.place_reason(given)
    assert (reason is not None and reason.startswith("random")) is random


def test_the_oracle_finds_the_same_calls_random() -> None:
    """Two layers decide it for themselves: they must not differ on attention and dropout."""
    q = torch.ones(1, 1, 2, 2)
    for target, args in [
        (aten.dropout.default, (q, 0.5, True)),
        (aten.dropout.default, (q, 0.0, True)),
        (aten.native_dropout.default, (q, 0.5, False)),
        (aten.scaled_dot_product_attention.default, (q, q, q)),
        (aten.scaled_dot_product_attention.default, (q, q, q, None, 0.5)),
    ]:
        plain = [X if isinstance(value, Tensor) else value for value in args]
        assert traits.is_random(call(target, *plain)) is oracle_finds_random(target, args, {}), target


@pytest.mark.parametrize(
    ("target", "view"),
    [
        (aten.transpose.int, True),
        (aten.expand.default, True),
        (aten.split.Tensor, True),
        (aten.view.default, True),
        (aten._unsafe_view.default, True),  # noqa: SLF001
        (aten.unbind.int, True),
        (aten.clone.default, False),
        (aten.relu_.default, False),
        (aten.add.Tensor, False),
        (aten._to_copy.default, False),  # noqa: SLF001
    ],
)
def test_views(target: torch._ops.OpOverload, view: bool) -> None:
    assert traits.is_view(target) is view


def test_arguments_by_name() -> None:
    given = call(aten.gelu.default, X, approximate="tanh")
    assert (traits.argument(given, "self"), traits.argument(given, "approximate")) == (X, "tanh")
    assert traits.argument(call(aten.add.Tensor, X, X), "alpha") == 1
    with pytest.raises(KeyError):
        traits.argument(given, "other")


def test_places_in_a_program() -> None:
    def model(x: Tensor) -> tuple[Tensor, ...]:
        noise = torch.rand(3)
        table = torch.arange(3.0).exp() * 2
        strided = x.as_strided((2,), (3,), 1)
        unwritten = torch.empty(3)
        attended = F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.0)
        return noise + x, table * x, strided, unwritten.zero_(), attended

    program = capture(model, (torch.ones(2, 3),))
    placed = {node.op: (node.id in program.folded, node.id in program.placeable) for node in program.nodes}
    assert placed["aten.rand.default"] == (False, False)
    assert placed["aten.as_strided.default"] == (False, False)
    assert placed["aten.exp.default"] == (True, False)
    assert placed["aten.scaled_dot_product_attention.default"] == (False, True)
    assert placed["aten.add.Tensor"] == (False, True)
    assert all(traits.place_reason(node.call) for node in program.nodes if "rand" in node.op or "strided" in node.op)
    assert set(program.placeable).isdisjoint(program.folded)
    assert list(program.placeable) == sorted(program.placeable, key=program.position.__getitem__)


def test_compute_nodes_have_a_floating_result_and_compute() -> None:
    def model(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        return x.t(), x.exp(), x > 0, index + 1, x[index], torch.arange(3.0) * 2

    program = capture(model, (torch.ones(2, 3), torch.tensor([0])))
    assert {program.by_id[node_id].op for node_id in program.compute} == {"aten.exp.default", "aten.index.Tensor"}


def test_a_custom_operator_with_the_name_of_a_no_op_is_kept() -> None:
    with torch.library._scoped_library("tapestry_test", "FRAGMENT") as library:  # noqa: SLF001
        library.define("detach(Tensor x) -> Tensor")
        library.impl("detach", lambda x: x * 3, "CompositeExplicitAutograd")
        program = capture(torch.ops.tapestry_test.detach, (torch.ones(3),))
        assert [node.op for node in program.nodes] == ["tapestry_test.detach.default"]
