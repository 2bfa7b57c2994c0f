"""Pieces of WGSL that the kernels share: operands, 16-bit results, places in broadcast batches, sums of a group.

Not here: grids and special values (grid), and any operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

#: The nearest 16-bit value, ties to even, as float32: buffers hold those (docs/backends-tvm.md, storage).
_ROUNDED = {
    "float16": """
fn stored(value : f32) -> f32 {
  let bits = bitcast<u32>(value);
  let magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) { return value; }
  var near = (magnitude + 0xfffu + ((magnitude >> 13u) & 1u)) & 0xffffe000u;
  if (magnitude < 0x38800000u) {  // half's subnormals have the spacing of 0.5, whose sum with them rounds
    near = bitcast<u32>(f32(bitcast<u32>(bitcast<f32>(magnitude) + 0.5) - 0x3f000000u) * 5.9604645e-8);
  }
  if (magnitude >= 0x477ff000u) { near = 0x7f800000u; }
  return bitcast<f32>(near | (bits & 0x80000000u));
}
""",
    "bfloat16": """
fn stored(value : f32) -> f32 {
  let bits = bitcast<u32>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return value; }
  return bitcast<f32>((bits + 0x7fffu + ((bits >> 16u) & 1u)) & 0xffff0000u);
}
""",
    "float32": "fn stored(value : f32) -> f32 { return value; }\n",
}


#: WGSL leaves open what exp gives for NaN, and adapters differ (docs/backends-tvm.md).
EXP = """
fn exponential(x : f32) -> f32 { if (is_nan(x)) { return x; } return exp(x); }
"""


def stored(dtype: str) -> str:
    """The function ``stored``, which rounds a float32 to what a buffer of this dtype may hold."""
    return _ROUNDED[dtype]


def bindings(*names: str) -> str:
    """Declares float32 buffers in order; the last one is written. A name in 4 or 8 is read in such vectors."""
    lines: list[str] = []
    for place, name in enumerate(names):
        access = "read_write" if place == len(names) - 1 else "read"
        kind = f"vec{name[-1]}f" if name[-1] in "48" else "f32"
        lines.append(f"@group(0) @binding({place}) var<storage, {access}> {name} : array<{kind}>;")
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """A finite Python number as a literal of WGSL, rounded to float32 as ATen does."""
    return f"{float(np.float32(value))!r}f"


def batch_place(index: str, batch: Sequence[int], own: Sequence[int]) -> str:
    """Which of an operand's matrices belongs to matrix ``index`` of the result, as eager broadcasts ``own``."""
    padded = [1] * (len(batch) - len(own)) + list(own)
    if prod(padded) == 1:
        return "0u"
    if padded == list(batch):
        return index
    terms: list[str] = []
    for dim, size in enumerate(padded):
        below, stride = prod(batch[dim + 1 :]), prod(padded[dim + 1 :])
        if size > 1:
            terms.append(f"({index} / {below}u % {size}u) * {stride}u")
    return f"({' + '.join(terms)})"


def total(lanes: int) -> str:
    """The function ``total``, which adds a value of each lane of a group; with one lane it gives that value back."""
    if lanes == 1:
        return "fn total(mine : f32, lane : u32) -> f32 { return mine; }\n"
    return f"""
var<workgroup> part : array<f32, {lanes}>;
fn total(mine : f32, lane : u32) -> f32 {{
  part[lane] = mine;
  {chr(10).join(tree(["part[lane]"], "lane", lanes))}
  return workgroupUniformLoad(&part[0]);
}}
"""


def tree(places: Sequence[str], lane: str, width: int, join: str = "AT += OTHER;") -> list[str]:
    """Joins what ``width`` lanes (a power of two) left in workgroup memory into what the first one did.

    ``places``: texts of the places of a lane's values, which end in ``lane`` itself as a summand, so that a summand
    more is another lane's. ``join``: the statement that takes the value OTHER into the one at AT.
    """
    lines = ["workgroupBarrier();"]
    half = width // 2
    while half:
        joined = " ".join(join.replace("OTHER", f"{at[:-1]} + {half}u]").replace("AT", at) for at in places)
        lines += [f"if ({lane} < {half}u) {{ {joined} }}", "workgroupBarrier();"]
        half //= 2
    return lines
