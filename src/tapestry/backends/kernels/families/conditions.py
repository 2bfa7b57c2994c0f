"""What these kernels ask of a match: one type of floats, something to compute, bindings and loops within limits.

Not here: conditions of single operators.
"""

from __future__ import annotations

import torch

from tapestry.backends.rules import MatchView
from tapestry.program.graph import TensorSpec
from tapestry.program.serial import dtype_name
from tapestry.runtime.device import DeviceInfo

#: The types that buffers hold as float32 values.
FLOATS = ("float32", "float16", "bfloat16")
#: Places are counted in 32 bits, and some kernels add up to so many beyond the last one.
_MOST, _BEYOND = 2**32, 2**16


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
    """No value takes more bytes than one binding of the device may have, or has more elements than are counted."""
    if (elements := max(spec.numel for spec in specs(m))) > _MOST - _BEYOND:
        return f"a value of {elements:,} elements, over the {_MOST - _BEYOND:,} that these kernels can count"
    most, largest = m.info.limits.max_binding_bytes, max(spec.numel * _width(spec, m.info) for spec in specs(m))
    if most and largest > most:
        return f"a value of {largest:,} bytes, over the device's limit for a binding of {most:,}"
    return None


def holds_float32(spec: TensorSpec, info: DeviceInfo) -> bool:
    """Whether a buffer of floats holds float32 values, also for a shorter type: where kernels address words only."""
    return spec.dtype == torch.float32 or "uint8" not in info.dtypes


def _width(spec: TensorSpec, info: DeviceInfo) -> int:
    """Bytes of an element as a buffer holds it."""
    return spec.dtype.itemsize if "uint8" in info.dtypes else 4


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
