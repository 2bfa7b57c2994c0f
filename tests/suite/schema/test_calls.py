"""Calls of overloads of all kinds: they run, repeat, differ, and have the arguments that the schema names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tapestry.errors import UsageError
from tapestry.numerics.arguments import bind, tensors_in
from tapestry.suite.schema.calls import NoCalls, SchemaCall, all_calls, calls_for
from tapestry.suite.schema.overloads import find
from tapestry.suite.schema.trial import DRAWS, UNWRITTEN, copies

#: Overloads that exported graphs hold, of all kinds: elementwise, scalar, in-place, composite, view, index, factory,
#: random, recurrent, quantised; called by PyTorch's samples, and not.
OVERLOADS = """
aten.tanh.default aten.round.default aten.relu.default aten.gelu.default aten.add.Tensor aten.add_.Tensor
aten.add.Scalar aten.mul.Tensor aten.mul.Scalar aten.minimum.default aten.pow.Tensor_Scalar aten.pow.Scalar
aten.eq.Scalar aten.__and__.Tensor aten.remainder.Tensor aten.div.Tensor_mode aten.where.self aten.where.ScalarOther
aten.masked_fill_.Scalar aten.fill_.Scalar aten.zero_.default aten.copy_.default aten.linear.default
aten.matmul.default aten.addmm.default aten.conv1d.default aten.conv2d.default aten.conv2d.padding
aten.convolution.default aten.max_pool2d.default aten.avg_pool2d.default aten.upsample_nearest2d.vec
aten.batch_norm.default aten.native_layer_norm.default aten.layer_norm.default aten.rms_norm.default
aten.softmax.int aten._softmax.default aten._safe_softmax.default aten.scaled_dot_product_attention.default
aten.sum.dim_IntList aten.argmax.default aten.cumsum.default aten.flip.default aten.reshape.default
aten.view.default aten._unsafe_view.default aten.slice.Tensor aten.select.int aten.unsqueeze.default
aten.expand.default aten.cat.default aten.stack.default aten.split.Tensor aten.split_with_sizes.default
aten.chunk.default aten.alias.default aten.detach.default aten._to_copy.default aten.to.dtype aten.to.dtype_layout
aten.lift_fresh_copy.default aten.index.Tensor aten.index_put.default aten.index_put_.default aten.scatter_.src
aten.index_copy_.default aten.embedding.default aten.arange.start_step aten.full.default aten.scalar_tensor.default
aten.lstm.input aten.gru.input aten.rand_like.default aten.empty_like.default

""".split()  # noqa: SIM905 - a table

#: What takes no float32 first, or only small ones.
OTHERS = {
    "aten.where.self",
    "aten.where.ScalarOther",
    "aten.__and__.Tensor",
    "aten.scalar_tensor.default",
    "aten.arange.start_step",
}


def run(call: SchemaCall) -> list[object]:
    """The results and the arguments afterwards; random numbers from a fixed seed."""
    positional, named = copies([call.args, list(call.kwargs.values())])
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        result = call.target(*positional, **dict(zip(call.kwargs, named, strict=True)))
    return [result, positional, named]


def alike(first: object, second: object) -> bool:
    left, right = list(tensors_in(first)), list(tensors_in(second))
    return len(left) == len(right) and all(map(same, left, right))


def same(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", OVERLOADS)
def test_calls_run_and_repeat(op: str) -> None:
    calls = calls_for(op, 8)
    assert calls
    first = next(tensors_in([calls[0].args, list(calls[0].kwargs.values())]), None)
    assert first is None or op in OTHERS or (first.dtype == torch.float32 and first.numel() >= 16)
    for call in calls:
        assert str(call.target) == op
        assert call.source
        first, second = run(call), run(call)
        assert call.not_repeatable == UNWRITTEN or alike(first, second)


@pytest.mark.parametrize(
    ("op", "shows"),
    [
        pytest.param("aten.add.Tensor", lambda given: given["alpha"] != 1, id="alpha"),
        pytest.param("aten.add_.Tensor", lambda given: given["alpha"] != 1, id="alpha in place"),
        pytest.param("aten.avg_pool2d.default", lambda given: list(given["stride"]) == [], id="stride left out"),
        pytest.param("aten.avg_pool2d.default", lambda given: given["divisor_override"], id="divisor"),
        pytest.param("aten.avg_pool2d.default", lambda given: given["ceil_mode"], id="ceil mode"),
        pytest.param("aten.linear.default", lambda given: given["bias"] is None, id="no bias"),
        pytest.param("aten.linear.default", lambda given: given["bias"] is not None, id="bias"),
        pytest.param("aten.softmax.int", lambda given: given["dim"] < 0, id="axis from the end"),
        pytest.param("aten.softmax.int", lambda given: given["dim"] >= 0, id="axis from the start"),
        pytest.param("aten.softmax.int", lambda given: given["dtype"] is not None, id="dtype"),
        pytest.param("aten.sum.dim_IntList", lambda given: given["keepdim"], id="keepdim"),
        pytest.param("aten.flip.default", lambda given: len(given["dims"]) > 1, id="two axes"),
        pytest.param("aten.rms_norm.default", lambda given: given["weight"] is not None, id="weight"),
        pytest.param("aten.gelu.default", lambda given: given["approximate"] == "tanh", id="approximate"),
        pytest.param("aten.conv2d.default", lambda given: given["groups"] > 1, id="groups"),
        pytest.param("aten.index_put.default", lambda given: given["accumulate"], id="accumulate"),
        pytest.param("aten.div.Tensor_mode", lambda given: given["rounding_mode"] == "floor", id="rounding mode"),
        pytest.param("aten.scaled_dot_product_attention.default", lambda given: given["is_causal"], id="causal"),
        pytest.param("aten.upsample_bilinear2d.vec", lambda given: given["align_corners"], id="corners"),
    ],
)
def test_some_call_shows(op: str, shows: Callable[[dict[str, Any]], bool]) -> None:
    assert any(shows(bind(call.target, call.args, call.kwargs)) for call in calls_for(op))


@pytest.mark.parametrize(
    ("op", "dtypes"),
    [
        ("aten.mul.Tensor", "float32 float16 bfloat16 int64 int32 uint8 int8 bool float64"),
        ("aten.relu.default", "float32 float16 bfloat16 int64 int32 uint8 int8 float64"),
        ("aten.linear.default", "float32 float16 bfloat16 float64"),
        ("aten.eq.Scalar", "float32 float16 bfloat16 int64 int32 uint8 int8 bool float64"),
        ("aten.bitwise_and.Tensor", "int64 int32 uint8 int8 bool"),
    ],
)
def test_dtypes_that_the_operator_takes(op: str, dtypes: str) -> None:
    found = {str(next(tensors_in(list(call.args))).dtype)[6:] for call in calls_for(op)}
    assert found >= set(dtypes.split())


def test_several_ranks_of_float32() -> None:
    firsts = [next(tensors_in(list(call.args))) for call in calls_for("aten.tanh.default")]
    assert {tensor.dim() for tensor in firsts if tensor.dtype == torch.float32} >= {1, 2, 3}


def test_what_is_random_says_so() -> None:
    assert {call.not_repeatable for call in calls_for("aten.rand_like.default", 4)} == {DRAWS}
    assert {call.not_repeatable for call in calls_for("aten.empty_like.default", 4)} == {UNWRITTEN}
    assert {call.not_repeatable for call in calls_for("aten.relu.default", 4)} == {""}


def test_the_same_calls_every_time() -> None:
    first = calls_for("aten.sub.Tensor", 12)
    all_calls.cache_clear()
    torch.rand(3)
    second = calls_for("aten.sub.Tensor", 12)
    assert [call.source for call in first] == [call.source for call in second]
    assert all(alike([one.args, one.kwargs], [two.args, two.kwargs]) for one, two in zip(first, second, strict=True))


def test_random_state_of_the_caller_is_kept() -> None:
    all_calls.cache_clear()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        calls_for("aten.abs.default", 4)
        assert torch.equal(torch.rand(3), expected)


def test_limit_is_kept() -> None:
    assert len(calls_for("aten.mul.Tensor", 3)) == 3
    assert len(calls_for("aten.mul.Tensor", 24)) == 24


@pytest.mark.parametrize(
    ("op", "says"),
    [
        ("aten.add.Wrong", "aten.add.Tensor"),
        ("aten.no_such_operator.default", "no operator of that name"),
        ("add", "expected an overload such as aten.add.Tensor"),
        ("aten.add", "the operator has aten.add.Tensor"),
    ],
)
def test_unknown_overloads(op: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        calls_for(op)


@pytest.mark.parametrize(
    ("op", "says"),
    [
        ("aten.cudnn_convolution.default", "no kernel for dense tensors on the CPU"),
        ("aten.set_.source_Storage", "argument source is a Storage"),
        ("aten.crow_indices.default", "no arguments guessed"),
    ],
)
def test_overloads_without_calls_say_why(op: str, says: str) -> None:
    assert find(op) is not None
    with pytest.raises(NoCalls, match=says):
        calls_for(op)
