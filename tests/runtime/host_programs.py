"""Loaders for the host driver's tests, allowed by register_loader_prefix("host_programs.")."""

from __future__ import annotations

import numpy as np

from tapestry.runtime.drivers.host import HostProgram


def load_multiply(payload: bytes) -> HostProgram:
    """float32 elementwise product of the inputs and a factor, which is the payload's text."""
    factor = np.float32(payload.decode())

    def run(inputs: list[memoryview], outputs: list[memoryview]) -> None:
        result = np.full(len(outputs[0]) // 4, factor)
        for view in inputs:
            result = result * np.frombuffer(view, np.float32)
        np.frombuffer(outputs[0], np.float32)[:] = result

    return run


def load_failing(payload: bytes) -> HostProgram:
    """Fails when it runs."""

    def run(inputs: list[memoryview], outputs: list[memoryview]) -> None:
        raise ValueError("no such luck")

    return run
