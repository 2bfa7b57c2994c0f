"""The host driver, device ``cpu``: aligned host memory, and artifacts run by the loaders that backends register.

It compiles no kernels and imports no framework: a loader's module is imported when its first artifact is loaded.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from tapestry.errors import DeviceError, TapestryError, UnsupportedError, UsageError
from tapestry.runtime.device import Buffer, Call, Command, CopyBuffer, DeviceInfo, Launch, Limits
from tapestry.runtime.drivers.base import Driver
from tapestry.runtime.drivers.listing import DeviceListing
from tapestry.runtime.module import ITEM_BYTES, Artifact, KernelModule
from tapestry.runtime.names import DeviceName
from tapestry.runtime.openmp import let_threads_sleep

#: What a loader returns: reads the inputs, writes every byte of the outputs. All are flat bytes (format ``B``).
#: A buffer has one view as long as it lives, so a program may keep what it made of the views it saw last.
HostProgram = Callable[[list[memoryview], list[memoryview]], None]


@dataclass(frozen=True)
class Unbound:
    """What a loader returns for an artifact with ``binds``: a program that packs or folds its constants once.

    ``constants`` are the positions of the constants among a call's inputs; ``bind`` is given their memory, in that
    order, which stays as it is while the program lives, and returns a program of the other inputs. A call of just
    the constants that has no outputs binds them and does nothing else; any other call binds them if it must.
    """

    constants: tuple[int, ...]
    bind: Callable[[list[memoryview]], HostProgram]


@dataclass(frozen=True)
class _Ready:
    """A call with everything looked up: submitting the same call again costs next to nothing."""

    call: Call
    run: HostProgram
    inputs: list[memoryview]
    outputs: list[memoryview]


@dataclass
class _Program:
    """A loaded artifact: a plain program, or an unbound one with what has been bound, by the constants' buffers."""

    run: HostProgram | Unbound
    bound: dict[tuple[int, ...], HostProgram] = field(default_factory=dict[tuple[int, ...], HostProgram])
    ready: _Ready | None = None


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


def resolve_loader(loader: str) -> Callable[[bytes], HostProgram | Unbound]:
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
    return cast("Callable[[bytes], HostProgram | Unbound]", function)


class HostDriver(Driver[npt.NDArray[np.uint8], _Program]):
    """Runs artifacts on this machine's processor, one after the other."""

    def __init__(self, name: DeviceName) -> None:
        super().__init__()
        self._info = _describe(str(name))
        self._views: dict[int, memoryview] = {}
        #: Buffers that a bound program has folded or packed: it is bound again once one of them changes.
        self._folded: set[int] = set()

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

    def free(self, buffer: Buffer) -> None:
        super().free(buffer)
        if self._views.pop(buffer.id, None) is not None:
            for program in self._programs.values():
                program.ready = None  # it may hold the view, and with it the memory
        self._changed(buffer.id)

    def write(self, buffer: Buffer, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        super().write(buffer, data, offset)
        self._changed(buffer.id)

    def _build(self, module: KernelModule | Artifact) -> _Program:
        if isinstance(module, KernelModule):
            raise UnsupportedError(f"device cpu runs artifacts, not {module.language} kernels")
        loader = resolve_loader(module.loader)
        try:
            return _Program(loader(module.payload))
        except TapestryError:
            raise
        except Exception as error:
            raise DeviceError(f"loader {module.loader} failed: {type(error).__name__}: {error}") from error

    def _launch(self, program: _Program, launch: Launch) -> None:
        raise UnsupportedError("device cpu runs artifacts, not kernels")  # unreachable: it loads no kernels

    def _call(self, program: _Program, call: Call) -> None:
        try:
            self._run(program, call)
        except TapestryError:
            raise
        except Exception as error:
            raise DeviceError(f"an artifact failed: {type(error).__name__}: {error}") from error

    def _run(self, program: _Program, call: Call) -> None:
        ready = program.ready
        if ready is None or ready.call is not call:
            ready = self._prepare(program, call)
            program.ready = ready
        if ready is not None:
            ready.run(ready.inputs, ready.outputs)
        if self._folded:
            for buffer in call.outputs:
                self._changed(buffer.id)

    def _prepare(self, program: _Program, call: Call) -> _Ready | None:
        """The call with its program and views; None for one that only binds."""
        inputs = [buffer.id for buffer in call.inputs]
        run = program.run
        if isinstance(run, Unbound):
            if not call.outputs and len(inputs) == len(run.constants):
                self._bound(program, run, tuple(inputs))
                return None
            places = frozenset(run.constants)
            bound = self._bound(program, run, tuple(inputs[place] for place in run.constants))
            inputs, run = [id_ for place, id_ in enumerate(inputs) if place not in places], bound
        views = [self._view(id_) for id_ in inputs]
        return _Ready(call, run, views, [self._view(buffer.id) for buffer in call.outputs])

    def _bound(self, program: _Program, unbound: Unbound, constants: tuple[int, ...]) -> HostProgram:
        known = program.bound.get(constants)
        if known is None:
            known = unbound.bind([self._view(id_) for id_ in constants])
            program.bound[constants] = known
            self._folded.update(constants)
        return known

    def _changed(self, buffer_id: int) -> None:
        """Drop the programs that were bound to a buffer."""
        if buffer_id not in self._folded:
            return
        self._folded.discard(buffer_id)
        for program in self._programs.values():
            program.ready = None
            for constants in [key for key in program.bound if buffer_id in key]:
                del program.bound[constants]

    def _copy(self, source: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8], copy: CopyBuffer) -> None:
        end = copy.source_offset + copy.nbytes
        target[copy.target_offset : copy.target_offset + copy.nbytes] = source[copy.source_offset : end]

    def _flush(self) -> None:
        pass  # every command has run when it returns

    def _finish(self) -> None:
        pass

    def _start(self, command: Command) -> None:
        super()._start(command)
        if isinstance(command, CopyBuffer):
            self._changed(command.target.id)

    def _clear(self) -> None:
        super()._clear()
        self._views.clear()
        self._folded.clear()

    def _reopen(self) -> None:
        pass

    def _view(self, buffer_id: int) -> memoryview:
        view = self._views.get(buffer_id)
        if view is None:
            view = self._views[buffer_id] = self._memory[buffer_id].data
        return view


def open_host(name: DeviceName) -> HostDriver:
    """Opens device ``cpu``. Call it before torch is imported, and OpenMP's threads sleep between calls."""
    let_threads_sleep()
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
        features=processor_features(),
    )


#: The processor flags that decide which precisions are worth offering (Linux's names).
_FLAGS = frozenset({
    "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_fp16", "amx_int8",
    "asimd", "asimdhp", "asimddp", "bf16", "i8mm",
})  # fmt: skip


@cache
def processor_features() -> frozenset[str]:
    """The instruction sets that this processor says it has, among those that matter; empty where it does not tell."""
    return frozenset(word for key in ("flags", "Features") for word in _cpuinfo(key).split()) & _FLAGS


def _processor() -> str:
    """The processor's model name, or the machine type where the system does not tell."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpuinfo(wanted: str) -> str:
    """The first value under this key in the system's list of processors; empty where there is none."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == wanted:
                return value.strip()
    except OSError:
        pass
    return ""
