"""Declaring a kernel that is written in WGSL for every kind of device that has one: WebGPU, and OpenCL in translation.

Not here: translating (opencl.translate).
"""

from __future__ import annotations

from dataclasses import replace

from tapestry.backends.kernels.declare import Dispatch, Writer, kernel
from tapestry.backends.kernels.opencl.translate import translated
from tapestry.backends.kernels.schedule import Schedule
from tapestry.backends.rules import Expression, MatchView, Predicate
from tapestry.program.serial import dtype_name


def ship(pattern: Expression, when: Predicate, name: str, schedule: Schedule, write: Writer) -> None:
    """Declare a kernel. ``write`` gives WGSL with captures and ``out`` as bindings, and must look at the device itself
    where that matters.
    """

    def in_opencl(m: MatchView) -> Dispatch:
        dispatch = write(m)
        result = m.calls[-1].outputs[0]
        assert result is not None, "a kernel has a result"
        specs = [result if name == "out" else m.spec(name) for name in dispatch.bindings]
        source = translated(dispatch.source, [dtype_name(spec.dtype) for spec in specs], dispatch.constants)
        return replace(dispatch, source=source, constants={})

    kernel("webgpu", pattern, when, name, schedule)(write)
    kernel("opencl", pattern, when, name, schedule)(in_opencl)
