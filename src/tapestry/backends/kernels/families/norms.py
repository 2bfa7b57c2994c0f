"""layer_norm of floats over its last dimensions, one workgroup or one invocation a row.

The variance is taken in a second pass, from differences to the mean. Where it leaves the range of float32 although no
value does, both passes are made again on values scaled by a power of two.
"""

from __future__ import annotations

from math import ceil, prod
from string import Template

from tapestry.backends.kernels.declare import Dispatch
from tapestry.backends.kernels.families.conditions import plain_floats, within_rounds
from tapestry.backends.kernels.families.shipped import ship
from tapestry.backends.kernels.families.text import stored, total
from tapestry.backends.kernels.schedule import KINDS, Kind, Schedule
from tapestry.backends.kernels.webgpu.grid import ENTRY, PLACE, SPECIAL, groups_for
from tapestry.backends.rules import MatchView, all_of, any_, attr, op
from tapestry.program.serial import dtype_name

#: Invocations to a row on a processor of its own; barriers are dear on adapters that run on the CPU.
_LANES = 64
#: Terms added before they join the others.
_BLOCK = 64
#: Squares leave the range from 2⁶⁴ on, and float32 ends at 2¹²⁸: what has overflowed lies well inside it after this.
_SCALE = 2.0**-100

_SOURCE = """
@group(0) @binding(0) var<storage, read> x : array<f32>;
${BINDINGS}
${SPECIAL}${STORED}
${SHARED}
fn sum_of(first : u32, last : u32, lane : u32, scale : f32) -> f32 {
  var sum = 0.0;
  for (var begin = first + lane; begin < last; begin += ${STEP}u) {
    let end = min(begin + ${STEP}u, last);
    var block = 0.0;
    for (var i = begin; i < end; i += ${LANES}u) { block += x[i] * scale; }
    sum += block;
  }
  return sum;
}
fn squares_of(first : u32, last : u32, lane : u32, scale : f32, mean : f32) -> f32 {
  var sum = 0.0;
  for (var begin = first + lane; begin < last; begin += ${STEP}u) {
    let end = min(begin + ${STEP}u, last);
    var block = 0.0;
    for (var i = begin; i < end; i += ${LANES}u) { let d = x[i] * scale - mean; block = fma(d, d, block); }
    sum += block;
  }
  return sum;
}
@compute @workgroup_size(${GROUP})
fn layer_norm(${ENTRY}) {
  let row = ${ROW};
  let lane = ${LANE};
  let first = row * LENGTH;
  let last = select(first, first + LENGTH, row < ROWS);
  var scale = 1.0;
  var mean = 0.0;
  var variance = infinity();
  for (var tried = 0u; tried < 2u && !is_finite(variance); tried++) {
    scale = select(1.0, ${SCALE}, tried > 0u);
    mean = total(sum_of(first, last, lane, scale), lane) / f32(LENGTH);
    variance = total(squares_of(first, last, lane, scale, mean), lane) / f32(LENGTH);
  }
  let factor = 1.0 / sqrt(variance + ${EPSILON} * scale * scale);
  for (var i = first + lane; i < last; i += ${LANES}u) {
    let at = i - first;
    out[i] = stored(${RESULT});
  }
}
"""


def _length(m: MatchView) -> int:
    shape = m.value("shape")
    return prod(int(size) for size in shape if isinstance(size, int)) if isinstance(shape, tuple) else 0


def _declare(name: str, given: tuple[str, ...], result: str) -> None:
    affine = [any_(which) if which in given else None for which in ("w", "b")]

    pattern = op("aten.layer_norm.default", any_("x"), attr("shape"), *affine, eps=attr("eps"), cudnn_enable=attr())
    for kind in KINDS:

        def within(m: MatchView, kind: Kind = kind) -> str | None:
            each = ceil(_length(m) / (1 if kind == "invocation" else _LANES))
            return within_rounds(m, 5 * (each + ceil(each / _BLOCK)) + 32)

        def write(m: MatchView, kind: Kind = kind) -> Dispatch:
            length = _length(m)
            return _written(m, kind, length, m.spec("x").numel // length, given, result)

        ship(pattern, all_of(plain_floats, within), name, Schedule(kind, "rows"), write)


def _written(m: MatchView, kind: Kind, length: int, rows: int, given: tuple[str, ...], result: str) -> Dispatch:
    alone = kind == "invocation"
    lanes, group = (1, 8) if alone else (_LANES, _LANES)
    bindings = [
        f"@group(0) @binding({k + 1}) var<storage, read> {which} : array<f32>;" for k, which in enumerate(given)
    ]
    bindings.append(f"@group(0) @binding({len(given) + 1}) var<storage, read_write> out : array<f32>;")
    epsilon = m.value("eps")
    texts = {
        "SPECIAL": SPECIAL,
        "STORED": stored(dtype_name(m.spec("x").dtype)),
        "BINDINGS": "\n".join(bindings),
        "SHARED": total(lanes),
        "ENTRY": ENTRY.replace("lane", "place"),
        "ROW": f"({PLACE}) * {group}u + place" if alone else PLACE,
        "LANE": "0u" if alone else "place",
        "SCALE": repr(_SCALE),
        "EPSILON": repr(float(epsilon) if isinstance(epsilon, int | float) else 1e-5),
        "RESULT": result,
        "STEP": str(lanes * _BLOCK),
        "LANES": str(lanes),
        "GROUP": str(group),
    }
    source = Template(_SOURCE).substitute(texts)
    groups = groups_for(ceil(rows / group) if alone else rows)
    return Dispatch(source, "layer_norm", ("x", *given, "out"), groups, (group,), {"LENGTH": length, "ROWS": rows})


_declare("layer_norm", ("w", "b"), "fma((x[i] * scale - mean) * factor, w[at], b[at])")
_declare("layer_norm without bias", ("w",), "(x[i] * scale - mean) * factor * w[at]")
_declare("layer_norm without weight", (), "(x[i] * scale - mean) * factor")
