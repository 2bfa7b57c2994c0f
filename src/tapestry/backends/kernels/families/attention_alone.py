"""Attention for adapters that run on a processor's cores: an invocation makes one row of the result, or a part of it.

One pass over the keys, a few at a time: what was added up is scaled down when a larger score comes (M. Milakov and
N. Gimelshein, "Online normalizer calculation for softmax", 2018).
"""

from __future__ import annotations

from math import ceil

from tapestry.backends.kernels.declare import Dispatch
from tapestry.backends.kernels.families.heads import Attention
from tapestry.backends.kernels.webgpu.grid import ENTRY, PLACE, groups_for

_GROUP = 8
#: Columns of the result that an invocation holds at most, and how many values of v a round may read: each takes code.
_COLUMNS, _READS = 64, 128


def rounds(attention: Attention) -> int:
    """Rounds of all loops that one invocation makes."""
    per_key = 4 if attention.vectors()[0] else 1
    return ceil(attention.keys / _keys(attention)) * (ceil(attention.depth / per_key) + 1) + 4


def _keys(attention: Attention) -> int:
    """Keys of a round."""
    return min(attention.keys, 8, max(1, _READS // min(attention.width, _COLUMNS)))


def dispatch(attention: Attention) -> Dispatch:
    """The kernel and its launch; it binds ``q``, ``k``, ``v``, ``mask`` if there is one, and ``out``."""
    a = attention
    width = min(a.width, _COLUMNS)
    parts = ceil(a.width / width)
    count = parts * a.rows * a.count
    by_depth, by_width = a.vectors()
    keys = range(_keys(a))
    per_q, per_v = 4 if by_depth else 1, 4 if by_width else 1
    sums = range(width // 4 if by_width else width)
    zero = "vec4f()" if by_width else "0.0"
    last = f"min({a.keys}u, row + 1u)" if a.causal else f"{a.keys}u"
    lines = [
        f"let q_at = (q_matrix(batch) + row * {a.q.step}u) / {per_q}u;",
        f"let k_at = k_matrix(batch) / {per_q}u;",
        f"let v_at = v_matrix(batch) / {per_v}u;",
        "let mask_at = mask_row(batch, row);",
        *(f"let c{c} = min(column / {per_v}u + {c}u, {a.width // per_v - 1}u);" for c in sums),
        *(f"var o{c} = {zero};" for c in sums),
        "var top = -infinity();",
        "var total = 0.0;",
        f"for (var key = 0u; key < {last}; key += {len(keys)}u) {{",
        *(f"let at{j} = min(key + {j}u, {a.keys - 1}u);" for j in keys),
        *(f"let k{j} = k_at + at{j} * {a.k.step // per_q}u;" for j in keys),
        *(f"var s{j} = 0.0;" for j in keys),
        f"for (var e = 0u; e < {a.depth // per_q}u; e++) {{",
        "let of_q = q[q_at + e];",
        *(f"s{j} {'+= dot(of_q, ' if by_depth else '= fma(of_q, '}k[k{j} + e]{')' if by_depth else f', s{j})'};"
          for j in keys),
        "}",
        *(f"s{j} = score(s{j}, row, key + {j}u, mask_at);" for j in keys),
        "var high = top;",
        *(f"high = larger(s{j}, high);" for j in keys),
        "let shift = select(high, 0.0, high == -infinity());",
        "let before = exponential(top - shift);",
        *(f"let p{j} = exponential(s{j} - shift);" for j in keys),
        f"total = fma(total, before, {' + '.join(f'p{j}' for j in keys)});",
    ]  # fmt: skip
    for c in sums:
        lines.append(f"o{c} *= before;")
    for j in keys:
        lines.append(f"let v{j} = v_at + at{j} * {a.v.step // per_v}u;")
        weight = f"vec4f(p{j})" if by_width else f"p{j}"
        lines += [f"o{c} = fma({weight}, v[v{j} + c{c}], o{c});" for c in sums]
    lines += [
        "top = high;",
        "}",
        "let none = top == -infinity();",
        f"let out_at = out_matrix(batch) + row * {a.out.step}u + column;",
    ]
    for c in sums:
        for j in range(per_v):
            value = f"o{c}[{j}]" if by_width else f"o{c}"
            lines.append(
                f"if (column + {c * per_v + j}u < {a.width}u) "
                f"{{ out[out_at + {c * per_v + j}u] = stored(select({value} / total, 0.0, none)); }}"
            )
    joined = "\n  ".join(lines)
    source = f"""{a.head()}
@compute @workgroup_size({_GROUP})
fn attention({ENTRY}) {{
  let place = ({PLACE}) * {_GROUP}u + lane;
  if (place >= {count}u) {{ return; }}
  let column = place % {parts}u * {width}u;
  let row = place / {parts}u % {a.rows}u;
  let batch = place / {parts * a.rows}u;
  {joined}
}}
"""
    return Dispatch(source, "attention", (*a.reads, "out"), groups_for(ceil(count / _GROUP)), (_GROUP,))
