# ruff: noqa: SLF001  (operators whose ATen name begins with an underscore)
"""Every operator through TVM on an OpenCL device, against eager: values that are finite and shapes that are odd."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from support.region_bench import single_call
from tapestry.backends.tvm.words import unbounded
from tapestry.errors import UnsupportedError
from tapestry.program.graph import Call, Graph, GraphInput, Ref, TensorSpec

aten = torch.ops.aten


def r(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(math.prod(shape) + len(shape)))


def ints(*shape: int, low: int = -50, high: int = 50) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(7))


def mask(*shape: int) -> torch.Tensor:
    return r(*shape) > 0


HEADS = r(1, 3, 5, 8)
HALF_MASKED = mask(1, 1, 5, 5).index_fill(2, torch.tensor([3]), False)

CASES: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    # The 21 operators of MiniLM.
    (aten.embedding.default, (r(10, 4), ints(2, 3, low=0, high=10)), {}),
    (aten.linear.default, (r(7), r(3, 7), r(3)), {}),
    (aten.linear.default, (r(2, 5, 7), r(3, 7)), {}),
    (aten.linear.default, (r(4, 7), r(3, 7), r(3)), {}),
    (aten.layer_norm.default, (r(2, 3, 12), [12], r(12), r(12)), {}),
    (aten.layer_norm.default, (r(2, 3, 4), [3, 4]), {}),
    (aten.scaled_dot_product_attention.default, (HEADS, HEADS, HEADS), {}),
    (aten.scaled_dot_product_attention.default, (HEADS, HEADS, HEADS, HALF_MASKED), {}),
    (aten.scaled_dot_product_attention.default, (HEADS, HEADS, HEADS, torch.where(HALF_MASKED, 0.0, -math.inf)), {}),
    (aten.scaled_dot_product_attention.default, (HEADS, HEADS, HEADS, None, 0.0, True), {}),
    (aten.scaled_dot_product_attention.default, (r(1, 4, 5, 8), r(1, 2, 5, 8), r(1, 2, 5, 8)), {"enable_gqa": True}),
    (aten.gelu.default, (r(3, 9) * 3,), {}),
    (aten.gelu.default, (r(3, 9) * 3,), {"approximate": "tanh"}),
    (aten.add.Tensor, (r(3, 1), r(4)), {"alpha": 2.5}),
    (aten.add.Tensor, (ints(3), torch.tensor(2.5)), {}),
    (aten.add.Tensor, (torch.tensor(1.5), torch.tensor(2.5)), {}),
    (aten.transpose.int, (r(2, 3, 4), 1, -1), {}),
    (aten.view.default, (r(2, 6), [3, -1]), {}),
    (aten.unsqueeze.default, (r(2, 3), 1), {}),
    (aten.expand.default, (r(3, 1), [2, 3, 4]), {}),
    (aten.select.int, (r(2, 3, 4), 1, -2), {}),
    (aten.slice.Tensor, (r(9, 4), 0, -7, 9223372036854775807, 2), {}),
    (aten.tanh.default, (r(9) * 20,), {}),
    (aten.clone.default, (r(2, 3).t(),), {}),
    (aten._to_copy.default, (r(9) * 9,), {"dtype": torch.int64}),
    (aten._to_copy.default, (torch.tensor([0.0, 0.5, -2.0]),), {"dtype": torch.bool}),
    (aten._to_copy.default, (mask(7),), {"dtype": torch.float32}),
    (aten.arange.start_step, (2, 20, 3), {"dtype": torch.float32}),
    (aten.index.Tensor, (r(4, 5, 6), [None, torch.tensor([1, -2]), torch.tensor([[3], [-4]])]), {}),
    (aten.index.Tensor, (r(4, 5, 6), [torch.tensor([0, -1]), None, torch.tensor([3, -4])]), {}),
    (aten.__and__.Tensor, (mask(9), mask(3, 9)), {}),
    (aten.ge.Scalar, (ints(9), 2.5), {}),
    (aten.new_ones.default, (r(3), [2, 3]), {}),
    # More.
    (aten.mul.Tensor, (mask(4), 2.5), {}),
    (aten.div.Tensor, (ints(5), ints(5, low=1)), {}),
    (aten.div.Tensor_mode, (ints(9), ints(9, low=1, high=7)), {"rounding_mode": "trunc"}),
    (aten.div.Tensor_mode, (ints(9), ints(9, low=1, high=7)), {"rounding_mode": "floor"}),
    (aten.remainder.Tensor, (ints(9), -ints(9, low=1, high=7)), {}),
    (aten.round.default, (torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5]),), {}),
    (aten.pow.Tensor_Scalar, (r(9), 3), {}),
    (aten.pow.Tensor_Scalar, (ints(9), 5), {}),
    (aten.log1p.default, (torch.tensor([1e-8, -1e-6, 0.3, -0.3, 50.0]),), {}),
    (aten.expm1.default, (torch.tensor([1e-8, -1e-6, 0.3, -0.3, 5.0]),), {}),
    (aten.atan.default, (r(9),), {}),
    (aten.where.self, (mask(3, 4), ints(3, 4), torch.tensor(0.5)), {}),
    (aten.masked_fill.Scalar, (r(3, 4), mask(3, 4), -1e9), {}),
    (aten.clamp.default, (ints(9), -3, 4), {}),
    (aten.sum.dim_IntList, (mask(3, 9), [1], True), {}),
    (aten.mean.dim, (r(3, 4, 5), [0, 2]), {}),
    (aten.mean.default, (r(3, 4, 5),), {}),
    (aten.var.correction, (r(3, 9) + 300, [1]), {"correction": 1}),
    (aten.amax.default, (r(3, 9), [0]), {}),
    (aten.max.dim, (r(3, 9), 1), {}),
    (aten.argmax.default, (-ints(4, 6).abs(), 1), {}),
    (aten.argmax.default, (r(3, 9),), {}),
    (aten.cumsum.default, (r(3, 9), 1), {}),
    (aten.sort.default, (ints(4, 9), 1), {}),
    (aten.topk.default, (r(4, 9), 3), {}),
    (aten.cat.default, ([r(2, 3), ints(2, 3), r(2, 1)], 1), {}),
    (aten.split.Tensor, (r(8, 3), 3), {}),
    (aten.constant_pad_nd.default, (r(3, 4), [1, -2], 1.5), {}),
    (aten.flip.default, (r(3, 4), [0, 1]), {}),
    (aten.roll.default, (r(3, 4), [2], [1]), {}),
    (aten.index_put.default, (r(4, 3), [torch.tensor([0, -1])], r(2, 3)), {}),
    (aten.index_put.default, (r(4, 3), [torch.tensor([1, 1, 2])], r(3, 3), True), {}),
    (aten.scatter_add.default, (r(3, 5), 1, ints(3, 4, low=0, high=5), r(3, 4)), {}),
    (aten.gather.default, (r(3, 5), 1, ints(3, 2, low=0, high=5)), {}),
    (aten.slice_scatter.default, (r(3, 5), r(3, 2), 1, 2, 4), {}),
    (aten.mm.default, (r(33, 65), r(65, 17)), {}),
    (aten.bmm.default, (r(3, 4, 5), r(3, 5, 6)), {}),
    (aten.mm.default, (ints(4, 5), ints(5, 6)), {}),
    # Sums of one term, with something fused behind them.
    (aten.conv2d.default, (r(5, 1, 4, 4), r(2, 1, 1, 1), r(2)), {}),
    (aten.conv2d.default, (r(2, 3, 4, 4), r(3, 1, 1, 1), r(3), [1, 1], [0, 0], [1, 1], 3), {}),
    (aten.conv1d.default, (r(5, 1, 4), r(1, 1, 1), r(1)), {}),
    (aten.linear.default, (r(5, 1), r(4, 1), r(4)), {}),
    (aten.addmm.default, (r(4), r(5, 1), r(1, 4)), {"alpha": 2, "beta": 3}),
    (aten.baddbmm.default, (r(2, 3, 4), r(2, 3, 1), r(2, 1, 4)), {}),
    (aten.log_softmax.int, (r(5, 1), 1), {}),
    (aten.var.correction, (torch.ones(5, 1), [1]), {"correction": 0}),
    (aten.any.default, (torch.tensor([0, 3], dtype=torch.uint8),), {}),
    (aten.conv2d.default, (r(1, 3, 8, 9), r(4, 3, 3, 3), r(4), [2, 1], [1, 0]), {}),
    (aten.conv2d.default, (r(1, 4, 8, 8), r(4, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], 4), {}),
    (
        aten._native_batch_norm_legit_no_training.default,
        (r(2, 3, 4, 4), r(3), r(3), r(3), r(3).abs() + 0.1, 0.1, 1e-5),
        {},
    ),
    (aten.max_pool2d_with_indices.default, (r(1, 2, 9, 9) - 9, [3, 3], [2, 2], [1, 1]), {}),
    (aten.avg_pool2d.default, (r(1, 2, 9, 9), [3, 3], [2, 2], [1, 1], True, False), {}),
    (aten.avg_pool2d.default, (r(1, 2, 9, 9), [3, 3], [2, 2], [1, 1], False, True, 5), {}),
    (aten._adaptive_avg_pool2d.default, (r(1, 2, 7, 7), [3, 2]), {}),
    (aten.native_group_norm.default, (r(2, 6, 5), r(6), r(6), 2, 6, 5, 3, 1e-5), {}),
]


def in_double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def bound_of(want: torch.Tensor) -> float:
    """Sums of a few hundred products at most: well under 2·sqrt(512) roundings of float32, of the largest value."""
    return 2 * math.sqrt(512) * torch.finfo(want.dtype).eps * max(1e-30, float(want.abs().max()))


def refused(bench: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Why a device without int64 refuses the call; None where it has it, or where 32 bits hold the result."""
    graph, _, _ = single_call(op, args, kwargs)
    if "int64" in bench.device.info.dtypes or unbounded_in(graph) is None:
        return None
    with pytest.raises(UnsupportedError, match="may not fit the 32 bits"):
        bench.compile(graph)
    return unbounded_in(graph)


def unbounded_in(graph: Graph) -> str | None:
    (call,) = graph.calls
    return unbounded(call, graph.inputs[0].spec.dtype, graph.inputs[0].spec.numel) if graph.inputs else None


@pytest.mark.parametrize(("op", "args", "kwargs"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_is_what_eager_computes(bench: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if (reason := refused(bench, op, args, kwargs)) is not None:
        pytest.skip(reason)
    got, want = bench.call(op, *args, **kwargs)
    exact = [leaf for leaf in pytree.tree_leaves(op(*pytree.tree_map(in_double, args), **kwargs)) if leaf is not None]
    assert len(got) == len(want)
    for one, eager, oracle in zip(got, want, exact, strict=True):
        assert (one.shape, one.dtype) == (eager.shape, eager.dtype)
        if not eager.dtype.is_floating_point or eager.numel() == 0:
            assert torch.equal(one, eager)
        else:
            assert float((one.double() - oracle.double()).abs().max()) <= bound_of(eager)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_floats_are_rounded_as_eager_rounds(bench: Any, dtype: torch.dtype) -> None:
    every = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype)
    (wide,), (want,) = bench.call(aten._to_copy.default, every, dtype=torch.float32)
    assert torch.equal(wide.nan_to_num(nan=7.0), want.nan_to_num(nan=7.0))
    spread = torch.cat([r(1000) * 10.0**power for power in range(-10, 39, 3)])
    (narrow,), (want,) = bench.call(aten._to_copy.default, spread, dtype=dtype)
    assert torch.equal(narrow.view(torch.int16), want.view(torch.int16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_floats_accumulate_in_32_bits(bench: Any, dtype: torch.dtype) -> None:
    (got,), _ = bench.call(aten.sum.dim_IntList, torch.ones(1, 1000, dtype=dtype), [1])
    assert got.tolist() == [1000.0]


def test_constants_keep_all_their_digits(bench: Any) -> None:
    factor = 1.0 + 2.0**-23
    (got,), _ = bench.call(aten.mul.Scalar, torch.ones(3), factor)
    assert got.tolist() == [factor] * 3


def test_constants_of_doubles_keep_all_their_digits(bench: Any) -> None:
    needs_doubles(bench)
    (got,), _ = bench.call(aten.mul.Scalar, torch.ones(3).double(), 1.0 / 3.0)
    assert got.tolist() == [1.0 / 3.0] * 3


def needs_doubles(bench: Any) -> None:
    """Skip on devices without them, which refuse with the reason."""
    if "float64" not in bench.device.info.dtypes:
        with pytest.raises(UnsupportedError, match="no float64"):
            bench.call(aten.neg.default, torch.ones(1).double())
        pytest.skip("the device has no float64")


def test_doubles_stay_doubles(bench: Any) -> None:
    needs_doubles(bench)
    (got,), (want,) = bench.call(aten.mm.default, r(4, 5).double(), r(5, 6).double())
    assert float((got - want).abs().max()) <= 2 * math.sqrt(5) * torch.finfo(torch.float64).eps * 25


def test_layer_norm_survives_a_mean_far_from_zero(bench: Any) -> None:
    x = 300 + 0.01 * r(4, 384)
    (got,), _ = bench.call(aten.layer_norm.default, x, [384])
    want = aten.layer_norm.default(x.double(), [384])
    # The mean itself is known to half an ulp of 300, here 1.5e-5, beside a spread of 0.01.
    assert float((got - want).abs().max()) < 3 * 1.5e-5 / 0.01


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16], ids=str)
def test_narrow_integers_wrap_around(bench: Any, dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.min + 1, 0, 1, info.max - 1, info.max], dtype=dtype)
    y = torch.tensor([1, 3, -1 if info.min else 255, 7, 2, info.max], dtype=dtype)
    for op, args, kwargs in (
        (aten.add.Tensor, (x, y), {}),
        (aten.sub.Tensor, (x, y), {}),
        (aten.mul.Tensor, (x, y), {}),
        (aten.neg.default, (x,), {}),
        (aten.bitwise_not.default, (x,), {}),
        (aten.bitwise_left_shift.Tensor_Scalar, (x, 3), {}),
        (aten.mul.Scalar, (x, 5), {}),
        (aten._to_copy.default, (x.to(torch.int32) * 1000,), {"dtype": dtype}),
    ):
        (got,), (want,) = bench.call(op, *args, **kwargs)
        assert got.tolist() == want.tolist(), op


def test_a_comparison_sees_wrapped_values(bench: Any) -> None:
    """Inside one region: 100 + 100 is -56 in int8, and less than 0."""

    def graph() -> Graph:
        eight = TensorSpec((2,), (1,), torch.int8)
        added = Call("n0", aten.add.Tensor, (Ref("i0"), Ref("i0")), (), (eight,))
        less = Call("n1", aten.lt.Scalar, (Ref("n0"), 0), (), (TensorSpec((2,), (1,), torch.bool),))
        return Graph((GraphInput("i0", eight),), (added, less), (Ref("n1"),))

    (got,) = bench.run(graph(), bench.compile(graph()), [torch.tensor([100, 10], dtype=torch.int8)])
    assert got.tolist() == [True, False]


def test_a_grid_over_the_limit_is_split(bench: Any) -> None:
    x = torch.arange(65_536 * 256 + 300, dtype=torch.float32)
    (got,), _ = bench.call(aten.mul.Scalar, x, 2.0)
    assert torch.equal(got, x * 2)


def test_loops_that_the_device_would_leave_are_refused(bench: Any) -> None:
    x = torch.zeros(2, 70_000)
    x[:, -1] = 1.0
    most = bench.device.info.limits.max_loop_iterations
    if most and most < x.shape[1]:
        with pytest.raises(UnsupportedError, match=f"over the device's limit of {most:,}"):
            bench.call(aten.amax.default, x, [1])
    else:
        (got,), _ = bench.call(aten.amax.default, x, [1])
        assert got.tolist() == [1.0, 1.0]
