"""What arguments mean, for operators of every family."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tapestry.suite.variants.call import OpCall
from tapestry.suite.variants.meaning import AttributeRole, attribute_role, attributes, tensor_meanings

aten = torch.ops.aten
NORM = getattr(aten, "_native_batch_norm_legit_no_training").default  # noqa: B009


def x(*shape: int) -> Tensor:
    return torch.zeros(shape)


def i(*values: int) -> Tensor:
    return torch.tensor(values)


def b(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.bool)


def call(target: torch._ops.OpOverload, *args: object, **kwargs: object) -> OpCall:
    return OpCall(target, args, kwargs)


#: A call, and the role of each of its tensors; ``index low..high`` with the legal range, ``distinct`` where needed.
_ROLES: list[tuple[Callable[[], OpCall], str]] = [
    (lambda: call(aten.relu.default, x(3)), "data"),
    (lambda: call(aten.add.Tensor, x(3), x(3)), "data, data"),
    (lambda: call(aten.where.self, b(3), x(3), x(3)), "mask, data, data"),
    (lambda: call(aten.masked_fill.Scalar, x(3), b(3), 0.0), "data, mask"),
    (lambda: call(aten.masked_fill.Tensor, x(3), b(3), x()), "data, mask, data"),
    (lambda: call(aten.masked_select.default, x(3), b(3)), "data, mask"),
    (lambda: call(aten.linear.default, x(2, 3), x(4, 3), x(4)), "data, weight, bias"),
    (lambda: call(aten.mm.default, x(2, 3), x(3, 4)), "data, data"),
    (lambda: call(aten.addmm.default, x(4), x(2, 3), x(3, 4)), "data, data, data"),
    (lambda: call(aten.conv2d.default, x(1, 2, 5, 5), x(3, 2, 3, 3), x(3)), "data, weight, bias"),
    (lambda: call(aten.layer_norm.default, x(2, 5), [5], x(5), x(5)), "data, weight, bias"),
    (lambda: call(aten.rms_norm.default, x(2, 5), [5], x(5)), "data, weight"),
    (lambda: call(aten.group_norm.default, x(2, 4, 3), 2, x(4), x(4)), "data, weight, bias"),
    (
        lambda: call(NORM, x(2, 4, 3), x(4), x(4), x(4), x(4), 0.1, 1e-5),
        "data, weight, bias, mean, variance",
    ),
    (
        lambda: call(aten.batch_norm.default, x(2, 4), None, None, x(4), x(4), False, 0.1, 1e-5, False),
        "data, mean, variance",
    ),
    (lambda: call(aten.embedding.default, x(7, 4), i(1, 2)), "weight, index 0..6"),
    (lambda: call(aten.embedding_bag.default, x(7, 4), i(1, 2), i(0)), "weight, index 0..6, lengths"),
    (lambda: call(aten.gather.default, x(3, 5), -1, i(0).expand(3, 1)), "data, index 0..4"),
    (lambda: call(aten.take_along_dim.default, x(3, 5), i(0).expand(3, 1), 0), "data, index 0..2"),
    (lambda: call(aten.take_along_dim.default, x(3, 5), i(0)), "data, index 0..14"),
    (lambda: call(aten.take.default, x(3, 5), i(0)), "data, index -15..14"),
    (lambda: call(aten.put.default, x(3, 5), i(0, 1), x(2)), "data, index -15..14 distinct, data"),
    (lambda: call(aten.index_select.default, x(3, 5), 1, i(0)), "data, index 0..4"),
    (lambda: call(aten.index_add.default, x(3, 5), 0, i(0), x(1, 5)), "data, index 0..2, data"),
    (lambda: call(aten.index_copy.default, x(3, 5), 0, i(0, 1), x(2, 5)), "data, index 0..2 distinct, data"),
    (lambda: call(aten.index_fill.int_Scalar, x(3, 5), 1, i(0), 1.0), "data, index 0..4"),
    (lambda: call(aten.index.Tensor, x(3, 5), [None, i(1)]), "data, index -5..4"),
    (lambda: call(aten.index.Tensor, x(3, 5, 7), [b(3, 5), i(1)]), "data, mask, index -7..6"),
    (lambda: call(aten.index_put.default, x(3, 5), [i(0, 1)], x(2, 5)), "data, index -3..2 distinct, data"),
    (lambda: call(aten.index_put.default, x(3, 5), [i(0, 1)], x(2, 5), True), "data, index -3..2, data"),
    (lambda: call(aten.index_put.default, x(3, 5), [i(0, 1)], x()), "data, index -3..2, data"),
    (lambda: call(aten.scatter.src, x(3, 5), 1, i(0, 1).expand(3, 2), x(3, 2)), "data, index 0..4 distinct, data"),
    (lambda: call(aten.scatter.value, x(3, 5), 1, i(0, 1).expand(3, 2), 1.0), "data, index 0..4"),
    (lambda: call(aten.scatter_add.default, x(3, 5), 1, i(0, 1).expand(3, 2), x(3, 2)), "data, index 0..4, data"),
    (lambda: call(aten.nll_loss.default, x(3, 5), i(0, 1, 2)), "data, index 0..4"),
    (lambda: call(aten.cross_entropy_loss.default, x(3, 5), i(0, 1, 2)), "data, index 0..4"),
    (lambda: call(aten.cross_entropy_loss.default, x(3, 5), x(3, 5)), "data, data"),
    (lambda: call(aten.one_hot.default, i(0, 3), 6), "index 0..5"),
    (lambda: call(aten.one_hot.default, i(0, 3)), "index 0..3"),
    (lambda: call(aten.bincount.default, i(0, 3)), "index 0..3"),
    (lambda: call(aten.searchsorted.Tensor, x(5), x(3)), "sorted, data"),
    (lambda: call(aten.bucketize.Tensor, x(5), x(3)), "data, sorted"),
    (lambda: call(aten.repeat_interleave.self_Tensor, x(2), i(1, 2)), "data, lengths"),
    (lambda: call(aten.cat.default, [x(2), x(3)]), "data, data"),
    (lambda: call(aten.binary_cross_entropy.default, x(3), x(3), x(3)), "probability, probability, weight"),
    (
        lambda: call(aten.scaled_dot_product_attention.default, x(1, 2, 3), x(1, 2, 3), x(1, 2, 3), b(2, 2)),
        "data, data, data, mask",
    ),
    (
        lambda: call(aten.scaled_dot_product_attention.default, x(1, 2, 3), x(1, 2, 3), x(1, 2, 3), attn_mask=x(2, 2)),
        "data, data, data, added mask",
    ),
    (lambda: call(aten.logical_and.default, b(3), b(3)), "data, data"),
    (lambda: call(aten.lu_unpack.default, x(3, 3), i(1, 2, 3).int()), "fixed, fixed"),
]


def _described(made: OpCall) -> str:
    words: list[str] = []
    for meaning in tensor_meanings(made):
        span = f" {meaning.low}..{meaning.high}" if meaning.high >= meaning.low else ""
        words.append(f"{meaning.role}{span}{' distinct' if meaning.distinct else ''}")
    return ", ".join(words)


@pytest.mark.parametrize(("make", "roles"), _ROLES, ids=lambda value: str(value) if isinstance(value, str) else "")
def test_roles(make: Callable[[], OpCall], roles: str) -> None:
    made = make()
    with torch.no_grad():
        made.target(*made.args, **made.kwargs)  # the table holds calls that eager takes
    assert _described(made) == roles


def test_places_follow_the_tensors_of_the_call() -> None:
    made = OpCall(aten.index.Tensor, (x(3, 5), [None, i(1)]), {}, frozenset({0}))
    meanings = tensor_meanings(made)
    assert [meaning.place for meaning in meanings] == [0, 1]
    assert [meaning.constant for meaning in meanings] == [True, False]
    assert meanings[1].entry == 1


def test_a_class_count_that_the_largest_index_decides_must_be_reached() -> None:
    assert tensor_meanings(call(aten.one_hot.default, i(0, 3)))[0].reaches_high
    assert not tensor_meanings(call(aten.one_hot.default, i(0, 3), 6))[0].reaches_high


@pytest.mark.parametrize(
    ("name", "kind", "operator", "role"),
    [
        ("dim", "int", "softmax", AttributeRole.DIM),
        ("dim", "Optional[List[int]]", "sum", AttributeRole.DIMS),
        ("dims", "List[int]", "permute", AttributeRole.DIMS),
        ("normalized_shape", "List[int]", "layer_norm", AttributeRole.SHAPE),
        ("kernel_size", "List[int]", "avg_pool2d", AttributeRole.WINDOW),
        ("dilation", "List[int]", "conv2d", AttributeRole.STEP),
        ("keepdim", "bool", "sum", AttributeRole.FLAG),
        ("p", "float", "dropout", AttributeRole.PROBABILITY),
        ("p", "number", "norm", AttributeRole.ORDER),
        ("alpha", "number", "add", AttributeRole.FACTOR),
        ("approximate", "str", "gelu", AttributeRole.MODE),
        ("indices", "List[int]", "tensor_split", AttributeRole.POSITION),
        ("dtype", "Optional[int]", "sum", AttributeRole.DTYPE),
        ("memory_format", "Optional[int]", "clone", AttributeRole.PLACEMENT),
        ("eps", "float", "layer_norm", AttributeRole.EPSILON),
        ("never_seen", "int", "", AttributeRole.OTHER),
    ],
)
def test_attribute_roles(name: str, kind: str, operator: str, role: AttributeRole) -> None:
    assert attribute_role(name, kind, operator) == role


def test_attributes_say_whether_the_call_gives_them() -> None:
    found = {entry.name: entry for entry in attributes(call(aten.sum.dim_IntList, x(2, 3), [1]))}
    assert (found["dim"].given, found["dim"].value) == (True, [1])
    assert (found["keepdim"].given, found["keepdim"].value) == (False, False)
    assert "self" not in found
