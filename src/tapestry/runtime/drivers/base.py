"""What every in-process driver shares: handles, checks, the launch log. A driver adds memory, loading and running.

Not here: workers, protocols, or any vendor's API.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Generic, TypeVar

from tapestry.errors import DeviceLostError, UsageError
from tapestry.runtime.device import (
    Buffer,
    Call,
    Command,
    CopyBuffer,
    DeviceInfo,
    DeviceStats,
    Launch,
    Loaded,
    LogEntry,
)
from tapestry.runtime.handles import Handles
from tapestry.runtime.limits import check_buffer_bytes
from tapestry.runtime.module import Artifact, KernelModule

MemoryT = TypeVar("MemoryT")
ProgramT = TypeVar("ProgramT")

#: The kernel name under which the launch log counts calls of artifacts.
CALL = "call"


class Driver(ABC, Generic[MemoryT, ProgramT]):
    """A Device in this process. Subclasses implement the hooks; what reaches a hook has been checked."""

    def __init__(self) -> None:
        self._handles = Handles()
        self._memory: dict[int, MemoryT] = {}
        self._programs: dict[int, ProgramT] = {}
        self._log: Counter[tuple[str, str]] = Counter()
        self._generation = 0
        self._closed = False

    # The hooks.

    @property
    @abstractmethod
    def info(self) -> DeviceInfo:
        """What the device is; the same object for its whole life."""

    @abstractmethod
    def _create(self, nbytes: int) -> MemoryT:
        """Memory for ``nbytes`` bytes (0 included). DeviceError when there is none left."""

    @abstractmethod
    def _destroy(self, memory: MemoryT) -> None:
        """Give memory back once submitted work no longer needs it."""

    @abstractmethod
    def _upload(self, memory: MemoryT, data: memoryview, offset: int) -> None:
        """Copy bytes in, after all submitted work; ``data`` may change once this returns. Never empty."""

    @abstractmethod
    def _download(self, memory: MemoryT, nbytes: int, offset: int) -> bytes:
        """Copy bytes out, after all submitted work. Never empty."""

    @abstractmethod
    def _build(self, module: KernelModule | Artifact) -> ProgramT:
        """Compile or load. DeviceError with the compiler's log, UnsupportedError for another language."""

    @abstractmethod
    def _launch(self, program: ProgramT, launch: Launch) -> None:
        """Start a kernel; it need not have run when this returns. The grid has no zero."""

    @abstractmethod
    def _call(self, program: ProgramT, call: Call) -> None:
        """Run an artifact."""

    @abstractmethod
    def _copy(self, source: MemoryT, target: MemoryT, copy: CopyBuffer) -> None:
        """Start a copy between buffers. Never empty."""

    @abstractmethod
    def _flush(self) -> None:
        """Hand started work to the device, without waiting."""

    @abstractmethod
    def _finish(self) -> None:
        """Wait for all started work."""

    @abstractmethod
    def _reopen(self) -> None:
        """Drop everything and open the device afresh. The tables of memory and programs are empty then."""

    # The Device interface.

    @property
    def generation(self) -> int:
        return self._generation

    def alloc(self, nbytes: int) -> Buffer:
        self._require_open()
        check_buffer_bytes(nbytes, self.info.limits)
        memory = self._create(nbytes)
        buffer = self._handles.new_buffer(nbytes)
        self._memory[buffer.id] = memory
        return buffer

    def free(self, buffer: Buffer) -> None:
        if self._closed:
            return
        if self._handles.drop_buffer(buffer):
            self._destroy(self._memory.pop(buffer.id))

    def write(self, buffer: Buffer, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        self._require_open()
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        self._handles.check_span(buffer, view.nbytes, offset)
        if view.nbytes:
            self._upload(self._memory[buffer.id], view, offset)

    def read(self, buffer: Buffer, nbytes: int, offset: int = 0) -> bytes:
        self._require_open()
        self._handles.check_span(buffer, nbytes, offset)
        if not nbytes:
            self._finish()
            return b""
        return self._download(self._memory[buffer.id], nbytes, offset)

    def load(self, module: KernelModule | Artifact) -> Loaded:
        self._require_open()
        program = self._build(module)
        loaded = self._handles.new_module(module.digest, module)
        self._programs[loaded.id] = program
        return loaded

    def unload(self, loaded: Loaded) -> None:
        if self._closed:
            return
        if self._handles.drop_module(loaded):
            del self._programs[loaded.id]

    def submit(self, commands: Sequence[Command]) -> None:
        self._require_open()
        self._handles.check_commands(commands, self.info.limits)
        for command in commands:
            self._start(command)
            if isinstance(command, Launch):
                self._log[command.tag, command.kernel] += 1
            elif isinstance(command, Call):
                self._log[command.tag, CALL] += 1
        self._flush()

    def time(self, commands: Sequence[Command], repeats: int) -> list[float]:
        self._require_open()
        if repeats < 1:
            raise UsageError(f"repeats must be 1 or more, got {repeats}")
        self._handles.check_commands(commands, self.info.limits)
        for command in commands:
            self._start(command)
        self._finish()
        return [self._time_once(commands) for _ in range(repeats)]

    def sync(self) -> None:
        self._require_open()
        self._finish()

    def launch_log(self, clear: bool = False) -> list[LogEntry]:
        entries = [LogEntry(tag, kernel, count) for (tag, kernel), count in self._log.items()]
        if clear:
            self._log.clear()
        return entries

    def stats(self) -> DeviceStats:
        return self._handles.stats()

    def restart(self) -> None:
        self._clear()
        self._log.clear()
        self._reopen()
        self._closed = False
        self._generation += 1

    def close(self) -> None:
        self._clear()
        self._closed = True

    # For subclasses.

    def _start(self, command: Command) -> None:
        if isinstance(command, Launch):
            if 0 not in command.grid:
                self._launch(self._programs[command.loaded.id], command)
        elif isinstance(command, Call):
            self._call(self._programs[command.loaded.id], command)
        elif command.nbytes:
            self._copy(self._memory[command.source.id], self._memory[command.target.id], command)

    def _time_once(self, commands: Sequence[Command]) -> float:
        """Seconds for one run, by the host's clock. Drivers with timers on the device override it."""
        start = time.perf_counter()
        for command in commands:
            self._start(command)
        self._finish()
        return time.perf_counter() - start

    def _clear(self) -> None:
        self._memory.clear()
        self._programs.clear()
        self._handles.restart()

    def _require_open(self) -> None:
        if self._closed:
            raise DeviceLostError(f"device {self.info.name} is closed; call restart() or open it again")
