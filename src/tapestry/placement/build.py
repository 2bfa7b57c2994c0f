"""Building a placement: compile its regions, bind them to devices, and hand back an Executable.

Not here: choosing a placement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, partial

from tapestry.backends.base import Backend
from tapestry.backends.compiler import Compiler
from tapestry.backends.region_constants import RegionConstants
from tapestry.backends.registry import check_kind, ready_backend
from tapestry.backends.rules import GraphIndex
from tapestry.errors import UnsupportedError, UsageError
from tapestry.placement.constants import ProgramConstants
from tapestry.placement.executable import Executable
from tapestry.placement.index_checks import index_checks
from tapestry.placement.interleaved import Interleaved, others
from tapestry.placement.layout import BoundStep, Layout
from tapestry.placement.placement import Placement, read_options
from tapestry.placement.plan import (
    DeviceStep,
    HostStep,
    SourceStep,
    Step,
    placed_region,
    plan_steps,
    rest_of,
)
from tapestry.program.program import Program
from tapestry.program.region import Region
from tapestry.runtime.bind import BoundRegion
from tapestry.runtime.module import Compiled
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.injection.platform import Platform


class Builder:
    """Builds placements of one program, again and again: constants, kernels and weights are kept between them.

    ``residents`` are the devices by name; a placement that names another one is refused. ``backends`` overrides
    the registry by name (mock backends). ``faulty`` makes the devices a platform with faults.
    """

    def __init__(
        self,
        program: Program,
        residents: Mapping[str, Resident],
        compiler: Compiler,
        backends: Mapping[str, Backend] | None = None,
        faulty: Platform | None = None,
    ) -> None:
        self.program = program
        self.faulty = faulty
        self.residents = dict(residents)
        self.compiler = compiler
        self.constants = ProgramConstants(program)
        self._backends = dict(backends or {})
        self._regions: dict[tuple[str, ...], Region] = {}

    def backend(self, name: str) -> Backend:
        """The backend called ``name``, ready to be used."""
        if name not in self._backends:
            self._backends[name] = ready_backend(name)
        return self._backends[name]

    def region(self, nodes: Sequence[str]) -> Region:
        """The region that these nodes make in a placement, as it is compiled."""
        key = tuple(nodes)
        if key not in self._regions:
            self._regions[key] = placed_region(self.program, key)
        return self._regions[key]

    @cached_property
    def _index(self) -> GraphIndex:
        return GraphIndex.of(self.program)

    def build(self, placement: Placement, given: frozenset[str] = frozenset()) -> Executable:
        """Compile, load and bind. Raises UsageError, UnsupportedError, CompileError or DeviceError with the reason.

        The nodes ``given`` are computed on the source for the regions that they lie in, which need not stay convex
        without them.
        """
        planned = plan_steps(self.program, placement, self.region)
        for step in planned:
            if isinstance(step, DeviceStep):
                self._check_taken(step)
        steps = tuple(
            part for step in planned for entry in self._without(step, given) for part in self._with_faults(entry)
        )
        jobs = {step.tag: self._start(step) for step in steps if isinstance(step, DeviceStep)}
        bound: list[SourceStep | HostStep | BoundStep] = []
        try:
            for step in steps:
                bound.append(self._bind(step, jobs[step.tag].result()) if isinstance(step, DeviceStep) else step)
            layout = Layout(self.program, bound)
        except BaseException:
            for entry in bound:
                if isinstance(entry, BoundStep):
                    entry.bound.close()
            raise
        return Executable(self.program, placement, layout, self.constants)

    def _without(self, step: Step, given: frozenset[str]) -> Iterator[Step]:
        """The step, or what is left of its region without the nodes that are given, behind these."""
        between = given & set(step.region.nodes) if isinstance(step, DeviceStep) else frozenset[str]()
        if not between or not isinstance(step, DeviceStep):
            yield step
            return
        rest = others(step.region, between)
        part = self.faulty.part(rest.nodes) if self.faulty else None
        region = rest_of(rest, part.named) if part else rest
        device = (region, self._start(self._cut(step, region)).result()) if region else None
        resident = self._resident(step.placed.device)
        yield HostStep(
            step.tag, step.region.nodes, step.reads, Interleaved(step.region, between, part, device, resident).run
        )

    def _cut(self, step: DeviceStep, region: Region) -> DeviceStep:
        calls = [self.program.by_id[node_id].call for node_id in region.nodes]
        return replace(step, region=region, checks=tuple(c for call in calls for c in index_checks(self.program, call)))

    def _with_faults(self, step: Step) -> Iterator[Step]:
        """The step, or what a platform with faults makes of it: what the faults give first, then the other nodes."""
        part = self.faulty.part(step.region.nodes) if self.faulty and isinstance(step, DeviceStep) else None
        if part is None or not isinstance(step, DeviceStep):
            yield step
            return
        # A kernel for the whole region has none for a part of it.
        whole = not self.backend(step.placed.backend).fuses
        region = None if whole else rest_of(step.region, part.named)
        left = set(region.nodes) if region else set[str]()
        named = tuple(node_id for node_id in step.region.nodes if node_id not in left)
        reads = tuple(ref for ref in part.reads if not self.program.is_constant(ref))
        yield HostStep(step.tag, named, reads, partial(part.run, everything=whole))
        if region is not None:
            yield self._cut(step, region)

    def _check_taken(self, step: DeviceStep) -> None:
        placed = step.placed
        backend = self.backend(placed.backend)
        info = self._resident(placed.device).device.info
        check_kind(backend, info)
        # A backend that does not fuse takes whole regions: its compile says what it does not take.
        for node_id in step.region.nodes if backend.fuses else ():
            reason = backend.refuses_in(self._index, node_id, info)
            if reason is not None:
                raise UnsupportedError(f"{backend.name} does not take {node_id}: {reason}")

    def _start(self, step: DeviceStep) -> Future[Compiled]:
        backend, info = self.backend(step.placed.backend), self._resident(step.placed.device).device.info
        return self.compiler.start(backend, step.region.graph, info, read_options(backend, step.placed.options))

    def _bind(self, step: DeviceStep, compiled: Compiled) -> BoundStep:
        resident = self._resident(step.placed.device)
        constants = RegionConstants(self.constants, step.region.inputs, compiled)
        return BoundStep(step, BoundRegion(compiled, resident, constants.bytes_of), resident)

    def _resident(self, name: str) -> Resident:
        if name not in self.residents:
            raise UsageError(f"the placement names device {name}; opened are: {', '.join(self.residents) or 'none'}")
        return self.residents[name]


class OwningExecutable(Executable):
    """An Executable that also closes the devices and the compiler that were opened for it."""

    def __init__(self, executable: Executable, closing: Callable[[], None]) -> None:
        super().__init__(executable.program, executable.placement, executable.layout, executable.constants)
        self._closing = closing

    def close(self) -> None:
        super().close()
        self._closing()


def build(program: Program, placement: Placement) -> Executable:
    """Build a placement on devices opened for it; ``close`` of the result closes them.

    Raises UsageError when the placement is of another program, EnvironmentProblem when a device or backend is
    missing, UnsupportedError or CompileError when a region does not compile.
    """
    placement.check(program)
    residents = {name: Resident(open_device(name)) for name in sorted({entry.device for entry in placement.regions})}
    compiler = Compiler()

    def close() -> None:
        compiler.close()
        for resident in residents.values():
            resident.device.close()

    try:
        return OwningExecutable(Builder(program, residents, compiler).build(placement), close)
    except BaseException:
        close()
        raise
