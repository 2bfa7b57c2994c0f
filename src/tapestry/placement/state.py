"""State that stays on a device between calls: which buffers can, and the memory that they have there.

A buffer that a region writes lives in two places that change roles after each call, so that writing back costs nothing;
or in one, where the region updates it in place and nothing reads the old value later. Not here: running.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tapestry.errors import TapestryError
from tapestry.program.graph import Ref
from tapestry.program.program import Program
from tapestry.runtime.device import Buffer, Device
from tapestry.runtime.module import TensorDecl

if TYPE_CHECKING:
    from tapestry.placement.layout import BoundStep


@dataclass(frozen=True)
class KeptState:
    """State ``name``, whose new value ``result`` is made on device ``where``; ``in_place`` in the old one's memory."""

    name: str
    result: Ref
    where: int
    decl: TensorDecl
    in_place: bool


def kept_states(
    program: Program,
    decls: Mapping[tuple[Ref, int], TensorDecl],
    last: Mapping[Ref, int],
    bound: Mapping[int, BoundStep],
) -> tuple[KeptState, ...]:
    """The program's own buffers that can stay where they are written.

    Not those that an output shares memory with, which the caller sees change. ``bound`` are the regions by the number
    of their step, ``last`` the last step that reads a value.
    """
    seen = {output.alias.base.name for output in program.outputs if output.alias and isinstance(output.alias.base, Ref)}
    found: list[KeptState] = []
    taken: set[Ref] = set()
    for entry in program.state:
        if entry.name not in program.tensors or entry.name in seen or entry.result in taken:
            continue
        place = next((p for p, step in bound.items() if entry.result in step.step.region.outputs), None)
        if place is None:
            continue
        where = bound[place].where
        old, new = decls.get((Ref(entry.name), where)), decls.get((entry.result, where))
        if new is None or (old is not None and (old.storage, old.nbytes) != (new.storage, new.nbytes)):
            continue
        taken.add(entry.result)
        read_later = last.get(Ref(entry.name), -1) > place
        in_place = not read_later and _updates(bound[place], Ref(entry.name), entry.result)
        found.append(KeptState(entry.name, entry.result, where, new, in_place))
    return tuple(found)


def _updates(step: BoundStep, old: Ref, new: Ref) -> bool:
    """Whether the region can make the new value in the memory of the old one."""
    region = step.step.region
    if old not in region.inputs:
        return False
    return (region.outputs.index(new), region.inputs.index(old)) in step.bound.compiled.updates


class StateBuffers:
    """The memory of the states kept on one device, made again when the device was restarted: then it holds nothing."""

    def __init__(self, device: Device, kept: Iterable[KeptState]) -> None:
        self._device = device
        self._kept = {entry.name: entry for entry in kept}
        self._now: dict[str, int] = dict.fromkeys(self._kept, 0)
        self._buffers: dict[str, tuple[Buffer, ...]] = {}
        self._generation = -1

    @property
    def generation(self) -> int:
        """The device's generation that what the buffers hold belongs to."""
        return self._generation

    def old(self, name: str) -> Buffer:
        """Where the value is that the next call reads."""
        return self._pair(name)[self._now[name]]

    def new(self, name: str) -> Buffer:
        """Where the next call writes."""
        pair = self._pair(name)
        return pair[(self._now[name] + 1) % len(pair)]

    def flip(self) -> None:
        """What was written is what the next call reads."""
        for name, entry in self._kept.items():
            if not entry.in_place:
                self._now[name] = 1 - self._now[name]

    def _pair(self, name: str) -> tuple[Buffer, ...]:
        if self._generation != self._device.generation:
            self._allocate()
        return self._buffers[name]

    def _allocate(self) -> None:
        generation, made = self._device.generation, dict[str, tuple[Buffer, ...]]()
        try:
            for name, entry in self._kept.items():
                made[name] = ()
                for _ in range(1 if entry.in_place else 2):
                    made[name] += (self._device.alloc(entry.decl.nbytes),)
        except TapestryError:
            for buffer in (buffer for pair in made.values() for buffer in pair):
                self._device.free(buffer)
            raise
        self._buffers, self._generation = made, generation

    def close(self) -> None:
        """Free the buffers. May be called again."""
        if self._generation == self._device.generation:
            for buffer in (buffer for pair in self._buffers.values() for buffer in pair):
                self._device.free(buffer)
        self._buffers = {}
        self._generation = -1
