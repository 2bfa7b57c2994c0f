"""Loaders for the host driver's tests, allowed by register_loader_prefix("host_programs.")."""

from __future__ import annotations

import numpy as np

from tapestry.runtime.drivers.host import HostProgram, Unbound


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


#: How often constants were bound in this process.
bindings: list[float] = []


def load_scale(payload: bytes) -> Unbound:
    """float32 product of the last input and the sum of the first, its constant, which is folded when it is bound."""

    def bind(constants: list[memoryview]) -> HostProgram:
        factor = np.frombuffer(constants[0], np.float32).sum()
        if np.isnan(factor):
            raise ValueError("not a number to scale with")
        bindings.append(float(factor))

        def run(inputs: list[memoryview], outputs: list[memoryview]) -> None:
            np.frombuffer(outputs[0], np.float32)[:] = np.frombuffer(inputs[0], np.float32) * factor

        return run

    return Unbound((0,), bind)
