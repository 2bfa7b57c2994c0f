"""What stays on a device: modules and constant buffers by content, counted, and made again after a restart.

Kernels and weights travel once, however often placements change, and go when their last user does. Not here:
workspace and activations, which belong to whoever runs a region.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tapestry.errors import TapestryError, UsageError
from tapestry.runtime.device import Buffer, Device, KeepsContents, Loaded
from tapestry.runtime.module import Artifact, KernelModule

HandleT = TypeVar("HandleT", Buffer, Loaded)


@dataclass
class _Entry(Generic[HandleT]):
    """One resident thing: how to make it, how many use it, and its handle of one generation of the device."""

    make: Callable[[], HandleT]
    users: int
    generation: int = -1
    handle: HandleT | None = None


@dataclass(frozen=True)
class _Content:
    """The bytes of a constant, as both sides of a connection name them."""

    sha256: str
    nbytes: int


class Resident:
    """Counted modules and constants on one device. Handles are void after a restart: ask again with ``loaded`` or
    ``buffer``, which make the thing anew where needed and do not count.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._modules: dict[str, _Entry[Loaded]] = {}
        self._constants: dict[str, _Entry[Buffer]] = {}
        #: The bytes that constants turned out to be, by their digest.
        self._contents: dict[str, _Content] = {}

    def module(self, module: KernelModule | Artifact) -> Loaded:
        """Load a module, or count one more user of it. Errors are those of Device.load; then nothing is counted."""
        return _acquire(self._modules, module.digest, lambda: self.device.load(module), self.device.generation)

    def constant(self, digest: str, make_bytes: Callable[[], bytes | memoryview]) -> Buffer:
        """Fill a buffer with a constant, or count one more user of it.

        ``digest`` names the bytes (content and storage type); ``make_bytes`` is called for the first user and again
        after a restart.
        """
        return _acquire(self._constants, digest, lambda: self._fill(digest, make_bytes), self.device.generation)

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

    def _fill(self, digest: str, make_bytes: Callable[[], bytes | memoryview]) -> Buffer:
        device = self.device
        if isinstance(device, KeepsContents) and device.content_bytes:
            return self._fill_from_contents(device, digest, make_bytes)
        data = make_bytes()
        buffer = device.alloc(memoryview(data).nbytes)
        try:
            device.write(buffer, data)
        except TapestryError:
            device.free(buffer)
            raise
        return buffer

    def _fill_from_contents(
        self, keeper: KeepsContents, digest: str, make_bytes: Callable[[], bytes | memoryview]
    ) -> Buffer:
        """Fill a buffer where the other side may have the bytes: they are made only if it has not."""
        content = self._contents.get(digest)
        if content is None:
            data = make_bytes()
            content = self._contents[digest] = _Content(hashlib.sha256(data).hexdigest(), memoryview(data).nbytes)
            make_bytes = lambda: data  # noqa: E731
        buffer = self.device.alloc(content.nbytes)
        try:
            keeper.fill(buffer, content.sha256, make_bytes)
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
