"""int64 results on devices that have 32 bits: taken only where the result fits whenever the operands do.

Operands are range-checked at each upload. What then fits is told from the operator, its shapes and its numbers; an
addition does not promise it. Not here: narrower integers, which wrap around as they should (adapter/narrow.py).
"""

from __future__ import annotations

import torch

from tapestry.program.graph import Argument, Call
from tapestry.program.traits import base_name, is_view

_LEAST, _MOST = -(2**31), 2**31 - 1

#: Results are elements of the operands, positions in them, bits of them, or no larger than they are. Numbers among the
#: arguments are checked beside.
_KEEPING_TABLE = """
alias clone copy copy_ contiguous cat stack flip roll repeat repeat_interleave index_select index gather take
take_along_dim expand_as where masked_fill clamp clamp_min clamp_max maximum minimum max min amax amin aminmax sort
topk argsort argmax argmin cummax cummin kthvalue median mode tril triu scatter index_copy slice_scatter
select_scatter diagonal_scatter index_put masked_scatter constant_pad_nd pad full full_like zeros zeros_like ones
ones_like new_zeros new_ones new_full fill scalar_tensor remainder fmod bitwise_and bitwise_or bitwise_xor bitwise_not
bitwise_right_shift __and__ __or__ __xor__ __rshift__ sign relu searchsorted bucketize one_hot count_nonzero nonzero
unique any all tril_indices triu_indices max_pool2d_with_indices max_pool1d_with_indices max_pool3d_with_indices
adaptive_max_pool2d fractional_max_pool2d _adaptive_avg_pool2d lift_fresh_copy detach detach_copy rot90 unfold diag
diag_embed eye _unsafe_index channel_shuffle pixel_shuffle pixel_unshuffle tile meshgrid broadcast_tensors split chunk
unbind hstack vstack dstack column_stack
"""
_KEEPING = frozenset(_KEEPING_TABLE.split())
#: Sums: bounded where the terms are of a narrow type and few enough.
_SUMS = frozenset({"sum", "cumsum"})
#: Casts: bounded from any integer type; a float may be anything.
_CASTS = frozenset({"_to_copy", "to"})
_DIVISIONS = frozenset({"div", "floor_divide"})
#: The largest magnitude of a type, for types whose sums may be bounded.
_LARGEST = {torch.bool: 1, torch.uint8: 255, torch.int8: 128, torch.int16: 2**15, torch.uint16: 2**16}


def unbounded(call: Call, dtype: torch.dtype | None, terms: int) -> str | None:
    """Why an int64 result of the call may not fit 32 bits, or None when it fits or there is none.

    ``dtype`` is that of the first operand and ``terms`` the number of its elements; None when not known yet: then what
    depends on them is let through.
    """
    if not any(spec is not None and spec.dtype == torch.int64 for spec in call.outputs):
        return None
    name = base_name(call.target)
    if is_view(call.target) or (name in _KEEPING and _numbers_fit(call)) or _fits(name, call, dtype, terms):
        return None
    return f"an int64 result of {name} may not fit the 32 bits that the device has"


def _fits(name: str, call: Call, dtype: torch.dtype | None, terms: int) -> bool:
    if name in _SUMS:
        return dtype is None or _LARGEST.get(dtype, _MOST) * max(1, terms) <= _MOST
    if name in _CASTS:
        return dtype is None or not (dtype.is_floating_point or dtype.is_complex)
    if name in _DIVISIONS:
        # The least integer divided by -1 is the one quotient that leaves the range.
        return isinstance(call.args[1], int | float) and call.args[1] not in {-1, 0} and _numbers_fit(call)
    return name == "arange" and _numbers_fit(call)


def _numbers_fit(call: Call) -> bool:
    values = [*call.args, *(value for _, value in call.kwargs)]
    return all(_fitting(value) for value in values)


def _fitting(value: Argument) -> bool:
    """Whether the numbers of an argument are ones that 32 bits hold; the largest int64 stands for "to the end"."""
    if isinstance(value, tuple):
        return all(_fitting(entry) for entry in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return _LEAST <= value <= _MOST or value == 2**63 - 1
