"""softmax of floats over any one dimension: one invocation a row, or a workgroup.

Each row's largest value first, then the exponentials and their sum, then the quotients: the result holds the
exponentials in between where it can hold them unrounded. A NaN is the largest value of its row, so that the whole row
becomes NaN as in eager.
"""

from __future__ import annotations

from math import ceil, prod
from string import Template

from tapestry.backends.kernels.declare import Dispatch
from tapestry.backends.kernels.families.conditions import holds_float32, plain_floats, within_rounds
from tapestry.backends.kernels.families.shipped import ship
from tapestry.backends.kernels.families.text import EXP, bindings, stored, total
from tapestry.backends.kernels.schedule import KINDS, Kind, Schedule
from tapestry.backends.kernels.webgpu.grid import ENTRY, PLACE, SPECIAL, groups_for
from tapestry.backends.rules import Expression, MatchView, all_of, any_, attr, op
from tapestry.program.serial import dtype_name

#: Terms added before they join the others.
_BLOCK = 64
#: Invocations to a group: rows where each makes one alone, lanes where they share one.
_ALONE, _LANES = 8, 64

_SOURCE = """${BINDINGS}${SPECIAL}${STORED}${EXP}
fn larger(a : f32, b : f32) -> f32 { if (a > b || is_nan(a)) { return a; } return b; }
${SHARED}
@compute @workgroup_size(${GROUP})
fn softmax(${ENTRY}) {
  let row = ${ROW};
  let lane = ${LANE};
  let length = select(0u, ${LENGTH}u, row < ${ROWS}u);
  let first = row / ${INNER}u * ${MATRIX}u + row % ${INNER}u;
  var top = -infinity();
  for (var i = lane; i < length; i += ${LANES}u) { top = larger(x[first + i * ${INNER}u], top); }
  top = largest(top, lane);
  var sum = 0.0;
  for (var begin = lane; begin < length; begin += ${STEP}u) {
    let end = min(begin + ${STEP}u, length);
    var block = 0.0;
    for (var i = begin; i < end; i += ${LANES}u) {
      let value = ${EXPONENTIAL};
      ${KEEP}block += value;
    }
    sum += block;
  }
  sum = total(sum, lane);
  for (var i = lane; i < length; i += ${LANES}u) {
    let value = ${KEPT};
    out[first + i * ${INNER}u] = stored(${RESULT});
  }
}
"""
_LARGEST = """
fn largest(mine : f32, lane : u32) -> f32 {
  part[lane] = mine;
  workgroupBarrier();
  for (var width = ${LANES}u / 2u; width > 0u; width /= 2u) {
    if (lane < width) { part[lane] = larger(part[lane + width], part[lane]); }
    workgroupBarrier();
  }
  return workgroupUniformLoad(&part[0]);
}
"""
_OWN = "fn largest(mine : f32, lane : u32) -> f32 { return mine; }\n"


def _sizes(m: MatchView) -> tuple[int, int, int]:
    """Rows, their length, and the distance of neighbours in a row."""
    shape, dim = m.spec("x").shape or (1,), m.value("dim")
    at = int(dim) % len(shape) if isinstance(dim, int) else 0
    inner = prod(shape[at + 1 :])
    return prod(shape[:at]) * inner, shape[at], inner


def _declare(name: str, pattern: Expression, masked: str = "") -> None:
    """``masked``: what a row without a value above −inf gives; NaN where it says nothing."""
    for kind in KINDS:

        def within(m: MatchView, kind: Kind = kind) -> str | None:
            each = ceil(_sizes(m)[1] / (1 if kind == "invocation" else _LANES))
            return within_rounds(m, 3 * each + ceil(each / _BLOCK) + 32)

        def write(m: MatchView, kind: Kind = kind) -> Dispatch:
            return _written(m, kind, masked)

        ship(pattern, all_of(plain_floats, within), name, Schedule(kind, "rows"), write)


def _written(m: MatchView, kind: Kind, masked: str) -> Dispatch:
    rows, length, inner = _sizes(m)
    alone = kind == "invocation"
    lanes, group = (1, _ALONE) if alone else (_LANES, _LANES)
    kept, exponential = f"out[first + i * {inner}u]", f"exponential(x[first + i * {inner}u] - top)"
    again = not holds_float32(m.spec("x"), m.info)
    texts = {
        "BINDINGS": bindings("x", "out"),
        "SPECIAL": SPECIAL,
        "STORED": stored(dtype_name(m.spec("x").dtype)),
        "EXP": EXP,
        "EXPONENTIAL": exponential,
        "SHARED": total(lanes) + (_OWN if alone else Template(_LARGEST).substitute(LANES=lanes)),
        "GROUP": str(group),
        "ENTRY": ENTRY.replace("lane", "place"),
        "ROW": f"({PLACE}) * {group}u + place" if alone else PLACE,
        "LANE": "0u" if alone else "place",
        "LENGTH": str(length),
        "MATRIX": str(length * inner),
        "INNER": str(inner),
        "ROWS": str(rows),
        "LANES": str(lanes),
        "STEP": str(lanes * _BLOCK),
        "KEEP": "" if again else f"{kept} = value;\n      ",
        "KEPT": exponential if again else kept,
        "RESULT": f"select(value / sum, {masked}, top == -infinity())" if masked else "value / sum",
    }
    source = Template(_SOURCE).substitute(texts)
    groups = groups_for(ceil(rows / group) if alone else rows)
    return Dispatch(source, "softmax", ("x", "out"), groups, (group,))


_declare("softmax", op("aten.softmax.int", any_("x"), attr("dim"), attr("dtype")))
_declare("_softmax", op("aten._softmax.default", any_("x"), attr("dim"), attr("half_to_float")))
_declare("_safe_softmax", op("aten._safe_softmax.default", any_("x"), attr("dim"), attr("dtype")), "0.0")
