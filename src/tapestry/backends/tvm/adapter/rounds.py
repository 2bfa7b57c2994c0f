"""How often an invocation of a kernel goes round loops: some adapters leave them early without a word.

Not here: which adapters do (the driver finds out and says so in its limits).
"""

from __future__ import annotations

from typing import Any

from tapestry.errors import UnsupportedError


def check_rounds(name: str, function: Any, most: int) -> None:
    """UnsupportedError, with the number, when a kernel goes round its loops more than ``most`` times (0: no limit)."""
    made = _rounds(function.body) if most else 0
    if made > most:
        raise UnsupportedError(
            f"kernel {name} makes {made:,} loop iterations in an invocation, over the device's limit of {most:,}"
        )


def _rounds(statement: Any) -> int:
    """Iterations of all loops in a statement together, of the longer way where it branches."""
    match type(statement).__name__:
        case "For":
            # A loop whose extent is not a number does not occur: all shapes are known.
            return int(statement.extent) * (1 + _rounds(statement.body))
        case "SeqStmt":
            return sum(_rounds(entry) for entry in statement.seq)
        case "IfThenElse":
            ways = [statement.then_case, statement.else_case]
            return max(_rounds(way) for way in ways if way is not None)
        case "Evaluate" | "BufferStore":
            return 0
        case _:
            body = getattr(statement, "body", None)
            return 0 if body is None else _rounds(body)
