"""What the WGSL kernels ask of a match: one type of floats, something to compute, bindings and loops within limits.

Not here: conditions of single operators.
"""

from __future__ import annotations

from tapestry.backends.rules import MatchView
from tapestry.program.graph import TensorSpec
from tapestry.program.serial import dtype_name

#: The types that buffers hold as float32 values.
FLOATS = ("float32", "float16", "bfloat16")
#: Bytes of an element of any type as a buffer holds it: words.
_WORD = 4


def plain_floats(m: MatchView) -> str | None:
    """All values are of one of the types in FLOATS, none is empty, and each may be bound."""
    return one_type(m) or some_elements(m) or bindable(m)


def one_type(m: MatchView) -> str | None:
    """All values that the match reads or makes have one and the same of the types in FLOATS."""
    found = list(dict.fromkeys(dtype_name(spec.dtype) for spec in specs(m)))
    if len(found) > 1:
        return f"values of {' and '.join(found)}, expected one type"
    return None if found[0] in FLOATS else f"{found[0]}, expected {', '.join(FLOATS)}"


def some_elements(m: MatchView) -> str | None:
    """No value is empty."""
    return "no elements" if any(not spec.numel for spec in specs(m)) else None


def bindable(m: MatchView) -> str | None:
    """No value takes more bytes than one binding of the device may have."""
    most, largest = m.info.limits.max_binding_bytes, _WORD * max(spec.numel for spec in specs(m))
    if most and largest > most:
        return f"a value of {largest:,} bytes, over the device's limit for a binding of {most:,}"
    return None


def within_rounds(m: MatchView, rounds: int) -> str | None:
    """An invocation may go ``rounds`` rounds in all loops together."""
    most = m.info.limits.max_loop_iterations
    if most and rounds > most:
        return f"{rounds:,} rounds of loops, over the device's limit of {most:,}"
    return None


def specs(m: MatchView) -> list[TensorSpec]:
    """Of every value that the match reads or makes."""
    made = [spec for call in m.calls for spec in call.outputs if spec is not None]
    return [m.index.spec(ref) for ref in m.inputs] + made
