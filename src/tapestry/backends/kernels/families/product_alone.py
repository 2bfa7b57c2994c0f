"""Matrix products for adapters that run on a processor's cores: an invocation makes a tile of the result alone.

No barriers and no workgroup memory, which are what costs there; small groups, so that every core gets some. Loads cost
most, each lane's own with a check of its place, so that tiles are as large as leaves a few groups: what a processor
keeps on its stack of them costs less.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from tapestry.backends.kernels.declare import Dispatch
from tapestry.backends.kernels.families.product import BLOCK, LONG, Product
from tapestry.backends.kernels.webgpu.grid import ENTRY, PLACE, groups_for

#: Invocations to a group.
_GROUP = 8
#: Rows and columns of a tile, the largest first, and the groups that there should be. Large tiles are faster still, but
#: Mesa's software adapters take ten seconds to build the largest.
_TILES = ((8, 8), (4, 8), (4, 4))
_LARGE = ((16, 16), (8, 16))
#: The same with one row, and with sums of eight lanes, of which a processor keeps twelve in its registers.
_ROWS = ((1, 16), (1, 4))
_WIDE, _WIDE_ROWS = ((4, 3), (2, 3)), ((1, 8), (1, 4))
_ENOUGH = 4
_LANES_ADDED = """
fn added(a : vec8f) -> f32 { return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7])); }
"""


def rounds(product: Product) -> int:
    """Rounds of all loops that one invocation makes, at most."""
    return ceil(product.depth / 4) + ceil(product.depth / BLOCK) + _LARGE[0][0] * _LARGE[0][1] + 4


def dispatch(product: Product, large: bool = False) -> Dispatch:
    """The kernel for a product and its launch; it binds ``x``, ``w``, what the finish reads, and ``out``.

    ``large``: with tiles of more results, whose terms are then loaded less often.
    """
    rows, width = _tile(product, (*_LARGE, *_TILES) if large else _TILES)
    across, down = ceil(product.columns / width), ceil(product.rows / rows)
    tiles = across * down * product.count
    lanes = product.lanes if product.transposed else 4
    vectors = product.depth % lanes == 0
    wide = vectors if product.transposed else product.columns % 4 == 0
    body = _along_rows(product, rows, width, vectors) if product.transposed else _down_columns(product, rows, width)
    names = (f"x{lanes}" if vectors else "x", f"w{lanes}" if wide else "w")
    source = f"""{product.head(*names, (rows, width))}{_LANES_ADDED if lanes > 4 else ""}
@compute @workgroup_size({_GROUP})
fn product({ENTRY}) {{
  let tile = ({PLACE}) * {_GROUP}u + lane;
  if (tile >= {tiles}u) {{ return; }}
  let column = tile % {across}u * {width}u;
  let row = tile / {across}u % {down}u * {rows}u;
  let batch = tile / {across * down}u;
  {body}
}}
"""
    return Dispatch(
        source, "product", ("x", "w", *product.finish.reads, "out"), groups_for(ceil(tiles / _GROUP)), (_GROUP,)
    )


def _tile(product: Product, tiles: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Rows and columns of a tile, so that tiles are of nearly the same size; whole vectors of columns of w."""
    rows, wide = product.rows, product.transposed and product.lanes > 4
    if rows == 1:
        tiles = _WIDE_ROWS if wide else _ROWS
    elif wide:
        tiles = _WIDE
    sizes = [(_even(rows, high), _even(product.columns, across)) for high, across in tiles]
    if not product.transposed:
        sizes = [(rows, ceil(columns / 4) * 4) for rows, columns in sizes]
    for high, across in sizes:
        if ceil(rows / high) * ceil(product.columns / across) * product.count >= _GROUP * _ENOUGH:
            return high, across
    return sizes[-1]


def _even(size: int, most: int) -> int:
    return ceil(size / ceil(size / most))


def _along_rows(product: Product, rows: int, width: int, vectors: bool) -> str:
    """Dot products of rows of x with rows of w: of vectors of four, or a sum for each of eight lanes until the end."""
    depth, lanes = product.depth, product.lanes
    step = depth // lanes if vectors else depth
    pairs = [(r, c) for r in range(rows) for c in range(width)]
    dots = lanes == 4
    zero = "0.0" if dots else f"vec{lanes}f()"
    lines = [
        *(f"let x_at{r} = (x_matrix(batch) * {product.rows}u + {_inside('row', r, product.rows)}) * {step}u;"
          for r in range(rows)),
        *(f"let w_at{c} = (w_matrix(batch) * {product.columns}u + {_inside('column', c, product.columns)}) * {step}u;"
          for c in range(width)),
        *(f"var s{r}_{c} = {zero};" for r, c in pairs),
    ]  # fmt: skip
    whole = depth // lanes
    inner = [f"let a{r} = {_vector('x', f'x_at{r}', lanes, vectors)};" for r in range(rows)]
    for c in range(width):
        inner.append(f"let b{c} = {_vector('w', f'w_at{c}', lanes, vectors)};")
        inner += [
            f"SUM{r}_{c} += dot(a{r}, b{c});" if dots else f"SUM{r}_{c} = fma(a{r}, b{c}, SUM{r}_{c});"
            for r in range(rows)
        ]
    lines += _summed(whole, 4 if dots else 1, inner, [f"{r}_{c}" for r, c in pairs], zero)
    sums = "s" if dots else "t"
    lines += [] if dots else [f"var t{r}_{c} = added(s{r}_{c});" for r, c in pairs]
    for k in range(lanes * whole, depth):
        lines += [f"{sums}{r}_{c} = fma(x[x_at{r} + {k}u], w[w_at{c} + {k}u], {sums}{r}_{c});" for r, c in pairs]
    lines += _kept([f"{sums}{r}_{c}" for r, c in pairs], width)
    return "\n  ".join(lines)


def _summed(rounds: int, terms: int, inner: list[str], names: list[str], zero: str) -> Iterator[str]:
    """The loop over the terms, so many of each sum in a round; long sums in blocks. SUM is before the name of a sum."""
    if terms * rounds <= LONG:
        yield f"for (var k = 0u; k < {rounds}u; k++) {{"
        yield from (line.replace("SUM", "s") for line in inner)
        yield "}"
        return
    yield f"for (var begin = 0u; begin < {rounds}u; begin += {BLOCK // terms}u) {{"
    yield f"let end = min(begin + {BLOCK // terms}u, {rounds}u);"
    yield from (f"var p{name} = {zero};" for name in names)
    yield "for (var k = begin; k < end; k++) {"
    yield from (line.replace("SUM", "p") for line in inner)
    yield "}"
    yield from (f"s{name} += p{name};" for name in names)
    yield "}"


def _kept(sums: list[str], width: int) -> Iterator[str]:
    """Stores the results of a tile's sums. In a loop, so that what becomes of a sum is compiled once."""
    yield f"var sums = array<f32, {len(sums)}>({', '.join(sums)});"
    yield f"for (var i = 0u; i < {len(sums)}u; i++) {{"
    yield f"keep(sums[i], batch, row + i / {width}u, column + i % {width}u);"
    yield "}"


def _vector(name: str, first: str, lanes: int, vectors: bool) -> str:
    if vectors:
        return f"{name}{lanes}[{first} + k]"
    return f"vec{lanes}f({', '.join(f'{name}[{first} + {lanes}u * k + {j}u]' for j in range(lanes))})"


def _down_columns(product: Product, rows: int, width: int) -> str:
    """Rows of w, vectors of four columns at a time, times single values of x."""
    depth, columns = product.depth, product.columns
    vectors = range(width // 4)
    pairs = [(r, c) for r in range(rows) for c in vectors]
    step = depth // 4 if depth % 4 == 0 else depth
    wide = columns % 4 == 0
    lines = [
        *(f"let x_at{r} = (x_matrix(batch) * {product.rows}u + {_inside('row', r, product.rows)}) * {step}u;"
          for r in range(rows)),
        f"let w_at = w_matrix(batch) * {depth * columns // 4 if wide else depth * columns}u;",
        *_places(width, columns, wide),
        *(f"var s{r}_{c} = vec4f();" for r, c in pairs),
    ]  # fmt: skip
    whole = depth // 4
    if depth % 4 == 0:
        inner = [f"let a{r} = x4[x_at{r} + k];" for r in range(rows)]
    else:
        inner = [f"let a{r} = {_vector('x', f'x_at{r}', 4, False)};" for r in range(rows)]
    for j in range(4):
        inner.append("{")
        for c in vectors:
            inner.append(f"let b{c} = {_row_of_w(f'4u * k + {j}u', c, columns, wide)};")
            inner += [f"SUM{r}_{c} = fma(vec4f(a{r}[{j}]), b{c}, SUM{r}_{c});" for r in range(rows)]
        inner.append("}")
    lines += _summed(whole, 4, inner, [f"{r}_{c}" for r, c in pairs], "vec4f()")
    for k in range(4 * whole, depth):
        lines.append("{")
        for c in vectors:
            lines.append(f"let b{c} = {_row_of_w(f'{k}u', c, columns, wide)};")
            lines += [f"s{r}_{c} = fma(vec4f(x[x_at{r} + {k}u]), b{c}, s{r}_{c});" for r in range(rows)]
        lines.append("}")
    lines += _kept([f"s{r}_{c}[{j}]" for r, c in pairs for j in range(4)], width)
    return "\n  ".join(lines)


def _places(width: int, columns: int, wide: bool) -> Iterator[str]:
    """The columns of a tile; those beyond the last are read from the last and never kept."""
    if wide:
        yield from (f"let c{c} = min(column / 4u + {c}u, {columns // 4 - 1}u);" for c in range(width // 4))
    else:
        yield from (f"let c{c} = {_inside('column', c, columns)};" for c in range(width))


def _row_of_w(k: str, vector: int, columns: int, wide: bool) -> str:
    if wide:
        return f"w4[w_at + ({k}) * {columns // 4}u + c{vector}]"
    return f"vec4f({', '.join(f'w[w_at + ({k}) * {columns}u + c{4 * vector + j}]' for j in range(4))})"


def _inside(what: str, offset: int, size: int) -> str:
    """A place of a tile, the last one for those beyond it."""
    return f"min({what} + {offset}u, {size - 1}u)"
