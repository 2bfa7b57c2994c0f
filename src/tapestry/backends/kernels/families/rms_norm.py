"""rms_norm of floats over its last dimensions, as one call or written out: one invocation a row, or a workgroup."""

from __future__ import annotations

from math import ceil, prod
from string import Template

import torch

from tapestry.backends.kernels.declare import Dispatch
from tapestry.backends.kernels.families.conditions import plain_floats, within_rounds
from tapestry.backends.kernels.families.shipped import ship
from tapestry.backends.kernels.families.text import bindings, number, stored, total
from tapestry.backends.kernels.schedule import KINDS, Kind, Schedule
from tapestry.backends.kernels.webgpu.grid import ENTRY, PLACE, groups_for
from tapestry.backends.rules import Expression, MatchView, Predicate, all_of, any_, attr, dtypes, either, op
from tapestry.program.serial import dtype_name

#: Terms added before they join the others.
_BLOCK = 64
#: Invocations to a group: rows where each makes one alone, lanes where they share one.
_ALONE, _LANES = 8, 64

_SOURCE = """${BINDINGS}${STORED}${TOTAL}
@compute @workgroup_size(${GROUP})
fn rms_norm(${ENTRY}) {
  let row = ${ROW};
  let lane = ${LANE};
  let first = row * ${LENGTH}u;
  let last = select(first, first + ${LENGTH}u, row < ${ROWS}u);
  var sum = 0.0;
  for (var begin = first + lane; begin < last; begin += ${STEP}u) {
    let end = min(begin + ${STEP}u, last);
    var block = 0.0;
    for (var i = begin; i < end; i += ${LANES}u) { let value = x[i]; block = fma(value, value, block); }
    sum += block;
  }
  let factor = 1.0 / sqrt(total(sum, lane) / ${LENGTH}.0 + ${EPSILON});
  for (var i = first + lane; i < last; i += ${LANES}u) { out[i] = stored(x[i] * factor${WEIGHT}); }
}
"""


def _length(m: MatchView) -> int:
    """Values in a row."""
    if "shape" not in m:
        return m.spec("x").shape[-1]
    shape = m.value("shape")
    return prod(int(size) for size in shape if isinstance(size, int)) if isinstance(shape, tuple) else 0


def _over_rows(m: MatchView) -> str | None:
    """A norm that is written out is one over the last dimension, with a weight for each of its values."""
    x = m.spec("x").shape
    dims = m.value("dims")
    if not x or dims not in ((-1,), (len(x) - 1,)):
        return "a mean over other dimensions than the last one"
    if not isinstance(m.value("eps"), int | float):
        return "what is added to the mean is no number"
    if "w" in m and m.spec("w").shape != x[-1:]:
        return f"a weight of shape {list(m.spec('w').shape)}, expected [{x[-1]}]"
    return None


def _declare(name: str, pattern: Expression, *when: Predicate) -> None:
    for kind in KINDS:

        def within(m: MatchView, kind: Kind = kind) -> str | None:
            each = ceil(_length(m) / (1 if kind == "invocation" else _LANES))
            return within_rounds(m, 2 * each + ceil(each / _BLOCK) + 32)

        def write(m: MatchView, kind: Kind = kind) -> Dispatch:
            return _written(m, kind)

        ship(pattern, all_of(plain_floats, *when, within), name, Schedule(kind, "rows"), write)


def _written(m: MatchView, kind: Kind) -> Dispatch:
    x, length = m.spec("x"), _length(m)
    rows = x.numel // length
    alone = kind == "invocation"
    lanes, group = (1, _ALONE) if alone else (_LANES, _LANES)
    epsilon = m.value("eps")
    given = ("w",) if "w" in m else ()
    texts = {
        "BINDINGS": bindings("x", *given, "out"),
        "STORED": stored(dtype_name(x.dtype)),
        "TOTAL": total(lanes),
        "GROUP": str(group),
        "ENTRY": ENTRY.replace("lane", "place"),
        "ROW": f"({PLACE}) * {group}u + place" if alone else PLACE,
        "LANE": "0u" if alone else "place",
        "LENGTH": str(length),
        "ROWS": str(rows),
        "STEP": str(lanes * _BLOCK),
        "LANES": str(lanes),
        # Without one, eager takes the type's own.
        "EPSILON": number(float(epsilon) if isinstance(epsilon, int | float) else torch.finfo(x.dtype).eps),
        "WEIGHT": " * w[i - first]" if given else "",
    }
    groups = groups_for(ceil(rows / group) if alone else rows)
    return Dispatch(Template(_SOURCE).substitute(texts), "rms_norm", ("x", *given, "out"), groups, (group,))


_declare("rms_norm", op("aten.rms_norm.default", any_("x"), attr("shape"), either(any_("w"), None), attr("eps")))
_MEAN = op("aten.mean.dim", op("aten.pow.Tensor_Scalar", any_("x"), 2), attr("dims"), True)
_NORMED = op("aten.mul.Tensor", any_("x"), op("aten.rsqrt.default", op("aten.add.Tensor", _MEAN, attr("eps"))))
_declare("rms_norm written out", op("aten.mul.Tensor", any_("w"), _NORMED), dtypes("float32"), _over_rows)
_declare("rms_norm written out, without weight", _NORMED, dtypes("float32"), _over_rows)
