"""What the adapter hands back: kernels and launches as plain data, before they become a Compiled."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slot:
    """A tensor of the plan. ``alias`` is the slot whose buffer it shares, or -1. ``dtype`` is TVM's name."""

    shape: tuple[int, ...]
    dtype: str
    alias: int = -1


@dataclass(frozen=True)
class Literal:
    """A slot to be filled with one value."""

    slot: int
    value: bool | int | float


@dataclass(frozen=True)
class Kernel:
    """One device function: its source (empty when it shares the plan's) and its buffers' access letters."""

    name: str
    access: str
    source: str = ""


@dataclass(frozen=True)
class Step:
    """One launch; ``args`` are slots. Grid in workgroups, block in invocations."""

    kernel: str
    args: tuple[int, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


@dataclass(frozen=True)
class Plan:
    """``inputs`` are the slots of the device graph's placeholders, ``outputs`` those of its results."""

    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    literals: tuple[Literal, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    source: str
