"""A mock device that runs what the eager backend compiles, in this process: placements without a worker's start-up."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from support import faulty_backend
from support.faulty_backend import FaultError
from support.mock_device import MockDevice, MockKernel, MockProgram
from tapestry.backends.cache import CompileCache
from tapestry.backends.compiler import Compiler
from tapestry.backends.eager import Eager
from tapestry.errors import DeviceError
from tapestry.placement.build import Builder
from tapestry.placement.executable import Executable
from tapestry.placement.grouping import group_by_label
from tapestry.placement.placement import place_on
from tapestry.program.program import Program
from tapestry.runtime.device import Call
from tapestry.runtime.drivers.host import resolve_loader
from tapestry.runtime.module import Artifact, KernelModule
from tapestry.runtime.resident import Resident

#: How a program is cut: every node's label (nodes without one stay on the source).
Labels = Callable[[Program], Mapping[str, Hashable]]


class EagerMockDevice(MockDevice):
    """A mock device whose artifacts are run by the loaders of backends, as device ``cpu`` does."""

    def __init__(self) -> None:
        super().__init__()
        #: Whether an artifact is running.
        self.inside = False
        faulty_backend.simulate = True
        faulty_backend.allow_loader()

    def _build(self, module: KernelModule | Artifact) -> dict[str, MockKernel] | MockProgram:
        if not isinstance(module, Artifact):
            return super()._build(module)
        self.loads += 1
        return resolve_loader(module.loader)(module.payload)

    def _call(self, program: dict[str, MockKernel] | MockProgram, call: Call) -> None:
        self.inside = True
        try:
            super()._call(program, call)
        except FaultError as fault:
            self._fail(str(fault.args[0]), "call")
        except (LookupError, RuntimeError, ValueError) as error:
            raise DeviceError(f"an artifact failed: {type(error).__name__}: {error}") from error
        finally:
            self.inside = False


def whole(program: Program) -> Mapping[str, Hashable]:
    """Everything that can be moved, in as few regions as possible."""
    return dict.fromkeys(program.placeable, 0)


def alone(program: Program) -> Mapping[str, Hashable]:
    """Every node that can be moved, each in a region of its own."""
    return {node_id: node_id for node_id in program.placeable}


def nothing(program: Program) -> Mapping[str, Hashable]:
    """Everything on the source."""
    return {}


class Bench:
    """A program and a mock device to build placements on."""

    def __init__(self, program: Program, device: MockDevice | None = None) -> None:
        self.program = program
        self.device = device or EagerMockDevice()
        self.backend = Eager()
        self.resident = Resident(self.device)
        self.compiler = Compiler(CompileCache())
        self.builder = Builder(program, {"mock:0": self.resident}, self.compiler, {"eager": self.backend})

    def build(self, labels: Labels = whole) -> Executable:
        """An executable with the regions that the labels make."""
        regions = group_by_label(self.program, labels(self.program))
        return self.builder.build(place_on(self.program, regions, self.backend, self.backend.options()[0], "mock:0"))

    def close(self) -> None:
        self.compiler.close()
        self.device.close()
