"""A loader whose binding takes as many seconds as its payload says. Imports no torch: loading it must be fast."""

from __future__ import annotations

import time

import msgspec

from tapestry.runtime.drivers.host import HostProgram, Unbound


class SlowPayload(msgspec.Struct, frozen=True):
    """How long binding takes, and which of the call's inputs are the constants."""

    seconds: float
    constants: tuple[int, ...]


def load(payload: bytes) -> Unbound:
    """The loader of a region with one varying input, which its only output repeats."""
    model = msgspec.msgpack.decode(payload, type=SlowPayload)

    def bind(constants: list[memoryview]) -> HostProgram:
        time.sleep(model.seconds)

        def run(inputs: list[memoryview], outputs: list[memoryview]) -> None:
            outputs[0][:] = inputs[0]

        return run

    return Unbound(model.constants, bind)
