"""Checks numbers against the limits that a device states; each refusal names the number and the limit.

Not here: which buffers and modules exist (handles.py), or whether a compiled region is well formed (plan.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from tapestry.errors import UnsupportedError, UsageError
from tapestry.runtime.device import Limits

Triple = tuple[int, int, int]


def check_buffer_bytes(nbytes: int, limits: Limits) -> None:
    """UsageError for a negative size, UnsupportedError for one over the device's largest buffer."""
    if nbytes < 0:
        raise UsageError(f"a buffer size must be 0 or more bytes, got {nbytes}")
    if limits.max_buffer_bytes and nbytes > limits.max_buffer_bytes:
        raise UnsupportedError(f"a buffer of {nbytes:,} bytes is over the limit of {limits.max_buffer_bytes:,} bytes")


def check_launch_shape(kernel: str, grid: Triple, block: Triple, limits: Limits) -> None:
    """Checks a launch's workgroup counts and workgroup size. A grid with a zero is allowed: nothing runs."""
    for axis, count, size, most, widest in zip("xyz", grid, block, limits.max_grid, limits.max_block, strict=True):
        if count < 0 or size < 1:
            raise UsageError(
                f"kernel {kernel}: expected a grid of 0 or more groups and a block of 1 or more, "
                f"got grid.{axis} = {count}, block.{axis} = {size}"
            )
        if most and count > most:
            raise UnsupportedError(f"kernel {kernel}: {count:,} workgroups along {axis}, over the limit of {most:,}")
        if widest and size > widest:
            raise UnsupportedError(
                f"kernel {kernel}: {size:,} invocations along {axis} of a workgroup, over the limit of {widest:,}"
            )
    invocations = block[0] * block[1] * block[2]
    if limits.max_invocations and invocations > limits.max_invocations:
        raise UnsupportedError(
            f"kernel {kernel}: {invocations:,} invocations in a workgroup, over the limit of {limits.max_invocations:,}"
        )


def check_bindings(kernel: str, sizes: Iterable[int], limits: Limits) -> None:
    """Checks how many buffers a launch binds and how large (in bytes) each binding is."""
    count = 0
    for nbytes in sizes:
        count += 1
        if limits.max_binding_bytes and nbytes > limits.max_binding_bytes:
            raise UnsupportedError(
                f"kernel {kernel}: a binding of {nbytes:,} bytes, over the limit of {limits.max_binding_bytes:,}"
            )
    if limits.max_bindings and count > limits.max_bindings:
        raise UnsupportedError(f"kernel {kernel}: {count} buffers bound, over the limit of {limits.max_bindings}")
