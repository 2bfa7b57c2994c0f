"""Attention for graphics processors: a workgroup makes a few rows of the result.

Its lanes take a key each for the scores, then a column each for the sums, so that neighbours read neighbouring values
of v; scores pass through workgroup memory. One pass over the keys, scaled down when a larger score comes, as in
attention_alone.
"""

from __future__ import annotations

from math import ceil

from tapestry.backends.kernels.declare import Dispatch
from tapestry.backends.kernels.families.heads import Attention
from tapestry.backends.kernels.families.text import tree
from tapestry.backends.kernels.webgpu.grid import ENTRY, PLACE, groups_for

#: Lanes, which are also the keys of a round; rows of a group; and columns to a lane at most.
_LANES, _ROWS, _EACH = 64, 4, 4


def rounds(attention: Attention) -> int:
    """Rounds of all loops that one invocation makes."""
    per_key = 4 if attention.vectors()[0] else 1
    return ceil(attention.keys / _LANES) * (ceil(attention.depth / per_key) + _LANES + 1) + 4


def dispatch(attention: Attention) -> Dispatch:
    """The kernel and its launch; it binds ``q``, ``k``, ``v``, ``mask`` if there is one, and ``out``."""
    a = attention
    rows = range(min(_ROWS, a.rows))
    each = range(min(_EACH, ceil(a.width / _LANES)))
    wide = _LANES * len(each)
    parts, down = ceil(a.width / wide), ceil(a.rows / len(rows))
    count = parts * down * a.count
    by_depth, by_width = a.vectors()
    per_q = 4 if by_depth else 1
    lines = [
        *(f"let r{r} = min(row + {r}u, {a.rows - 1}u);" for r in rows),
        *(f"let q{r} = (q_matrix(batch) + r{r} * {a.q.step}u) / {per_q}u;" for r in rows),
        f"let k0 = k_matrix(batch) / {per_q}u;",
        "let v0 = v_matrix(batch);",
        *(f"let mask{r} = mask_row(batch, r{r});" for r in rows),
        *(f"let c{c} = min(column + {_LANES * c}u + lane, {a.width - 1}u);" for c in each),
        *(f"var o{r}_{c} = 0.0;" for r in rows for c in each),
        *(f"var top{r} = -infinity(); var total{r} = 0.0;" for r in rows),
        f"for (var first = 0u; first < {a.keys}u; first += {_LANES}u) {{",
        "let key = first + lane;",
        f"let k_at = k0 + min(key, {a.keys - 1}u) * {a.k.step // per_q}u;",
        *(f"var s{r} = 0.0;" for r in rows),
        f"for (var e = 0u; e < {a.depth // per_q}u; e++) {{",
        "let of_k = k[k_at + e];",
        *(f"s{r} {f'+= dot(q[q{r} + e], of_k)' if by_depth else f'= fma(q[q{r} + e], of_k, s{r})'};" for r in rows),
        "}",
        *(f"s{r} = score(s{r}, r{r}, key, mask{r});" for r in rows),
        *(f"part[{_LANES * r}u + lane] = s{r};" for r in rows),
        *tree([f"part[{_LANES * r}u + lane]" for r in rows], "lane", _LANES, "AT = larger(OTHER, AT);"),
        *(f"let high{r} = larger(part[{_LANES * r}u], top{r});" for r in rows),
        *(f"let shift{r} = select(high{r}, 0.0, high{r} == -infinity());" for r in rows),
        *(f"let before{r} = exponential(top{r} - shift{r});" for r in rows),
        "workgroupBarrier();",
        *(f"weight[{_LANES * r}u + lane] = exponential(s{r} - shift{r});" for r in rows),
        *(f"part[{_LANES * r}u + lane] = weight[{_LANES * r}u + lane];" for r in rows),
        *tree([f"part[{_LANES * r}u + lane]" for r in rows], "lane", _LANES),
        *(f"total{r} = fma(total{r}, before{r}, part[{_LANES * r}u]); top{r} = high{r};" for r in rows),
        *(f"o{r}_{c} *= before{r};" for r in rows for c in each),
        f"let last = min({_LANES}u, {a.keys}u - first);",
        "for (var j = 0u; j < last; j++) {",
        *(f"let of_v{c} = {_of_v(a, c, by_width)};" for c in each),
        *(f"o{r}_{c} = fma(weight[{_LANES * r}u + j], of_v{c}, o{r}_{c});" for r in rows for c in each),
        "}",
        "workgroupBarrier();",
        "}",
    ]  # fmt: skip
    for r in rows:
        for c in each:
            value = f"select(o{r}_{c} / total{r}, 0.0, top{r} == -infinity())"
            lines.append(
                f"if (row + {r}u < {a.rows}u && column + {_LANES * c}u + lane < {a.width}u) "
                f"{{ out[out_matrix(batch) + r{r} * {a.out.step}u + c{c}] = stored({value}); }}"
            )
    joined = "\n  ".join(lines)
    source = f"""{a.head()}
var<workgroup> part : array<f32, {_LANES * len(rows)}>;
var<workgroup> weight : array<f32, {_LANES * len(rows)}>;
@compute @workgroup_size({_LANES})
fn attention({ENTRY}) {{
  let place = {PLACE};
  if (place >= {count}u) {{ return; }}
  let column = place % {parts}u * {wide}u;
  let row = place / {parts}u % {down}u * {len(rows)}u;
  let batch = place / {parts * down}u;
  {joined}
}}
"""
    return Dispatch(source, "attention", (*a.reads, "out"), groups_for(count), (_LANES,))


def _of_v(a: Attention, c: int, by_width: bool) -> str:
    if by_width:
        return f"v[(v0 + (first + j) * {a.v.step}u + c{c}) / 4u][c{c} % 4u]"
    return f"v[v0 + (first + j) * {a.v.step}u + c{c}]"
