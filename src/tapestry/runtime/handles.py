"""Which buffers and modules a device has handed out, and whether commands name them rightly.

Both sides use it: a driver to guard itself, a client to refuse a wrong command before it travels. It holds no
device memory and runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tapestry.errors import UsageError
from tapestry.runtime.device import Buffer, Call, Command, CopyBuffer, DeviceStats, Launch, Limits, Loaded
from tapestry.runtime.limits import check_bindings, check_launch_shape
from tapestry.runtime.module import KernelModule

#: How many commands are remembered as right: those of a few large programs.
_MOST_REMEMBERED = 10_000


class Handles:
    """Live buffers and loaded modules. Ids only grow, also over a restart, so an old handle never means a new thing."""

    def __init__(self) -> None:
        self._next = 1
        self._first_of_generation = 1
        self._buffers: dict[int, Buffer] = {}
        #: Per loaded module: the number of buffers of each kernel, or None for an artifact.
        self._modules: dict[int, dict[str, int] | None] = {}
        self._bytes = 0
        #: Commands found right since anything was last dropped, by identity: a program submits the same ones every run.
        self._right: dict[int, Command] = {}

    def new_buffer(self, nbytes: int) -> Buffer:
        """A handle for a buffer that now exists."""
        buffer = Buffer(self._take_id(), nbytes)
        self._buffers[buffer.id] = buffer
        self._bytes += nbytes
        return buffer

    def new_module(self, digest: str, module: object) -> Loaded:
        """A handle for a module or artifact that is now loaded."""
        loaded = Loaded(self._take_id(), digest)
        self._modules[loaded.id] = _kernel_arity(module) if isinstance(module, KernelModule) else None
        return loaded

    def drop_buffer(self, buffer: Buffer) -> bool:
        """Forget a buffer; False for one from before a restart. UsageError when it is unknown or freed already."""
        if buffer.id in self._buffers:
            self._right.clear()
            self._bytes -= self._buffers.pop(buffer.id).nbytes
            return True
        if self._is_stale(buffer.id):
            return False
        raise UsageError(f"buffer {buffer.id} is not on this device: freed twice, or from another device")

    def drop_module(self, loaded: Loaded) -> bool:
        """Forget a module; False for one from before a restart. UsageError when it is unknown or unloaded already."""
        if loaded.id in self._modules:
            self._right.clear()
            del self._modules[loaded.id]
            return True
        if self._is_stale(loaded.id):
            return False
        raise UsageError(f"module {loaded.id} is not on this device: unloaded twice, or from another device")

    def restart(self) -> None:
        """Every handle so far is void."""
        self._right.clear()
        self._buffers.clear()
        self._modules.clear()
        self._bytes = 0
        self._first_of_generation = self._next

    def stats(self) -> DeviceStats:
        return DeviceStats(len(self._buffers), self._bytes, len(self._modules))

    def check_span(self, buffer: Buffer, nbytes: int, offset: int) -> None:
        """UsageError unless ``nbytes`` bytes from ``offset`` lie inside a live buffer."""
        self._require_buffer(buffer)
        if nbytes < 0 or offset < 0 or offset + nbytes > buffer.nbytes:
            raise UsageError(
                f"bytes {offset} to {offset + nbytes} lie outside buffer {buffer.id}, which has {buffer.nbytes} bytes"
            )

    def check_commands(self, commands: Sequence[Command], limits: Limits) -> None:
        """UsageError for an unknown handle, kernel or wrong argument count; UnsupportedError for a limit."""
        right = self._right
        for command in commands:
            if right.get(id(command)) is command:
                continue
            if isinstance(command, Launch):
                self._check_launch(command, limits)
            elif isinstance(command, Call):
                self._check_call(command)
            else:
                self._check_copy(command)
            if len(right) >= _MOST_REMEMBERED:
                right.clear()
            right[id(command)] = command

    def _check_launch(self, launch: Launch, limits: Limits) -> None:
        kernels = self._require_module(launch.loaded)
        if kernels is None:
            raise UsageError(f"module {launch.loaded.id} is an artifact: use Call, not Launch of {launch.kernel!r}")
        expected = kernels.get(launch.kernel)
        if expected is None:
            raise UsageError(f"module {launch.loaded.id} has no kernel {launch.kernel!r}, it has {sorted(kernels)}")
        buffers = [argument for argument in launch.args if isinstance(argument, Buffer)]
        if len(buffers) != expected:
            raise UsageError(f"kernel {launch.kernel} takes {expected} buffers, got {len(buffers)}")
        for buffer in buffers:
            self._require_buffer(buffer)
        check_launch_shape(launch.kernel, launch.grid, launch.block, limits)
        check_bindings(launch.kernel, (buffer.nbytes for buffer in buffers), limits)

    def _check_call(self, call: Call) -> None:
        if self._require_module(call.loaded) is not None:
            raise UsageError(f"module {call.loaded.id} holds kernels: use Launch, not Call")
        for buffer in (*call.inputs, *call.outputs):
            self._require_buffer(buffer)

    def _check_copy(self, copy: CopyBuffer) -> None:
        self.check_span(copy.source, copy.nbytes, copy.source_offset)
        self.check_span(copy.target, copy.nbytes, copy.target_offset)
        distance = abs(copy.source_offset - copy.target_offset)
        if copy.source.id == copy.target.id and distance < copy.nbytes:
            raise UsageError(f"a copy of {copy.nbytes} bytes overlaps itself in buffer {copy.source.id}")

    def _require_buffer(self, buffer: Buffer) -> None:
        known = self._buffers.get(buffer.id)
        if known == buffer:
            return
        if known is not None:
            raise UsageError(f"buffer {buffer.id} has {known.nbytes} bytes, the handle says {buffer.nbytes}")
        why = "is from before a restart" if self._is_stale(buffer.id) else "was freed or never allocated here"
        raise UsageError(f"buffer {buffer.id} {why}")

    def _require_module(self, loaded: Loaded) -> dict[str, int] | None:
        if loaded.id in self._modules:
            return self._modules[loaded.id]
        why = "is from before a restart" if self._is_stale(loaded.id) else "was unloaded or never loaded here"
        raise UsageError(f"module {loaded.id} {why}")

    def _is_stale(self, id_: int) -> bool:
        return 0 < id_ < self._first_of_generation

    def _take_id(self) -> int:
        id_ = self._next
        self._next += 1
        return id_


def _kernel_arity(module: KernelModule) -> dict[str, int]:
    return {kernel.name: len(kernel.access) for kernel in module.kernels}
