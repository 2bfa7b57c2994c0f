"""The host driver, device ``cpu``: aligned host memory, and artifacts run by the loaders that backends register.

It compiles no kernels and imports no framework: a loader's module is imported when its first artifact is loaded.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from tapestry.errors import DeviceError, TapestryError, UnsupportedError, UsageError
from tapestry.runtime.device import Call, CopyBuffer, DeviceInfo, Launch, Limits
from tapestry.runtime.drivers.base import Driver
from tapestry.runtime.drivers.listing import DeviceListing
from tapestry.runtime.module import ITEM_BYTES, Artifact, KernelModule
from tapestry.runtime.names import DeviceName

#: What a loader returns: reads the inputs, writes every byte of the outputs. All are flat bytes (format ``B``).
HostProgram = Callable[[list[memoryview], list[memoryview]], None]

#: Cache line and the widest vector register, in bytes.
ALIGNMENT = 64

_loader_prefixes: list[str] = ["tapestry.backends."]


def register_loader_prefix(prefix: str) -> None:
    """Allow artifacts whose loader module lies under ``prefix``, which ends in a dot (``mybackend.``).

    Workers started afterwards allow it too.
    """
    if not prefix.endswith(".") or prefix == ".":
        raise UsageError(f"a loader prefix is a package path that ends in a dot, such as 'mybackend.', got {prefix!r}")
    if prefix not in _loader_prefixes:
        _loader_prefixes.append(prefix)


def loader_prefixes() -> tuple[str, ...]:
    """The allowed prefixes of loader modules."""
    return tuple(_loader_prefixes)


def resolve_loader(loader: str) -> Callable[[bytes], HostProgram]:
    """The function behind ``package.module:function``. UsageError when it is not allowed or does not exist."""
    module_name, colon, function_name = loader.partition(":")
    if not colon or not function_name.isidentifier():
        raise UsageError(f"a loader is written 'package.module:function', got {loader!r}")
    if not any((module_name + ".").startswith(prefix) for prefix in _loader_prefixes):
        raise UsageError(
            f"loader {loader!r} is not allowed: its module must lie under one of {', '.join(_loader_prefixes)} "
            "(a backend allows its own with register_loader_prefix)"
        )
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"loader {loader!r} cannot be imported: {error}") from error
    return cast("Callable[[bytes], HostProgram]", function)


class HostDriver(Driver[npt.NDArray[np.uint8], HostProgram]):
    """Runs artifacts on this machine's processor, one after the other."""

    def __init__(self, name: DeviceName) -> None:
        super().__init__()
        self._info = _describe(str(name))

    @property
    def info(self) -> DeviceInfo:
        return self._info

    def _create(self, nbytes: int) -> npt.NDArray[np.uint8]:
        try:
            block = np.empty(nbytes + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise DeviceError(f"out of memory: no {nbytes:,} bytes left on the host") from error
        start = -block.ctypes.data % ALIGNMENT
        return block[start : start + nbytes]

    def _destroy(self, memory: npt.NDArray[np.uint8]) -> None:
        pass  # freed with its last reference

    def _upload(self, memory: npt.NDArray[np.uint8], data: memoryview, offset: int) -> None:
        memory[offset : offset + data.nbytes] = np.frombuffer(data, np.uint8)

    def _download(self, memory: npt.NDArray[np.uint8], nbytes: int, offset: int) -> bytes:
        return memory[offset : offset + nbytes].tobytes()

    def _build(self, module: KernelModule | Artifact) -> HostProgram:
        if isinstance(module, KernelModule):
            raise UnsupportedError(f"device cpu runs artifacts, not {module.language} kernels")
        loader = resolve_loader(module.loader)
        try:
            return loader(module.payload)
        except TapestryError:
            raise
        except Exception as error:
            raise DeviceError(f"loader {module.loader} failed: {type(error).__name__}: {error}") from error

    def _launch(self, program: HostProgram, launch: Launch) -> None:
        raise UnsupportedError("device cpu runs artifacts, not kernels")  # unreachable: it loads no kernels

    def _call(self, program: HostProgram, call: Call) -> None:
        inputs = [self._view(buffer.id) for buffer in call.inputs]
        outputs = [self._view(buffer.id) for buffer in call.outputs]
        try:
            program(inputs, outputs)
        except TapestryError:
            raise
        except Exception as error:
            raise DeviceError(f"an artifact failed: {type(error).__name__}: {error}") from error

    def _copy(self, source: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8], copy: CopyBuffer) -> None:
        end = copy.source_offset + copy.nbytes
        target[copy.target_offset : copy.target_offset + copy.nbytes] = source[copy.source_offset : end]

    def _flush(self) -> None:
        pass  # every command has run when it returns

    def _finish(self) -> None:
        pass

    def _reopen(self) -> None:
        pass

    def _view(self, buffer_id: int) -> memoryview:
        return self._memory[buffer_id].data


def open_host(name: DeviceName) -> HostDriver:
    """Opens device ``cpu``."""
    return HostDriver(name)


def list_host() -> list[DeviceListing]:
    """The one host device."""
    return [DeviceListing("cpu", "host", _processor(), True, "")]


def _describe(name: str) -> DeviceInfo:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    identity = "\n".join(("host", platform.machine(), platform.system(), _processor()))
    return DeviceInfo(
        kind="host",
        name=name,
        description=_processor(),
        fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
        limits=Limits(max_buffer_bytes=memory, memory_bytes=memory),
        dtypes=frozenset(ITEM_BYTES),
    )


def _processor() -> str:
    """The processor's model name, or the machine type where the system does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
