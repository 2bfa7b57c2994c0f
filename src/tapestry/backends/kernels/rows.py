"""Rows written in place, as a cache of keys and values gains one: what the kernels for it share between languages.

Not here: source text.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tapestry.backends.kernels.declare import Writer, kernel
from tapestry.backends.rules import MatchView, all_of, any_, attr, op


@dataclass(frozen=True)
class Rows:
    """Tensors seen as [outer, rows, inner]: ``into`` rows in the one that is written, ``given`` in the source."""

    outer: int
    into: int
    given: int
    inner: int

    @property
    def count(self) -> int:
        """Elements of the source."""
        return self.outer * self.given * self.inner

    @property
    def constants(self) -> dict[str, int]:
        return {"COUNT": self.count, "INTO": self.into, "GIVEN": self.given, "INNER": self.inner}


def rows_of(m: MatchView) -> Rows:
    """The geometry of a matched index_copy."""
    shape, dim = m.spec("x").shape, _dim(m)
    return Rows(prod(shape[:dim]), shape[dim], m.spec("source").shape[dim], prod(shape[dim + 1 :]))


def _dim(m: MatchView) -> int:
    dim, rank = m.value("dim"), len(m.spec("x").shape)
    assert isinstance(dim, int), "the schema of index_copy says so"
    return dim % rank


def _suits(m: MatchView) -> str | None:
    x, source = m.spec("x"), m.spec("source")
    if len(x.shape) == 0 or len(source.shape) != len(x.shape) or len(m.spec("index").shape) != 1:
        return "a tensor without dimensions is written"
    return None if source.numel else "no elements are written"


def declare_index_copy(device: str, write: Writer) -> None:
    """Declare ``index_copy`` for a kind of device: ``write`` names ``updates={"out": "x"}`` in its dispatch."""
    pattern = op("aten.index_copy.default", any_("x"), attr("dim"), any_("index"), any_("source"))
    kernel(device=device, pattern=pattern, when=all_of(_suits), name="index_copy")(write)
