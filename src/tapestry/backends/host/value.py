"""How an artifact names its inputs and outputs. No torch."""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True):
    """One input or output of an artifact: the runtime's name for it, shape in elements, dtype by torch's name."""

    name: str
    shape: tuple[int, ...]
    dtype: str
