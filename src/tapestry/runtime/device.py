"""The one interface that every device has: in this process, in a worker, across a network or in a browser tab.

Not here: any driver, and anything about operators or backends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from tapestry.runtime.module import Artifact, KernelModule, Scalar


class Limits(msgspec.Struct, frozen=True):
    """What a device can take. Bytes, invocations or workgroups; 0 means the driver states no limit."""

    max_buffer_bytes: int = 0
    max_binding_bytes: int = 0
    max_bindings: int = 0
    max_grid: tuple[int, int, int] = (0, 0, 0)
    max_block: tuple[int, int, int] = (0, 0, 0)
    max_invocations: int = 0
    workgroup_memory_bytes: int = 0
    memory_bytes: int = 0
    #: Rounds that one invocation may make in all loops of a kernel together (a limit of Mesa's software adapters).
    max_loop_iterations: int = 0


class DeviceInfo(msgspec.Struct, frozen=True):
    """What a device is. ``dtypes``: the names of the types it can store and compute with.

    ``kind`` is ``host``, ``opencl``, ``webgpu``, ``cuda`` or ``mock``; ``name`` the address it was opened by;
    ``fingerprint`` changes whenever the adapter or its driver does and is part of every cache key.
    """

    kind: str
    name: str
    description: str
    fingerprint: str
    limits: Limits = Limits()
    dtypes: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()


class Buffer(msgspec.Struct, frozen=True):
    """A handle to device memory."""

    id: int
    nbytes: int


class Loaded(msgspec.Struct, frozen=True):
    """A handle to a module or artifact that the device has compiled or loaded; ``digest`` is its content."""

    id: int
    digest: str


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """One kernel launch. ``tag`` says for whom it runs and comes back in the launch log."""

    loaded: Loaded
    kernel: str
    args: tuple[Buffer | Scalar, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    tag: str = ""


class Call(msgspec.Struct, frozen=True, tag="call"):
    """One call of an artifact, which reads ``inputs`` and writes ``outputs`` completely."""

    loaded: Loaded
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    tag: str = ""


class CopyBuffer(msgspec.Struct, frozen=True, tag="copy"):
    """A copy on the device; offsets and size in bytes."""

    source: Buffer
    target: Buffer
    nbytes: int
    source_offset: int = 0
    target_offset: int = 0


Command = Launch | Call | CopyBuffer


class LogEntry(msgspec.Struct, frozen=True):
    """How often a kernel (or an artifact, then ``kernel`` is ``call``) was launched under a tag."""

    tag: str
    kernel: str
    count: int


class DeviceStats(msgspec.Struct, frozen=True):
    """What is alive on a device now: ``bytes`` is the sum of the sizes asked for."""

    buffers: int = 0
    bytes: int = 0
    modules: int = 0


@runtime_checkable
class KeepsContents(Protocol):
    """A device across a network: what its side has kept of constants need not travel again (ProtocolDevice)."""

    @property
    def content_bytes(self) -> int: ...
    def fill(self, buffer: Buffer, digest: str, make_bytes: Callable[[], bytes | memoryview]) -> None: ...


@runtime_checkable
class Device(Protocol):
    """A device. Commands run in the order they are submitted; ``read`` and ``sync`` wait for all of them.

    ``time`` runs the commands once to warm up, then ``repeats`` times, and gives seconds for each repeat; these
    runs are not in the launch log, which counts what ``submit`` was given. A command may be checked as late as
    the next ``read``, ``sync`` or ``time``: that call then raises its error. ``load`` reports its own errors.
    ``free`` and ``unload`` of a handle from before a restart do nothing.

    Errors: UnsupportedError for a limit (with the number), DeviceError for a command that failed,
    DeviceLostError or DeviceTimeoutError when the device is gone (``restart`` brings a fresh one:
    every handle is void then, and ``generation`` has grown).
    """

    @property
    def info(self) -> DeviceInfo: ...
    @property
    def generation(self) -> int: ...
    def alloc(self, nbytes: int) -> Buffer: ...
    def free(self, buffer: Buffer) -> None: ...
    def write(self, buffer: Buffer, data: bytes | bytearray | memoryview, offset: int = 0) -> None: ...
    def read(self, buffer: Buffer, nbytes: int, offset: int = 0) -> bytes: ...
    def load(self, module: KernelModule | Artifact) -> Loaded: ...
    def unload(self, loaded: Loaded) -> None: ...
    def submit(self, commands: Sequence[Command]) -> None: ...
    def time(self, commands: Sequence[Command], repeats: int) -> list[float]: ...
    def sync(self) -> None: ...
    def launch_log(self, clear: bool = False) -> list[LogEntry]: ...
    def stats(self) -> DeviceStats: ...
    def restart(self) -> None: ...
    def close(self) -> None: ...
