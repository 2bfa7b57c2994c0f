"""index_copy in place: one invocation a word of the source. Rows that the index has twice end as either says.

Not here: what is written where (kernels.rows).
"""

from __future__ import annotations

from math import ceil
from string import Template

from tapestry.backends.kernels.declare import Dispatch
from tapestry.backends.kernels.rows import declare_index_copy, rows_of
from tapestry.backends.kernels.webgpu.grid import ENTRY, GROUP, PLACE, groups_for
from tapestry.backends.rules import MatchView

_SOURCE = """
@group(0) @binding(0) var<storage, read> index : array<i32>;
@group(0) @binding(1) var<storage, read> source : array<u32>;
@group(0) @binding(2) var<storage, read_write> out : array<u32>;
@compute @workgroup_size(${GROUP})
fn index_copy(${ENTRY}) {
  let i = (${PLACE}) * ${GROUP}u + lane;
  if (i >= COUNT) { return; }
  let row = i / INNER % GIVEN;
  let outer = i / INNER / GIVEN;
  let at = index[row];
  if (at >= 0 && u32(at) < INTO) { out[(outer * INTO + u32(at)) * INNER + i % INNER] = source[i]; }
}
"""


def _write(m: MatchView) -> Dispatch:
    rows = rows_of(m)
    source = Template(_SOURCE).substitute(GROUP=str(GROUP), ENTRY=ENTRY, PLACE=PLACE)
    groups = groups_for(ceil(rows.count / GROUP))
    bindings = ("index", "source", "out")
    return Dispatch(source, "index_copy", bindings, groups, (GROUP,), rows.constants, updates={"out": "x"})


declare_index_copy("webgpu", _write)
