"""Timing regions on a device: bound with their real constants, fed with the values that the model gives them.

Not here: which regions (profile), and what the times mean (rows).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tapestry.backends.base import Backend, Options
from tapestry.backends.compiler import Compiler
from tapestry.backends.region_constants import RegionConstants
from tapestry.backends.transfer import to_storage
from tapestry.placement.constants import ProgramConstants
from tapestry.profiling.result import Timing
from tapestry.profiling.timing import time_commands
from tapestry.program.graph import Ref
from tapestry.program.region import Region
from tapestry.runtime.bind import BoundRegion
from tapestry.runtime.device import Buffer
from tapestry.runtime.module import Artifact, Compiled
from tapestry.runtime.resident import Resident


@dataclass(frozen=True)
class TimedRegion:
    """What one run of a region takes. ``in_place`` are the states that it changes where they lie."""

    timing: Timing
    launches: int
    in_place: frozenset[Ref]


class RegionTimer:
    """Times regions of one program on one device; ``values`` are what its regions read (SourceRun.values)."""

    def __init__(
        self,
        resident: Resident,
        compiler: Compiler,
        constants: ProgramConstants,
        values: Mapping[Ref, object],
        budget: float = 1.0,
    ) -> None:
        self.resident = resident
        self.compiler = compiler
        self.constants = constants
        self.values = values
        self.budget = budget

    def time(self, region: Region, backend: Backend, options: Options) -> TimedRegion:
        """Compile, bind, fill and time a region.

        Raises UnsupportedError, CompileError, InputError or DeviceError with the reason why it does not run; after
        DeviceLostError the device must be restarted.
        """
        info = self.resident.device.info
        compiled = self.compiler.compile(backend, region.graph, info, options)
        constants = RegionConstants(self.constants, region.inputs, compiled)
        generation = self.resident.device.generation
        bound = BoundRegion(compiled, self.resident, constants.bytes_of)
        try:
            return self.time_bound(region, bound)
        finally:
            if self.resident.device.generation == generation:
                bound.close()

    def time_bound(self, region: Region, bound: BoundRegion) -> TimedRegion:
        """Fill and time a region that is on the device already. Raises DeviceError or InputError."""
        device, compiled = self.resident.device, bound.compiled
        generation = device.generation
        buffers: list[Buffer] = []
        try:
            inputs = [self._filled(ref, place, compiled, buffers) for place, ref in enumerate(region.inputs)]
            changed = {
                output: given
                for output, given in compiled.updates
                if region.inputs[given].name in region.program.state_names
            }
            outputs: list[Buffer] = []
            for output, tensor in enumerate(compiled.outputs):
                buffer = inputs[changed[output]] if output in changed else None
                if buffer is None:
                    buffer = device.alloc(compiled.tensors[tensor].nbytes)
                    buffers.append(buffer)
                outputs.append(buffer)
            commands = bound.commands(inputs, outputs, "profile")
            launches = 1 if isinstance(compiled.module, Artifact) else len(compiled.launches)
            in_place = frozenset(region.inputs[given] for given in changed.values())
            return TimedRegion(time_commands(device, commands, self.budget), launches, in_place)
        finally:
            if device.generation == generation:
                for buffer in buffers:
                    device.free(buffer)

    def _filled(self, ref: Ref, place: int, compiled: Compiled, buffers: list[Buffer]) -> Buffer | None:
        tensor = compiled.inputs[place]
        if tensor < 0 or self.constants.is_constant(ref):
            return None
        value = self.values[ref]
        assert isinstance(value, torch.Tensor), "a region reads tensors only"
        decl = compiled.tensors[tensor]
        buffer = self.resident.device.alloc(decl.nbytes)
        buffers.append(buffer)
        self.resident.device.write(buffer, to_storage(value, decl, ref.name))
        return buffer
