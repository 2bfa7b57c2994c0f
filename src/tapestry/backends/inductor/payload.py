"""What the Inductor backend hands to its loader."""

from __future__ import annotations

import msgspec


class InductorPayload(msgspec.Struct, frozen=True):
    """The graph to be frozen and compiled, in its final precision (tapestry.program.serial)."""

    graph: bytes
    constants: tuple[int, ...]
    threads: int
