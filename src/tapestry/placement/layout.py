"""What an executable knows before it runs: bound regions, who reads what last, a buffer per value on a device.

Not here: running (run).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tapestry.errors import UsageError
from tapestry.placement.memory import Lifetime, SlotBuffers, plan_slots
from tapestry.placement.plan import DeviceStep, HostStep, SourceStep, Step, last_reads
from tapestry.placement.state import KeptState, StateBuffers, kept_states
from tapestry.program.graph import Call, Ref
from tapestry.program.program import Program
from tapestry.runtime.bind import BoundRegion
from tapestry.runtime.device import Buffer, Device
from tapestry.runtime.module import TensorDecl
from tapestry.runtime.resident import Resident


@dataclass(frozen=True)
class BoundStep:
    """A device step with its compiled region on its device."""

    step: DeviceStep
    bound: BoundRegion
    resident: Resident

    @property
    def where(self) -> int:
        """Tells devices apart."""
        return id(self.resident)


@dataclass(frozen=True)
class SourceCalls:
    """A source step ready to run; ``keep`` are its results that later steps read or that leave the program."""

    step: SourceStep
    calls: tuple[Call, ...]
    keep: frozenset[Ref]


class Layout:
    """Steps in order, with everything decided that does not change from run to run."""

    def __init__(self, program: Program, steps: Sequence[SourceStep | HostStep | BoundStep]) -> None:
        self.program = program
        plain: list[Step] = [entry.step if isinstance(entry, BoundStep) else entry for entry in steps]
        self._last = last_reads(program, plain)
        self.steps = tuple(
            self._source_calls(place, entry) if isinstance(entry, SourceStep) else entry
            for place, entry in enumerate(steps)
        )
        self.decls = self._declared()
        self.kept = self._kept_states()
        self.states = {
            where: StateBuffers(device, [entry for entry in self.kept if entry.where == where])
            for where, device in self.device_of.items()
        }
        self._old = {(Ref(entry.name), entry.where): entry.name for entry in self.kept}
        self._new = {(entry.result, entry.where): entry.name for entry in self.kept}
        self.slots = self._plan_memory()

    @property
    def bound_steps(self) -> tuple[BoundStep, ...]:
        """The regions on devices, in order."""
        return tuple(entry for entry in self.steps if isinstance(entry, BoundStep))

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices in use, each once."""
        return tuple({entry.where: entry.resident.device for entry in self.bound_steps}.values())

    @cached_property
    def device_of(self) -> dict[int, Device]:
        return {entry.where: entry.resident.device for entry in self.bound_steps}

    def close(self) -> None:
        """Free what the regions and values hold on devices."""
        for entry in self.bound_steps:
            entry.bound.close()
        for memory in (*self.slots.values(), *self.states.values()):
            memory.close()

    def buffer(self, ref: Ref, where: int) -> Buffer:
        """The buffer of a value on a device, valid for the device's current generation."""
        if (ref, where) in self._old:
            return self.states[where].old(self._old[ref, where])
        if (ref, where) in self._new:
            return self.states[where].new(self._new[ref, where])
        return self.slots[where].buffer(ref)

    @cached_property
    def to_host(self) -> frozenset[Ref]:
        """The results of a run that leave the devices: outputs, and state that does not stay there."""
        staying = {entry.result for entry in self.kept}
        given = {output.value for output in self.program.outputs if isinstance(output.value, Ref)}
        return frozenset(ref for ref in self.program.results if ref in given or ref not in staying)

    def _kept_states(self) -> tuple[KeptState, ...]:
        bound = {place: entry for place, entry in enumerate(self.steps) if isinstance(entry, BoundStep)}
        kept = kept_states(self.program, self.decls, self._last, bound)
        for entry in kept:
            self.decls.setdefault((Ref(entry.name), entry.where), entry.decl)
        return kept

    def _source_calls(self, place: int, step: SourceStep) -> SourceCalls:
        calls = tuple(self.program.by_id[node_id].call for node_id in step.nodes)
        made = {Ref(call.name, item) for call in calls for item in range(len(call.outputs))}
        return SourceCalls(step, calls, frozenset(ref for ref in made if self._last.get(ref, -1) > place))

    def _declared(self) -> dict[tuple[Ref, int], TensorDecl]:
        """(value, device) → how the device holds it, as the regions that make or read it declare."""
        found: dict[tuple[Ref, int], TensorDecl] = {}
        for entry in self.bound_steps:
            compiled = entry.bound.compiled
            made = zip(entry.step.region.outputs, compiled.outputs, strict=True)
            read = zip(entry.step.region.inputs, compiled.inputs, strict=True)
            for ref, tensor in [*made, *read]:
                if tensor < 0 or self.program.is_constant(ref):
                    continue
                decl = found.setdefault((ref, entry.where), compiled.tensors[tensor])
                if decl.storage != compiled.tensors[tensor].storage:
                    raise UsageError(
                        f"value {ref.name} is stored as {decl.storage} by one region and as "
                        f"{compiled.tensors[tensor].storage} by another on {entry.resident.device.info.name}"
                    )
        return found

    def _plan_memory(self) -> dict[int, SlotBuffers]:
        lifetimes: dict[int, dict[object, Lifetime]] = {}
        for place, entry in enumerate(self.steps):
            if not isinstance(entry, BoundStep):
                continue
            alive = lifetimes.setdefault(entry.where, {})
            for ref in (*entry.step.reads, *entry.step.region.outputs):
                decl = self.decls.get((ref, entry.where))
                staying = (ref, entry.where) in self._old or (ref, entry.where) in self._new
                if decl is not None and ref not in alive and not staying:
                    alive[ref] = Lifetime(decl.nbytes, place, max(place, self._last.get(ref, place)))
        return {where: SlotBuffers(self.device_of[where], plan_slots(alive)) for where, alive in lifetimes.items()}
