"""A device in pure Python: kernels are functions by name, and it can fail in every way that a real one does.

In this process it simulates losses (DeviceLostError, DeviceTimeoutError until ``restart``). Opened by a worker
(``register_mock_driver()``, then ``open_device("mock")``), its faults are real: it sleeps, aborts or segfaults.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

import numpy as np

from tapestry.errors import DeviceError, DeviceLostError, DeviceTimeoutError, UnsupportedError
from tapestry.runtime.device import Buffer, Call, CopyBuffer, DeviceInfo, Launch, Limits
from tapestry.runtime.drivers.base import Driver
from tapestry.runtime.drivers.registry import DriverEntry, register_driver
from tapestry.runtime.module import ITEM_BYTES, Artifact, KernelDecl, KernelModule
from tapestry.runtime.names import DeviceName

Triple = tuple[int, int, int]
#: Gets a writable view of each buffer and the value of each scalar, in argument order.
MockKernel = Callable[[list[memoryview | int | float], Triple, Triple], None]
#: What an artifact with the loader ``mock:NAME`` runs.
MockProgram = Callable[[list[memoryview], list[memoryview]], None]

#: Names of faults: as values of ``MockDevice.faults``, and as kernels that every mock device has.
FAULTS = ("hang", "segfault", "abort", "exit", "raise", "corrupt")


class Faults(Protocol):
    """How a mock device dies."""

    def hang(self) -> NoReturn: ...
    def crash(self, how: str) -> NoReturn: ...


class SimulatedFaults:
    """Errors as a worker's client would see them."""

    def hang(self) -> NoReturn:
        raise DeviceTimeoutError("mock: a kernel hung and was killed")

    def crash(self, how: str) -> NoReturn:
        raise DeviceLostError(f"mock: the worker died ({how})")


class ProcessFaults:
    """The real thing: only for a worker."""

    def hang(self) -> NoReturn:
        while True:
            time.sleep(3600)

    def crash(self, how: str) -> NoReturn:
        os.write(2, f"mock driver: about to {how}\n".encode())
        if how == "segfault":
            ctypes.string_at(0)
        if how == "abort":
            os.abort()
        os._exit(7)


def floats(view: memoryview | int | float) -> np.ndarray:
    """A buffer argument as a flat float32 array that shares its memory."""
    assert isinstance(view, memoryview)
    return np.frombuffer(view, np.float32)


def _fill(args: list[memoryview | int | float], grid: Triple, block: Triple) -> None:
    floats(args[0])[:] = args[1]


def _common(*args: memoryview | int | float) -> list[np.ndarray]:
    """The arrays cut to the shortest: a buffer may be larger than the tensor in it."""
    arrays = [floats(arg) for arg in args]
    shortest = min(array.size for array in arrays)
    return [array[:shortest] for array in arrays]


def _copy(args: list[memoryview | int | float], grid: Triple, block: Triple) -> None:
    source, target = _common(*args)
    target[:] = source


def _add(args: list[memoryview | int | float], grid: Triple, block: Triple) -> None:
    left, right, target = _common(*args)
    target[:] = left + right


def _scale(args: list[memoryview | int | float], grid: Triple, block: Triple) -> None:
    source, target = _common(*args[:2])
    target[:] = source * np.float32(args[2])


#: Kernels that every mock device has, with their access letters: fill(x, value), copy(a, b), add(a, b, c),
#: scale(a, b, factor), all float32 and elementwise over whole buffers.
KERNELS: dict[str, tuple[str, MockKernel]] = {
    "fill": ("w", _fill),
    "copy": ("rw", _copy),
    "add": ("rrw", _add),
    "scale": ("rw", _scale),
}


def mock_module(*names: str, source: str = "") -> KernelModule:
    """A module of built-in kernels; faults are kernels that take one buffer. ``source`` makes contents differ."""
    decls = tuple(KernelDecl(name, "x" if name in FAULTS else KERNELS[name][0]) for name in names or KERNELS)
    return KernelModule("mock", source, decls)


class MockDevice(Driver[bytearray, "dict[str, MockKernel] | MockProgram"]):
    """See the module. ``faults`` maps kernel names to one of FAULTS; ``memory_bytes`` bounds what can be allocated."""

    def __init__(
        self,
        name: str = "mock:0",
        *,
        kernels: Mapping[str, MockKernel] | None = None,
        programs: Mapping[str, MockProgram] | None = None,
        limits: Limits | None = None,
        dtypes: frozenset[str] = frozenset(ITEM_BYTES),
        memory_bytes: int = 1 << 30,
        death: Faults | None = None,
    ) -> None:
        super().__init__()
        self._info = DeviceInfo("mock", name, "mock device", "mock-1", limits or Limits(), dtypes)
        self.kernels: dict[str, MockKernel] = {name: kernel for name, (_, kernel) in KERNELS.items()}
        self.kernels.update(kernels or {})
        self.programs: dict[str, MockProgram] = dict(programs or {})
        self.faults: dict[str, str] = {name: name for name in FAULTS}
        self.memory_bytes = memory_bytes
        #: What was started, in order: kernel names, ``call`` and ``copy``.
        self.started: list[str] = []
        self.loads = 0
        self._death: Faults = death or SimulatedFaults()
        self._lost: DeviceLostError | None = None

    @property
    def info(self) -> DeviceInfo:
        return self._info

    @property
    def held_bytes(self) -> int:
        """What the buffers really hold, by another count than stats()."""
        return sum(len(memory) for memory in self._memory.values())

    def _create(self, nbytes: int) -> bytearray:
        used = self.stats().bytes
        if used + nbytes > self.memory_bytes:
            raise DeviceError(f"mock: out of memory, {nbytes} bytes asked for, {self.memory_bytes - used} left")
        return bytearray(nbytes)

    def _destroy(self, memory: bytearray) -> None:
        memory[:] = b"\xdd" * len(memory)  # so that a use after free shows

    def _upload(self, memory: bytearray, data: memoryview, offset: int) -> None:
        memory[offset : offset + data.nbytes] = data

    def _download(self, memory: bytearray, nbytes: int, offset: int) -> bytes:
        return bytes(memory[offset : offset + nbytes])

    def _build(self, module: KernelModule | Artifact) -> dict[str, MockKernel] | MockProgram:
        self.loads += 1
        if isinstance(module, Artifact):
            if not module.loader.startswith("mock:"):
                raise UnsupportedError(f"mock runs artifacts of mock:NAME, got {module.loader}")
            return self.programs[module.loader.removeprefix("mock:")]
        if module.language != "mock":
            raise UnsupportedError(f"mock compiles 'mock' sources, got {module.language!r}")
        if "syntax error" in module.source:
            raise DeviceError("mock: the program does not build: syntax error")
        missing = [kernel.name for kernel in module.kernels if kernel.name not in {*self.kernels, *self.faults}]
        if missing:
            raise DeviceError(f"mock: no kernels {missing}")
        return dict(self.kernels)

    def _launch(self, program: dict[str, MockKernel] | MockProgram, launch: Launch) -> None:
        assert isinstance(program, dict)
        self.started.append(launch.kernel)
        args: list[memoryview | int | float] = [
            memoryview(self._memory[arg.id]) if isinstance(arg, Buffer) else arg.value for arg in launch.args
        ]
        fault = self.faults.get(launch.kernel)
        if fault is not None and fault != "corrupt":
            self._fail(fault, launch.kernel)
        if launch.kernel in program:
            program[launch.kernel](args, launch.grid, launch.block)
        if fault == "corrupt":
            self._corrupt(launch)

    def _call(self, program: dict[str, MockKernel] | MockProgram, call: Call) -> None:
        assert callable(program)
        self.started.append("call")
        program(
            [memoryview(self._memory[buffer.id]) for buffer in call.inputs],
            [memoryview(self._memory[buffer.id]) for buffer in call.outputs],
        )

    def _copy(self, source: bytearray, target: bytearray, copy: CopyBuffer) -> None:
        self.started.append("copy")
        end = copy.source_offset + copy.nbytes
        target[copy.target_offset : copy.target_offset + copy.nbytes] = source[copy.source_offset : end]

    def _flush(self) -> None:
        pass

    def _finish(self) -> None:
        pass

    def _reopen(self) -> None:
        self._lost = None

    def _require_open(self) -> None:
        super()._require_open()
        if self._lost is not None:
            raise self._lost

    def _fail(self, fault: str, kernel: str) -> None:
        if fault == "raise":
            raise DeviceError(f"mock: kernel {kernel} failed")
        try:
            if fault == "hang":
                self._death.hang()
            self._death.crash(fault)
        except DeviceLostError as error:
            self._lost = error
            raise

    def _corrupt(self, launch: Launch) -> None:
        """Flip two bits of the last byte of the launch's last buffer: what it wrote."""
        last = [arg for arg in launch.args if isinstance(arg, Buffer)][-1]
        memory = self._memory[last.id]
        if memory:
            memory[-1] ^= 0x41


def open_mock(name: DeviceName) -> MockDevice:
    """The factory for workers: its faults are real."""
    return MockDevice(str(name), death=ProcessFaults())


def register_mock_driver() -> None:
    """Make ``open_device("mock")`` work in this test process, in workers. Product code never does."""
    register_driver(DriverEntry("mock", "support.mock_device:open_mock"))
