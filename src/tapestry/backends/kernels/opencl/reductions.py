"""Sums and means of many float32 values: added in blocks, where TVM keeps one running sum per result.

A running float32 sum of n equal terms is off by up to n/8 eps (docs/numerics.md), 5.6e-5 at two million. Here a group
of 64 invocations adds one result: each sums blocks of 128 terms, then the block sums, then the group in a tree, so that
the error grows with n / 8192. Rows shorter than SHORTEST are left to the compiler, which fuses them.
"""

from __future__ import annotations

from math import prod

from tapestry.backends.kernels.declare import Dispatch, kernel
from tapestry.backends.rules import MatchView, all_of, any_, attr, dtypes, op

#: Terms per result from which on these kernels are preferred.
SHORTEST = 8192

_SOURCE = """
__kernel void sum_rows(__global const float* x, __global float* out) {
    __local float part[64];
    size_t row = get_group_id(0), lane = get_local_id(0);
    __global const float* terms = x + row * (size_t)LENGTH;
    float total = 0.0f;
    for (size_t begin = lane * 128; begin < LENGTH; begin += 64 * 128) {
        size_t end = begin + 128 < LENGTH ? begin + 128 : LENGTH;
        float block = 0.0f;
        for (size_t i = begin; i < end; ++i) block += terms[i];
        total += block;
    }
    part[lane] = total;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (size_t half_ = 32; half_ > 0; half_ /= 2) {
        if (lane < half_) part[lane] += part[lane + half_];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lane == 0) out[row] = MEAN ? part[0] / (float)LENGTH : part[0];
}
"""


def _rows(m: MatchView) -> tuple[int, int] | str:
    """Results and terms per result; a reason where the reduced dimensions are not the last ones."""
    shape = m.spec("x").shape
    dims = m.value("dim") if "dim" in m else None
    if dims is None or dims == ():
        return 1, prod(shape)
    named = dims if isinstance(dims, tuple) else (dims,)
    reduced = sorted(int(dim) % len(shape) for dim in named if isinstance(dim, int))
    kept = len(shape) - len(reduced)
    if reduced != list(range(kept, len(shape))):
        return "reduces other dimensions than the last ones"
    return prod(shape[:kept]), prod(shape[kept:])


def _long(m: MatchView) -> str | None:
    rows = _rows(m)
    if isinstance(rows, str):
        return rows
    if rows[1] < SHORTEST:
        return f"{rows[1]} terms per result, fewer than {SHORTEST}: the compiler fuses them"
    return None if rows[0] else "no results"


def _declare(overload: str, mean: int) -> None:
    arguments = (any_("x"),) if overload.endswith(".default") else (any_("x"), attr("dim"))
    options = {} if overload.endswith(".default") else {"keepdim": attr("keepdim")}

    @kernel(
        device="opencl",
        pattern=op(f"aten.{overload}", *arguments, **options),
        when=all_of(dtypes("float32"), _long),
        name=f"long {overload}",
    )
    def write(m: MatchView) -> Dispatch:
        rows = _rows(m)
        assert not isinstance(rows, str), "the condition has refused it"
        constants = {"LENGTH": rows[1], "MEAN": mean}
        return Dispatch(_SOURCE, "sum_rows", ("x", "out"), (rows[0],), (64,), constants)


for _overload, _mean in (("sum.default", 0), ("mean.default", 1), ("sum.dim_IntList", 0), ("mean.dim", 1)):
    _declare(_overload, _mean)
