"""Catching kernels that write where they must not: past the end of a buffer, or into an input.

Every buffer of a case gets a strip of known bytes behind its content; after the run the strips and the inputs are
compared. Not here: artifacts, which get exact buffers and own no pointers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tapestry.errors import DeviceError
from tapestry.runtime.device import Buffer, Device

#: Bytes behind the content; more than one workgroup of 64 invocations writes as float32.
STRIP = 512
_PATTERN = bytes(range(0x41, 0x51)) * (STRIP // 16)
#: Inputs up to this many bytes are compared as a whole.
_COMPARED = 4 << 20


@dataclass
class Exact:
    """The buffers of one run without strips: an artifact sees a whole buffer, so it has the size of its content."""

    device: Device
    buffers: list[Buffer] = field(default_factory=list[Buffer])

    def given(self, name: str, data: bytes | memoryview, nbytes: int) -> Buffer:
        """A buffer that holds an input."""
        buffer = self.empty(name, nbytes)
        self.device.write(buffer, data)
        return buffer

    def empty(self, name: str, nbytes: int) -> Buffer:
        """A buffer for a result."""
        buffer = self.device.alloc(nbytes)
        self.buffers.append(buffer)
        return buffer

    def check(self) -> None:
        """Nothing to compare."""


@dataclass
class Guards:
    """The buffers of one run on a device, with their strips. ``check`` raises DeviceError, naming the buffer."""

    device: Device
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    _strips: list[tuple[str, Buffer, int]] = field(default_factory=list[tuple[str, Buffer, int]])
    _inputs: list[tuple[str, Buffer, bytes]] = field(default_factory=list[tuple[str, Buffer, bytes]])

    def given(self, name: str, data: bytes | memoryview, nbytes: int) -> Buffer:
        """A guarded buffer that holds an input."""
        buffer = self.empty(name, nbytes)
        self.device.write(buffer, data)
        if nbytes <= _COMPARED:
            self._inputs.append((name, buffer, bytes(data)))
        return buffer

    def empty(self, name: str, nbytes: int) -> Buffer:
        """A guarded buffer for a result."""
        end = -(-nbytes // 4) * 4  # devices copy in multiples of 4 bytes
        buffer = self.device.alloc(end + STRIP)
        self.buffers.append(buffer)
        self.device.write(buffer, _PATTERN, end)
        self._strips.append((name, buffer, end))
        return buffer

    def check(self) -> None:
        """Compare the strips, then the inputs."""
        for name, buffer, end in self._strips:
            found = self.device.read(buffer, STRIP, end)
            if found != _PATTERN:
                place = next(k for k in range(STRIP) if found[k] != _PATTERN[k])
                raise DeviceError(f"the kernel wrote past the end of {name}: byte {place} behind its content changed")
        for name, buffer, data in self._inputs:
            if self.device.read(buffer, len(data)) != data:
                raise DeviceError(f"the kernel wrote into its input {name}")
