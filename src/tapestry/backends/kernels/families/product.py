"""What a matrix product is to the kernels that compute it: sizes, layouts, and what becomes of each sum.

Not here: the kernels (product_alone, product_group) and the operators (products).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tapestry.backends.kernels.families.text import batch_place, bindings, stored
from tapestry.backends.kernels.webgpu.grid import SPECIAL

#: Sums of more terms are made of blocks of so many terms, so that roundings don't grow with their length.
LONG, BLOCK = 4096, 256


@dataclass(frozen=True)
class Finish:
    """What becomes of a sum: an expression of ``sum``, ``row``, ``column`` and ``at`` (the place in the result).

    ``reads`` are the captures that it binds, each a float32 buffer of that name; ``functions`` stand before it.
    """

    expression: str = "sum"
    reads: tuple[str, ...] = ()
    functions: str = ""


@dataclass(frozen=True)
class Product:
    """``out[b] = x[b] @ w[b]`` of ``rows`` by ``depth`` by ``columns``, over a ``batch`` to which both broadcast.

    With ``transposed``, ``w`` holds its columns as rows ([columns, depth], as ``linear`` has its weight).
    """

    rows: int
    columns: int
    depth: int
    batch: tuple[int, ...]
    x_batch: tuple[int, ...]
    w_batch: tuple[int, ...]
    transposed: bool
    dtype: str
    finish: Finish = Finish()
    #: Values of a row that an invocation which works alone multiplies at once: 4, or 8 where there are such vectors.
    lanes: int = 4

    @property
    def count(self) -> int:
        """Matrices in the batch."""
        return prod(self.batch)

    def head(self, x: str, w: str, tile: tuple[int, int]) -> str:
        """Buffers (``x4``, ``x8`` for one that is read in vectors), where the matrices of a batch begin, and ``keep``.

        ``keep`` stores the result of a sum; places of a ``tile`` of rows and columns beyond the last ones are left.
        """
        finish = self.finish
        inside = [
            f"{name} < {size}u" for name, size, step in
            (("row", self.rows, tile[0]), ("column", self.columns, tile[1])) if size % step
        ]  # fmt: skip
        return f"""{bindings(x, w, *finish.reads, "out")}{SPECIAL}{stored(self.dtype)}{finish.functions}
fn x_matrix(batch : u32) -> u32 {{ return {batch_place("batch", self.batch, self.x_batch)}; }}
fn w_matrix(batch : u32) -> u32 {{ return {batch_place("batch", self.batch, self.w_batch)}; }}
fn finished(sum : f32, row : u32, column : u32, at : u32) -> f32 {{ return stored({finish.expression}); }}
fn keep(sum : f32, batch : u32, row : u32, column : u32) {{
  {f"if (!({' && '.join(inside)})) {{ return; }}" if inside else ""}
  let at = (batch * {self.rows}u + row) * {self.columns}u + column;
  out[at] = finished(sum, row, column, at);
}}
"""
