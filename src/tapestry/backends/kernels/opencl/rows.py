"""index_copy in place: one work-item an element of the source. Rows that the index has twice end as either says.

Not here: what is written where (kernels.rows).
"""

from __future__ import annotations

from math import ceil

from tapestry.backends.kernels.declare import Dispatch
from tapestry.backends.kernels.rows import declare_index_copy, rows_of
from tapestry.backends.rules import MatchView

_GROUP = 64
#: Bytes of an element → a type that holds them; values are only copied.
_TYPES = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong", 16: "ulong2"}
_SOURCE = """
__kernel void index_copy(__global const INDEX* index, __global const TYPE* source, __global TYPE* out) {
    size_t i = get_global_id(0);
    if (i >= COUNT) return;
    size_t row = i / INNER % GIVEN, outer = i / INNER / GIVEN;
    long at = index[row];
    if (at >= 0 && at < INTO) out[(outer * INTO + at) * INNER + i % INNER] = source[i];
}
"""


def _write(m: MatchView) -> Dispatch:
    rows = rows_of(m)
    source = _SOURCE.replace("TYPE", _TYPES[m.spec("x").dtype.itemsize])
    source = source.replace("INDEX", "long" if m.spec("index").dtype.itemsize == 8 else "int")
    groups = (ceil(rows.count / _GROUP),)
    bindings = ("index", "source", "out")
    return Dispatch(source, "index_copy", bindings, groups, (_GROUP,), rows.constants, updates={"out": "x"})


declare_index_copy("opencl", _write)
