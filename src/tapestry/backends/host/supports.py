"""What can be said of a call before any converter is asked: whether it may move at all, and its dtypes.

Not a promise: the converter decides, and cases tell whether the result is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

import torch

from tapestry.program.graph import Call
from tapestry.program.serial import dtype_name
from tapestry.program.traits import place_reason
from tapestry.runtime.device import DeviceInfo


def supports(runtime: str, dtypes: Set[torch.dtype]) -> Callable[[Call, DeviceInfo], str | None]:
    """A condition for rules: the call may leave the source, and the runtime has the dtypes of its results."""

    def when(call: Call, info: DeviceInfo) -> str | None:
        reason = place_reason(call)
        if reason is not None:
            return reason
        for dtype in _dtypes(call):
            if dtype not in dtypes:
                return f"{runtime} has no {dtype_name(dtype)}"
        return None

    return when


def _dtypes(call: Call) -> Iterator[torch.dtype]:
    yield from (spec.dtype for spec in call.outputs if spec is not None)
    for value in (*call.args, *(value for _, value in call.kwargs)):
        if isinstance(value, torch.dtype):
            yield value
