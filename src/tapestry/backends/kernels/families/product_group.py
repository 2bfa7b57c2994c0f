"""Matrix products for graphics processors: a workgroup makes a tile of the result from tiles of the operands.

Tiles pass through workgroup memory, each value read once for all that need it; neighbouring invocations read
neighbouring values. With few rows there is nothing to share: the lanes of a group then split the sums.
"""

from __future__ import annotations

from math import ceil

from tapestry.backends.kernels.declare import Dispatch
from tapestry.backends.kernels.families.product import Product
from tapestry.backends.kernels.families.text import tree
from tapestry.backends.kernels.webgpu.grid import ENTRY, PLACE, groups_for

#: Invocations of a group along each side of its tile, and terms that a tile of an operand holds for each sum.
_SIDE, _TERMS = 16, 16
#: Results to an invocation along each side, at most.
_EACH = 4
#: Up to this many rows lanes split the sums: so many to a sum, and so many columns to a group.
FEW_ROWS = 4
_LANES, _COLUMNS = 32, 8


def rounds(product: Product) -> int:
    """Rounds of all loops that one invocation makes."""
    if product.rows > FEW_ROWS:
        return ceil(product.depth / _TERMS) + 4
    return ceil(product.depth / _LANES) + 4


def dispatch(product: Product) -> Dispatch:
    """The kernel for a product and its launch; it binds ``x``, ``w``, what the finish reads, and ``out``."""
    names = ("x", "w", *product.finish.reads, "out")
    source, groups, size = _few_rows(product) if product.rows <= FEW_ROWS else _tiled(product)
    return Dispatch(source, "product", names, groups_for(groups), (size,))


def _tiled(product: Product) -> tuple[str, int, int]:
    each_row, each_column = (min(_EACH, ceil(size / _SIDE)) for size in (product.rows, product.columns))
    rows, columns = _SIDE * each_row, _SIDE * each_column
    across, down = ceil(product.columns / columns), ceil(product.rows / rows)
    pairs = [(r, c) for r in range(each_row) for c in range(each_column)]
    # One more value in each line, so that lanes that go down a tile meet different banks.
    x_line, w_line = rows + 1, columns + 1
    size = _SIDE * _SIDE
    lines = [
        *(f"var s{r}_{c} = 0.0;" for r, c in pairs),
        f"let x0 = x_matrix(batch) * {product.rows * product.depth}u;",
        f"let w0 = w_matrix(batch) * {product.columns * product.depth}u;",
        f"for (var begin = 0u; begin < {product.depth}u; begin += {_TERMS}u) {{",
        *(_load(product, "x", r, rows, x_line, by_term=True) for r in range(each_row)),
        *(_load(product, "w", c, columns, w_line, by_term=product.transposed) for c in range(each_column)),
        "workgroupBarrier();",
        *(f"var p{r}_{c} = 0.0;" for r, c in pairs),
    ]
    for k in range(_TERMS):
        lines += ["{", *(f"let b{c} = w_tile[{k * w_line}u + across + {_SIDE * c}u];" for c in range(each_column))]
        for r in range(each_row):
            lines.append(f"let a{r} = x_tile[{k * x_line}u + down + {_SIDE * r}u];")
            lines += [f"p{r}_{c} = fma(a{r}, b{c}, p{r}_{c});" for c in range(each_column)]
        lines.append("}")
    lines += [*(f"s{r}_{c} += p{r}_{c};" for r, c in pairs), "workgroupBarrier();", "}"]
    lines += [f"keep(s{r}_{c}, batch, row + down + {_SIDE * r}u, column + across + {_SIDE * c}u);" for r, c in pairs]
    source = f"""{product.head("x", "w", (rows, columns))}
var<workgroup> x_tile : array<f32, {_TERMS * x_line}>;
var<workgroup> w_tile : array<f32, {_TERMS * w_line}>;
@compute @workgroup_size({size})
fn product({ENTRY}) {{
  let tile = {PLACE};
  if (tile >= {across * down * product.count}u) {{ return; }}
  let column = tile % {across}u * {columns}u;
  let row = tile / {across}u % {down}u * {rows}u;
  let batch = tile / {across * down}u;
  let across = lane % {_SIDE}u;
  let down = lane / {_SIDE}u;
  {_joined(lines)}
}}
"""
    return source, across * down * product.count, size


def _load(product: Product, operand: str, part: int, width: int, line: int, by_term: bool) -> str:
    """One value to each lane: neighbouring lanes read along the terms (``by_term``) or along rows or columns."""
    first, size = ("row", product.rows) if operand == "x" else ("column", product.columns)
    if by_term:
        at, term = f"(down + {_SIDE * part}u)", "across"
        place = f"({first} + {at}) * {product.depth}u + begin + {term}"
    else:
        at, term = f"((lane + {_SIDE * _SIDE * part}u) % {width}u)", f"((lane + {_SIDE * _SIDE * part}u) / {width}u)"
        place = f"(begin + {term}) * {product.columns}u + {first} + {at}"
    inside = f"{first} + {at} < {size}u && begin + {term} < {product.depth}u"
    return (
        f"{{ var value = 0.0; if ({inside}) {{ value = {operand}[{operand}0 + {place}]; }} "
        f"{operand}_tile[{term} * {line}u + {at}] = value; }}"
    )


def _few_rows(product: Product) -> tuple[str, int, int]:
    """Lanes of a group split each sum; with w's columns as rows they read along them, else along its rows."""
    size = _LANES * _COLUMNS
    across = ceil(product.columns / _COLUMNS)
    rows = range(product.rows)
    lane_of = f"lane % {_LANES}u" if product.transposed else f"lane / {_COLUMNS}u"
    column_of = f"lane / {_LANES}u" if product.transposed else f"lane % {_COLUMNS}u"
    w_at = (
        f"w0 + safe * {product.depth}u + k" if product.transposed else f"w0 + k * {product.columns}u + safe"
    )  # fmt: skip
    lines = [
        *(f"var s{r} = 0.0;" for r in rows),
        f"let x0 = x_matrix(batch) * {product.rows * product.depth}u;",
        f"let w0 = w_matrix(batch) * {product.columns * product.depth}u;",
        f"let safe = min(column, {product.columns - 1}u);",
        f"for (var k = term; k < {product.depth}u; k += {_LANES}u) {{",
        f"let b = w[{w_at}];",
        *(f"s{r} = fma(x[x0 + {r * product.depth}u + k], b, s{r});" for r in rows),
        "}",
    ]
    lines += [
        *(f"part[{size * r}u + own * {_LANES}u + term] = s{r};" for r in rows),
        *tree([f"part[{size * r}u + own * {_LANES}u + term]" for r in rows], "term", _LANES),
        # Not between barriers: PoCL 3.0 loses there what a condition does.
        "if (term == 0u) {",
        *(f"keep(part[{size * r}u + own * {_LANES}u], batch, {r}u, column);" for r in rows),
        "}",
    ]
    source = f"""{product.head("x", "w", (1, _COLUMNS))}
var<workgroup> part : array<f32, {size * product.rows}>;
@compute @workgroup_size({size})
fn product({ENTRY}) {{
  let tile = {PLACE};
  if (tile >= {across * product.count}u) {{ return; }}
  let term = {lane_of};
  let own = {column_of};
  let column = tile % {across}u * {_COLUMNS}u + own;
  let batch = tile / {across}u;
  {_joined(lines)}
}}
"""
    return source, across * product.count, size


def _joined(lines: list[str]) -> str:
    return "\n  ".join(lines)
