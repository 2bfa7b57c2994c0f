"""Buffers for the values that live on a device between regions: planned once, shared by values that never meet.

Not here: workspace inside a region and constants (runtime.bind, runtime.resident).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tapestry.runtime.device import Buffer, Device


@dataclass(frozen=True)
class Lifetime:
    """A value on a device: bytes, and the first and last step (inclusive) in which it must be whole."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class SlotPlan:
    """``slot_of[value]`` is an index into ``sizes`` (bytes)."""

    slot_of: dict[object, int]
    sizes: tuple[int, ...]


def plan_slots(lifetimes: Mapping[object, Lifetime]) -> SlotPlan:
    """Assign slots so that values whose lifetimes overlap never share one. Best fit, in order of first use."""
    order = sorted(lifetimes, key=lambda value: (lifetimes[value].first, -lifetimes[value].nbytes, str(value)))
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    sizes: list[int] = []
    slot_of: dict[object, int] = {}
    for value in order:
        life = lifetimes[value]
        for last, slot in list(busy):
            if last < life.first:
                busy.remove((last, slot))
                free.append(slot)
        slot = _best_fit(free, sizes, life.nbytes)
        if slot is None:
            slot = len(sizes)
            sizes.append(life.nbytes)
        else:
            free.remove(slot)
            sizes[slot] = max(sizes[slot], life.nbytes)
        busy.append((life.last, slot))
        slot_of[value] = slot
    return SlotPlan(slot_of, tuple(sizes))


def _best_fit(free: Sequence[int], sizes: Sequence[int], nbytes: int) -> int | None:
    """The free slot that wastes least; one that must grow comes last. A slot over four times too large is left."""
    fitting = [slot for slot in free if nbytes <= sizes[slot] <= 4 * max(nbytes, 256)]
    if fitting:
        return min(fitting, key=lambda slot: sizes[slot])
    growing = [slot for slot in free if sizes[slot] < nbytes]
    return max(growing, key=lambda slot: sizes[slot], default=None)


class SlotBuffers:
    """The buffers of a SlotPlan on a device, made again when the device was restarted."""

    def __init__(self, device: Device, plan: SlotPlan) -> None:
        self._device = device
        self._plan = plan
        self._generation = -1
        self._buffers: list[Buffer] = []

    def buffer(self, value: object) -> Buffer:
        """The buffer of a value, valid for the device's current generation."""
        if self._generation != self._device.generation:
            self._generation = self._device.generation
            self._buffers = []
            for nbytes in self._plan.sizes:
                self._buffers.append(self._device.alloc(nbytes))
        return self._buffers[self._plan.slot_of[value]]

    def close(self) -> None:
        """Free the buffers."""
        if self._generation == self._device.generation:
            for buffer in self._buffers:
                self._device.free(buffer)
        self._buffers = []
        self._generation = -1
