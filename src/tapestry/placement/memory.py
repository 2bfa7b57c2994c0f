"""Buffers for the values that live on a device between regions: planned once, shared by values that never meet.

Not here: workspace inside a region and constants (runtime.bind, runtime.resident).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from tapestry.errors import TapestryError
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
    """Assign slots so that values whose lifetimes overlap never share one; a slot is shared by values of one size.

    Artifacts see the whole buffer, so a buffer has exactly the size of its value. In order of first use.
    """
    order = sorted(lifetimes, key=lambda value: (lifetimes[value].first, str(value)))
    free_after: dict[int, list[tuple[int, int]]] = {}
    sizes: list[int] = []
    slot_of: dict[object, int] = {}
    for value in order:
        life = lifetimes[value]
        waiting = free_after.setdefault(life.nbytes, [])
        if waiting and waiting[0][0] < life.first:
            _, slot = heapq.heappop(waiting)
        else:
            slot = len(sizes)
            sizes.append(life.nbytes)
        heapq.heappush(waiting, (life.last, slot))
        slot_of[value] = slot
    return SlotPlan(slot_of, tuple(sizes))


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
            self._allocate()
        return self._buffers[self._plan.slot_of[value]]

    def _allocate(self) -> None:
        generation, buffers = self._device.generation, list[Buffer]()
        try:
            for nbytes in self._plan.sizes:
                buffers.append(self._device.alloc(nbytes))
        except TapestryError:
            for buffer in buffers:
                self._device.free(buffer)
            raise
        self._buffers, self._generation = buffers, generation

    def close(self) -> None:
        """Free the buffers. May be called again."""
        if self._generation == self._device.generation:
            for buffer in self._buffers:
                self._device.free(buffer)
        self._buffers = []
        self._generation = -1
