"""What stays on a device: modules and constant buffers by content, counted, and made again after a restart.

Kernels and weights travel once, however often placements change, and go when their last user does. Not here:
workspace and activations, which belong to whoever runs a region.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tapestry.errors import TapestryError, UsageError
from tapestry.runtime.device import Buffer, Device, Loaded
from tapestry.runtime.module import Artifact, KernelModule

HandleT = TypeVar("HandleT", Buffer, Loaded)


@dataclass
class _Entry(Generic[HandleT]):
    """One resident thing: how to make it, how many use it, and its handle of one generation of the device."""

    make: Callable[[], HandleT]
    users: int
    generation: int = -1
    handle: HandleT | None = None


class Resident:
    """Counted modules and constants on one device. Handles are void after a restart: ask again with ``loaded`` or
    ``buffer``, which make the thing anew where needed and do not count.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._modules: dict[str, _Entry[Loaded]] = {}
        self._constants: dict[str, _Entry[Buffer]] = {}

    def module(self, module: KernelModule | Artifact) -> Loaded:
        """Load a module, or count one more user of it. Errors are those of Device.load; then nothing is counted."""
        return _acquire(self._modules, module.digest, lambda: self.device.load(module), self.device.generation)

    def constant(self, digest: str, make_bytes: Callable[[], bytes | memoryview]) -> Buffer:
        """Fill a buffer with a constant, or count one more user of it.

        ``digest`` names the bytes (content and storage type); ``make_bytes`` is called for the first user and again
        after a restart.
        """
        return _acquire(self._constants, digest, lambda: self._fill(make_bytes), self.device.generation)

    def loaded(self, digest: str) -> Loaded:
        """The handle, valid now, of a module that has a user."""
        return _current(self._modules, digest, self.device.generation)

    def buffer(self, digest: str) -> Buffer:
        """The handle, valid now, of a constant that has a user."""
        return _current(self._constants, digest, self.device.generation)

    def release_module(self, digest: str) -> None:
        """One user less; the last one unloads it."""
        handle = _release(self._modules, digest, self.device.generation)
        if handle is not None:
            self.device.unload(handle)

    def release_constant(self, digest: str) -> None:
        """One user less; the last one frees it."""
        handle = _release(self._constants, digest, self.device.generation)
        if handle is not None:
            self.device.free(handle)

    @property
    def digests(self) -> tuple[frozenset[str], frozenset[str]]:
        """The digests of the modules and of the constants that have users."""
        return frozenset(self._modules), frozenset(self._constants)

    def _fill(self, make_bytes: Callable[[], bytes | memoryview]) -> Buffer:
        data = make_bytes()
        buffer = self.device.alloc(memoryview(data).nbytes)
        try:
            self.device.write(buffer, data)
        except TapestryError:
            self.device.free(buffer)
            raise
        return buffer


def _acquire(entries: dict[str, _Entry[HandleT]], digest: str, make: Callable[[], HandleT], generation: int) -> HandleT:
    entry = entries.get(digest)
    if entry is None:
        entry = _Entry(make, 0)
    handle = _fresh(entry, generation)
    entry.users += 1
    entries[digest] = entry
    return handle


def _current(entries: dict[str, _Entry[HandleT]], digest: str, generation: int) -> HandleT:
    entry = entries.get(digest)
    if entry is None:
        raise UsageError(f"nothing with digest {digest[:12]} is resident: it was released, or never acquired")
    return _fresh(entry, generation)


def _fresh(entry: _Entry[HandleT], generation: int) -> HandleT:
    if entry.handle is None or entry.generation != generation:
        entry.handle = entry.make()
        entry.generation = generation
    return entry.handle


def _release(entries: dict[str, _Entry[HandleT]], digest: str, generation: int) -> HandleT | None:
    """The handle to give back, if this was the last user and the device still has it."""
    entry = entries.get(digest)
    if entry is None:
        raise UsageError(f"nothing with digest {digest[:12]} is resident: it was released too often")
    entry.users -= 1
    if entry.users:
        return None
    del entries[digest]
    return entry.handle if entry.generation == generation else None
