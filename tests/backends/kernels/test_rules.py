"""What the WGSL kernels take and refuse, and which schedule is compiled: no device needed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from support.region_bench import single_call
from tapestry.backends.kernels.backend import Kernels
from tapestry.backends.kernels.schedule import FAMILIES, KernelOptions
from tapestry.errors import UnsupportedError
from tapestry.runtime.device import DeviceInfo, Limits
from tapestry.runtime.module import KernelModule

aten = torch.ops.aten
LIMITS = Limits(max_binding_bytes=1 << 20, max_loop_iterations=65_535)
INFO = DeviceInfo("webgpu", "webgpu:0", "none", "", LIMITS, frozenset({"float32", "int32"}), frozenset({"software"}))


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype)


@pytest.mark.parametrize(
    ("op", "args", "reason"),
    [
        (aten.linear.default, (r(2, 3, dtype=torch.float64), r(4, 3, dtype=torch.float64)), "float64, expected"),
        (aten.mm.default, (r(2, 3, dtype=torch.int32), r(3, 4, dtype=torch.int32)), "int32, expected"),
        (aten.mm.default, (r(0, 3), r(3, 4)), "no elements"),
        (aten.mm.default, (r(2, 0), r(0, 4)), "no elements"),
        (aten.linear.default, (r(1, 512), r(513, 512)), "1,050,624 bytes, over the device's limit"),
        (aten.addmm.default, (r(4), r(2, 3), r(3, 4), float("inf")), "beta is inf, expected a finite"),
        (aten.softmax.int, (r(2, 3, dtype=torch.float16), -1, torch.float32), "float16 and float32, expected one"),
        (aten.softmax.int, (r(3, 0), -1), "no elements"),
        (aten.rms_norm.default, (r(2, 3, dtype=torch.float64), [3]), "float64, expected"),
    ],
)
def test_reasons(op: Any, args: tuple[Any, ...], reason: str) -> None:
    kwargs = {"beta": args[3]} if op is aten.addmm.default else {}
    graph, _, _ = single_call(op, args[:3] if kwargs else args, kwargs)
    found = Kernels().refuses_in(graph, "n0", INFO)
    assert found is not None
    assert reason in found
    with pytest.raises(UnsupportedError, match="no hand-written kernel"):
        Kernels().compile(graph, INFO, KernelOptions())


def source(graph: Any, info: DeviceInfo = INFO, **schedules: str) -> str:
    module = Kernels().compile(graph, info, msgspec.convert(schedules, KernelOptions)).module
    assert isinstance(module, KernelModule)
    return module.source


CALLS = {
    "matmul": (aten.linear.default, (r(32, 24), r(40, 24), r(40))),
    "matvec": (aten.linear.default, (r(1, 24), r(40, 24))),
    "rows": (aten.softmax.int, (r(12, 40), -1)),
    "attention": (aten.scaled_dot_product_attention.default, (r(2, 8, 4), r(2, 8, 4), r(2, 8, 4))),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_its_own_schedule(family: str) -> None:
    op, args = CALLS[family]
    graph, _, _ = single_call(op, args, {})
    others = dict.fromkeys(set(FAMILIES) - {family}, "invocation")
    assert "workgroupBarrier" not in source(graph, **dict.fromkeys(FAMILIES, "invocation"))
    assert "workgroupBarrier" in source(graph, **others, **{family: "workgroup"})


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_choice_it_is_what_the_adapter_says_of_itself(family: str) -> None:
    op, args = CALLS[family]
    graph, _, _ = single_call(op, args, {})
    hardware = msgspec.structs.replace(INFO, features=frozenset())
    assert source(graph) == source(graph, **{family: "invocation"})
    assert source(graph, hardware) == source(graph, hardware, **{family: "workgroup"})


def test_where_a_schedule_goes_round_its_loops_too_often_the_other_is_taken() -> None:
    graph, _, _ = single_call(aten.softmax.int, (r(2, 40_000), -1), {})
    assert Kernels().refuses_in(graph, "n0", INFO) is None
    assert "workgroupBarrier" in source(graph, rows="invocation")


def test_where_both_do_the_call_is_refused_with_the_number() -> None:
    wide = msgspec.structs.replace(INFO, limits=Limits(max_loop_iterations=65_535))
    graph, _, _ = single_call(aten.softmax.int, (r(1, 1 << 21), -1), {})
    found = Kernels().refuses_in(graph, "n0", wide)
    assert found is not None
    assert "rounds of loops, over the device's limit of 65,535" in found


def test_schedules_are_part_of_what_names_a_compiled_region() -> None:
    graph, _, _ = single_call(*CALLS["rows"], {})
    names = {
        Kernels().fingerprint_for(graph, INFO, msgspec.convert({"rows": kind}, KernelOptions))
        for kind in ("invocation", "workgroup")
    }
    assert len(names) == 2
