"""Declaring a hand-written kernel: a pattern, source text, and how it is launched.

    @kernel(device="opencl", pattern=op("aten.relu", any_("x")), when=dtypes("float32"))
    def relu(m: MatchView) -> Dispatch:
        count = m.spec("x").numel
        return Dispatch(
            source="__kernel void relu(__global const float* x, __global float* out) { … }",
            entry="relu",
            bindings=("x", "out"),
            groups=(ceil(count / 64),),
            workgroup=(64,),
        )

Not here: compiling what is declared (backend), and where kernels are found (loading).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tapestry.backends.kernels.schedule import Schedule
from tapestry.backends.rules import Expression, MatchView, Pattern, Predicate, all_of, device_kind
from tapestry.errors import UsageError

#: Device kind → the language that its kernels are written in.
LANGUAGES = {"opencl": "opencl", "webgpu": "wgsl", "cuda": "cuda"}


@dataclass(frozen=True)
class Dispatch:
    """One launch of a kernel.

    ``bindings`` names the buffer arguments in order: captures of the pattern (``x``), the result (``out``, or
    ``out0``, ``out1`` … with several), or ``scratch`` entries. Tensors are contiguous, in the dtype of the program
    (bool as bytes, 16-bit floats as ushort bits where the device has no such arithmetic). ``groups`` counts
    workgroups, ``workgroup`` invocations, each with up to three dimensions. ``constants`` are put before the source
    as macros (OpenCL, CUDA) or ``const`` declarations (WGSL). ``options`` go to the device's compiler.
    ``updates`` names, for a result that the kernel changes in place, the capture whose content it begins as: where
    nothing else reads that later, it is changed where it is, and copied first otherwise.
    """

    source: str
    entry: str
    bindings: tuple[str, ...]
    groups: tuple[int, ...]
    workgroup: tuple[int, ...] = (1,)
    constants: Mapping[str, int | float] = field(default_factory=dict[str, "int | float"])
    options: str = ""
    updates: Mapping[str, str] = field(default_factory=dict[str, str])


Writer = Callable[[MatchView], Dispatch]


@dataclass(frozen=True, eq=False)
class Kernel:
    """A declared kernel. ``file`` is where it was written; ``schedule`` says which of several for one purpose it is."""

    name: str
    device: str
    pattern: Pattern
    write: Writer
    file: str
    schedule: Schedule | None = None


_declared: list[Kernel] = []


def kernel(
    device: str,
    pattern: Expression | tuple[Expression, ...],
    when: Predicate | None = None,
    name: str = "",
    schedule: Schedule | None = None,
) -> Callable[[Writer], Writer]:
    """Declare a kernel for one kind of device; the decorated function writes it for a match.

    Later declarations win over earlier ones where both match, so that a user's kernel replaces one that ships. Of
    kernels with the same ``name`` and several schedules, the one whose schedule the options say wins. UsageError for
    a kind of device that has no kernel language.
    """
    if device not in LANGUAGES:
        raise UsageError(f"expected a device with kernels ({', '.join(LANGUAGES)}), got {device!r}")

    def declare(write: Writer) -> Writer:
        label = name or getattr(write, "__name__", "kernel")
        code = getattr(write, "__code__", None)
        file = code.co_filename if code is not None else ""
        here = device_kind(device)
        condition = here if when is None else all_of(here, when)
        _declared.append(Kernel(label, device, Pattern(pattern, condition, name=label), write, file, schedule))
        return write

    return declare


def declared(device: str) -> tuple[Kernel, ...]:
    """The kernels for a kind of device, the latest first."""
    return tuple(entry for entry in reversed(_declared) if entry.device == device)


def forget(file: str) -> None:
    """Take out the kernels that a file declared, before it is loaded again."""
    _declared[:] = [entry for entry in _declared if entry.file != file]


def snapshot() -> tuple[Kernel, ...]:
    """Every kernel, in the order of declaration, for ``restore``."""
    return tuple(_declared)


def restore(kernels: tuple[Kernel, ...]) -> None:
    """Put back what ``snapshot`` gave."""
    _declared[:] = kernels
