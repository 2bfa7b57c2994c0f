"""What the ExecuTorch backend hands to its loader."""

from __future__ import annotations

import msgspec


class ExecuTorchPayload(msgspec.Struct, frozen=True):
    """The graph to be lowered, in its final precision (tapestry.program.serial).

    ``program``: the lowered program, where the graph has no constants that the loader would have to lower it with;
    else empty.
    """

    graph: bytes
    constants: tuple[int, ...]
    threads: int
    program: bytes = b""
