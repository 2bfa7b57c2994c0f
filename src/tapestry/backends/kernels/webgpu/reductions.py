"""Sums, means and extremes of many float32 values, which TVM gives to one running value per result.

A running float32 sum of n equal terms is off by up to n/8 eps (docs/numerics.md), and software adapters leave a loop
of more than 65,535 rounds early, without a word. Here 64 invocations make one result: each goes through blocks of 128
terms, then the group's values are joined in a tree. Rows shorter than SHORTEST are left to the compiler.
"""

from __future__ import annotations

from math import prod

from tapestry.backends.kernels.declare import Dispatch, kernel
from tapestry.backends.kernels.webgpu.grid import ENTRY, GROUP, PLACE, SPECIAL, groups_for
from tapestry.backends.rules import MatchView, all_of, any_, attr, dtypes, op

#: Terms per result from which on these kernels are preferred.
SHORTEST = 8192
#: Terms added before they join the others, four in each round of the loop.
_BLOCK = 128

_SOURCE = f"""
@group(0) @binding(0) var<storage, read> x : array<f32>;
@group(0) @binding(1) var<storage, read_write> out : array<f32>;
{SPECIAL}
var<workgroup> part : array<f32, {GROUP}>;
fn joined(a : f32, b : f32) -> f32 {{ JOIN }}
fn term(i : u32, end : u32) -> f32 {{
  if (i < end) {{ return x[i]; }}
  return START;
}}
@compute @workgroup_size({GROUP})
fn reduce_rows({ENTRY}) {{
  let row = {PLACE};
  let first = row * LENGTH;
  let last = select(first, first + LENGTH, row < ROWS);
  var total = START;
  for (var begin = first + lane * {_BLOCK}u; begin < last; begin += {GROUP * _BLOCK}u) {{
    let end = min(begin + {_BLOCK}u, last);
    var block = START;
    for (var i = begin; i < end; i += 4u) {{
      let one = joined(x[i], term(i + 1u, end));
      block = joined(block, joined(one, joined(term(i + 2u, end), term(i + 3u, end))));
    }}
    total = joined(total, block);
  }}
  part[lane] = total;
  workgroupBarrier();
  for (var width = {GROUP // 2}u; width > 0u; width /= 2u) {{
    if (lane < width) {{ part[lane] = joined(part[lane], part[lane + width]); }}
    workgroupBarrier();
  }}
  if (lane == 0u && row < ROWS) {{ out[row] = part[0] RESULT; }}
}}
"""

_NAN_FIRST = "if (is_nan(a)) { return a; } if (is_nan(b)) { return b; } "
#: The kind of reduction → how two values are joined, the value before any, what is done with the result.
_KINDS = {
    "sum": ("return a + b;", "0.0", ""),
    "mean": ("return a + b;", "0.0", "/ f32(LENGTH)"),
    "amax": (_NAN_FIRST + "return max(a, b);", "-infinity()", ""),
    "amin": (_NAN_FIRST + "return min(a, b);", "infinity()", ""),
}


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
    if not rows[0]:
        return "no results"
    most, rounds = m.info.limits.max_loop_iterations, rows[1] // (GROUP * 4) + rows[1] // (GROUP * _BLOCK) + _BLOCK
    if most and rounds > most:
        return f"{rows[1]:,} terms per result: {rounds:,} rounds of a loop, over the device's limit of {most:,}"
    return None


def _declare(overload: str, kind: str) -> None:
    whole = overload in {"sum.default", "mean.default", "max.default", "min.default"}
    arguments = (any_("x"),) if whole else (any_("x"), attr("dim"))
    options = {} if whole else {"keepdim": attr("keepdim")}

    @kernel(
        device="webgpu",
        pattern=op(f"aten.{overload}", *arguments, **options),
        when=all_of(dtypes("float32"), _long),
        name=f"long {overload}",
    )
    def write(m: MatchView) -> Dispatch:
        rows = _rows(m)
        assert not isinstance(rows, str), "the condition has refused it"
        join, start, result = _KINDS[kind]
        source = _SOURCE.replace("JOIN", join).replace("START", start).replace("RESULT", result)
        constants = {"LENGTH": rows[1], "ROWS": rows[0]}
        return Dispatch(source, "reduce_rows", ("x", "out"), groups_for(rows[0]), (GROUP,), constants)


for _overload, _kind in (
    ("sum.default", "sum"),
    ("mean.default", "mean"),
    ("sum.dim_IntList", "sum"),
    ("mean.dim", "mean"),
    ("amax.default", "amax"),
    ("amin.default", "amin"),
    ("max.default", "amax"),
    ("min.default", "amin"),
):
    _declare(_overload, _kind)
