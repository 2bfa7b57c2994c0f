"""What only the kernels for WebGPU have: sums and extremes of long rows, and limits of its adapters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from support.region_bench import Bench, single_call
from tapestry.backends.kernels.backend import Kernels
from tapestry.backends.kernels.schedule import FAMILIES, KINDS, KernelOptions
from tapestry.backends.kernels.webgpu.grid import MOST_GROUPS, groups_for
from tapestry.errors import UnsupportedError
from tapestry.numerics import flatten_result, judge, oracle
from tapestry.numerics.verdict import Verdict
from tapestry.program.graph import Graph
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Compiled
from tapestry.runtime.open import open_in_process

aten = torch.ops.aten


def r(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(math.prod(shape)))


@pytest.fixture(scope="module", params=KINDS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    def compiled(graph: Graph, info: DeviceInfo, options: Any) -> Compiled:
        return Kernels().compile(graph, info, msgspec.convert(dict.fromkeys(FAMILIES, request.param), KernelOptions))

    device = open_in_process("webgpu:0")
    yield Bench(device, compiled)
    device.close()


def is_right(bench: Bench, op: Any, *args: Any) -> bool:
    """Judged against the oracle as a replayed case is."""
    graph, values, want = single_call(op, args, {})
    got = bench.run(graph, bench.compile(graph), values)
    return judge(op, args, {}, got, flatten_result(tuple(want)), oracle(op, args)).verdict == Verdict.PASS


pytestmark = pytest.mark.webgpu


def test_rows_too_long_for_the_device_are_refused(bench: Bench) -> None:
    most = bench.device.info.limits.max_loop_iterations
    graph, _, _ = single_call(aten.layer_norm.default, (r(1, 1 << 21), [1 << 21]), {})
    if most and most < 5 * (1 << 21) // 64:
        with pytest.raises(UnsupportedError, match="no hand-written kernel"):
            bench.compile(graph)
    else:
        assert bench.compile(graph).launches


@pytest.mark.parametrize("op", [aten.amax.default, aten.amin.default, aten.sum.dim_IntList, aten.mean.dim], ids=str)
@pytest.mark.parametrize("length", [8192, 8195, 100_003])
def test_long_rows(bench: Bench, op: Any, length: int) -> None:
    x = r(3, length)
    x[1, -1] = math.nan
    x[2, 0] = -math.inf
    assert is_right(bench, op, x, [1])


def test_grids_stay_within_the_limit() -> None:
    for count in (1, 64, MOST_GROUPS, MOST_GROUPS + 1, 10 * MOST_GROUPS + 3):
        x, y = groups_for(count)
        assert max(x, y) <= MOST_GROUPS
        assert count <= x * y < count + y
