"""Matrix products, softmax, norms and attention that ship, over shapes, in every schedule, judged as cases are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.region_bench import Bench, single_call
from tapestry.backends.kernels.backend import Kernels
from tapestry.backends.kernels.schedule import FAMILIES, KernelOptions
from tapestry.numerics import flatten_result, judge, oracle
from tapestry.numerics.verdict import Verdict
from tapestry.program.graph import Graph
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Compiled
from tapestry.runtime.open import open_in_process

aten = torch.ops.aten
SOFTMAX, SAFE_SOFTMAX = (getattr(aten, name).default for name in ("_softmax", "_safe_softmax"))

#: Every example builds its own kernels, which takes Mesa's software adapter up to a second.
FEW = settings(max_examples=3, deadline=None)
DTYPES = st.sampled_from([torch.float32, torch.float32, torch.float16, torch.bfloat16])
SIZES = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 17, 20, 33])


@pytest.fixture(scope="module", params=["invocation", pytest.param("large", marks=pytest.mark.thorough), "workgroup"])
def schedule(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("opencl:0", marks=pytest.mark.opencl),
        pytest.param("webgpu:0", marks=pytest.mark.webgpu),
    ],
)
def bench(request: pytest.FixtureRequest, schedule: str) -> Iterator[Bench]:
    """``large`` is a schedule of matrix products; the others are the usual ones then."""

    def compiled(graph: Graph, info: DeviceInfo, options: Any) -> Compiled:
        usual = "invocation" if schedule == "large" else schedule
        chosen = {**dict.fromkeys(FAMILIES, usual), "matmul": schedule}
        return Kernels().compile(graph, info, msgspec.convert(chosen, KernelOptions))

    device = open_in_process(request.param)
    yield Bench(device, compiled)
    device.close()


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def wrong(bench: Bench, op: Any, *args: Any, **kwargs: Any) -> str:
    """Why the device's result is not right; empty when it is. Judged against the oracle as a replayed case is."""
    graph, values, want = single_call(op, args, kwargs)
    got = bench.run(graph, bench.compile(graph), values)
    judgement = judge(op, args, kwargs, got, flatten_result(tuple(want)), oracle(op, args, kwargs))
    return "" if judgement.verdict in (Verdict.PASS, Verdict.UNDEFINED) else judgement.reason


@given(rows=SIZES, depth=SIZES, columns=SIZES, dtype=DTYPES, biased=st.booleans())
@FEW
def test_linear(bench: Bench, rows: int, depth: int, columns: int, dtype: torch.dtype, biased: bool) -> None:
    bias = r(columns, dtype=dtype) if biased else None
    assert not wrong(bench, aten.linear.default, r(rows, depth, dtype=dtype), r(columns, depth, dtype=dtype), bias)


@given(rows=SIZES, depth=SIZES, columns=SIZES, dtype=DTYPES)
@FEW
def test_mm(bench: Bench, rows: int, depth: int, columns: int, dtype: torch.dtype) -> None:
    assert not wrong(bench, aten.mm.default, r(rows, depth, dtype=dtype), r(depth, columns, dtype=dtype))


@given(
    rows=SIZES,
    depth=SIZES,
    columns=SIZES,
    bias=st.sampled_from(["row", "column", "all", "one"]),
    beta=st.sampled_from([1, 0, -0.5]),
)
@FEW
def test_addmm(bench: Bench, rows: int, depth: int, columns: int, bias: str, beta: float) -> None:
    b = {"row": r(columns), "column": r(rows, 1), "all": r(rows, columns), "one": r(1)}[bias]
    b = b.fill_(math.nan) if beta == 0 else b
    assert not wrong(bench, aten.addmm.default, b, r(rows, depth), r(depth, columns), beta=beta, alpha=0.1)


@pytest.mark.parametrize(
    ("x", "w"),
    [
        ((5, 7), (7,)), ((7,), (7, 5)), ((7,), (7,)), ((2, 3, 5, 7), (7, 4)), ((5, 7), (3, 7, 4)),
        ((2, 1, 5, 8), (3, 8, 4)), ((3, 1, 1, 9), (1, 2, 9, 1)), ((2, 3, 5, 7), (7,)), ((7,), (3, 7, 4)),
    ],
)  # fmt: skip
def test_matmul_broadcasts(bench: Bench, x: tuple[int, ...], w: tuple[int, ...]) -> None:
    assert not wrong(bench, aten.matmul.default, r(*x), r(*w))


def test_bmm(bench: Bench) -> None:
    assert not wrong(bench, aten.bmm.default, r(3, 18, 12), r(3, 12, 20))


@pytest.mark.parametrize("op", [aten.mm.default, aten.linear.default], ids=str)
def test_products_of_special_values(bench: Bench, op: Any) -> None:
    x, w = r(9, 12), r(12, 12)
    x[1, 2], x[2, 3], w[4, 4] = math.nan, math.inf, -math.inf
    assert not wrong(bench, op, x, w)


@pytest.mark.parametrize("depth", [4096, 5001])
def test_long_sums(bench: Bench, depth: int) -> None:
    x, w = torch.full((6, depth), 0.1), r(10, depth).abs()
    assert not wrong(bench, aten.linear.default, x, w)
    assert not wrong(bench, aten.mm.default, x, w.t().contiguous())


def test_more_tiles_than_groups_along_one_dimension(bench: Bench) -> None:
    assert not wrong(bench, aten.linear.default, r(5, 1), r(600_000, 1))


@given(shape=st.lists(SIZES, min_size=1, max_size=3), dim=st.integers(0, 2), dtype=DTYPES)
@FEW
def test_softmax(bench: Bench, shape: list[int], dim: int, dtype: torch.dtype) -> None:
    assert not wrong(bench, aten.softmax.int, r(*shape, dtype=dtype) * 8, dim % len(shape) - len(shape))


@pytest.mark.parametrize("length", [9, 200])
def test_softmax_of_special_values(bench: Bench, length: int) -> None:
    x = r(6, length)
    x[0, 1], x[1, 2], x[2, 3], x[3, :-1], x[4] = math.nan, -math.inf, math.inf, -math.inf, -math.inf
    assert not wrong(bench, SOFTMAX, x, -1, False)
    assert not wrong(bench, SAFE_SOFTMAX, x, 1)


def test_softmax_of_more_rows_than_groups(bench: Bench) -> None:
    assert not wrong(bench, aten.softmax.int, r(70_000, 3), -1)


@given(rows=SIZES, length=SIZES, dtype=DTYPES, weighted=st.booleans(), eps=st.sampled_from([None, 1e-6, 0.1]))
@FEW
def test_rms_norm(bench: Bench, rows: int, length: int, dtype: torch.dtype, weighted: bool, eps: float | None) -> None:
    weight = r(length, dtype=dtype) if weighted else None
    assert not wrong(bench, aten.rms_norm.default, r(rows, length, dtype=dtype), [length], weight, eps)


@pytest.mark.parametrize(
    "x",
    [
        pytest.param(r(3, 7, 384), id="ordinary"),
        pytest.param(300 + 0.01 * r(9, 384), id="far from zero"),
        pytest.param(torch.full((3, 384), 300.0), id="equal"),
        pytest.param(torch.full((3, 384), 1e38), id="the sum overflows"),
        pytest.param(1e30 * r(3, 384), id="the squares overflow"),
        pytest.param(1e-30 * r(3, 384), id="the squares are 0"),
        pytest.param(torch.tensor([math.nan, 1.0] * 192)[None], id="NaN"),
        pytest.param(r(2, 1), id="one value"),
        pytest.param(r(70_000, 3), id="more rows than groups"),
    ],
)
def test_layer_norm(bench: Bench, x: torch.Tensor) -> None:
    length = x.shape[-1]
    assert not wrong(bench, aten.layer_norm.default, x, [length], r(length), r(length + 1)[1:], 1e-12)


@given(rows=SIZES, length=SIZES, dtype=DTYPES, given=st.integers(0, 2))
@FEW
def test_layer_norm_without_bias_or_weight(
    bench: Bench, rows: int, length: int, dtype: torch.dtype, given: int
) -> None:
    affine = [r(length, dtype=dtype), r(length + 1, dtype=dtype)[1:]][:given] + [None] * (2 - given)
    assert not wrong(bench, aten.layer_norm.default, r(rows, length, dtype=dtype), [length], *affine, 1e-5)


def test_layer_norm_over_two_dimensions(bench: Bench) -> None:
    assert not wrong(bench, aten.layer_norm.default, r(2, 3, 4, 5), [4, 5], r(4, 5), r(20).view(4, 5))


@given(
    batch=st.sampled_from([(), (2,), (2, 3)]), rows=SIZES, keys=SIZES, depth=SIZES, width=SIZES, dtype=DTYPES,
    mask=st.sampled_from(["", "causal", "bool", "float", "row"]), scale=st.sampled_from([None, 0.3]),
)  # fmt: skip
@FEW
def test_attention(
    bench: Bench, batch: tuple[int, ...], rows: int, keys: int, depth: int, width: int, dtype: torch.dtype, mask: str,
    scale: float | None,
) -> None:  # fmt: skip
    q, k, v = (
        r(*batch, rows, depth, dtype=dtype),
        r(*batch, keys, depth, dtype=dtype),
        r(*batch, keys, width, dtype=dtype),
    )
    kept = torch.rand(rows, keys, generator=torch.Generator().manual_seed(0)) > 0.3
    kept[0] = False  # a row that is masked as a whole
    masks = {"bool": kept, "row": kept[-1:], "float": r(rows, keys, dtype=dtype)}
    assert not wrong(
        bench, aten.scaled_dot_product_attention.default, q, k, v, masks.get(mask), 0.0, mask == "causal", scale=scale
    )


def test_attention_over_many_keys_and_wide_values(bench: Bench) -> None:
    assert not wrong(bench, aten.scaled_dot_product_attention.default, r(2, 5, 20), r(2, 150, 20), r(2, 150, 130))


def test_attention_of_grouped_heads(bench: Bench) -> None:
    q, k, v = r(2, 6, 5, 8), r(2, 2, 9, 8), r(2, 2, 9, 8)
    assert not wrong(bench, aten.scaled_dot_product_attention.default, q, k, v, enable_gqa=True)


def test_attention_of_special_values(bench: Bench) -> None:
    q, k, v = r(3, 5, 8), r(3, 6, 8), r(3, 6, 8)
    q[0, 1, 2], k[1, 2, 3], v[2, 3, 4] = math.nan, math.inf, math.nan
    assert not wrong(bench, aten.scaled_dot_product_attention.default, q, k, v)
