"""WGSL sources to compute pipelines, and the bind groups of their launches.

A kernel's storage buffers are bindings 0, 1, … of group 0 in the order of the launch's buffers, read-only where the
declaration says ``r``; its scalars, four bytes each in their order, are one uniform struct at the next binding.
Not here: encoding and submitting.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tapestry.errors import DeviceError, UnsupportedError, UsageError
from tapestry.runtime.device import Buffer, DeviceInfo, Launch
from tapestry.runtime.module import KernelDecl, KernelModule, Scalar

#: How a scalar lies in the uniform struct.
_PACKED = {"float32": "f", "int32": "i", "uint32": "I"}
_WORKGROUP = r"@workgroup_size\s*\(([^)]*)\)\s*(?:@\w+(?:\([^)]*\))?\s*)*fn\s+{name}\b"
#: A uniform struct's size is a multiple of this, in bytes.
_UNIFORM_STEP = 16


@dataclass
class Memory:
    """A storage buffer, and the bind groups that hold it: (the kernel's groups, key), to be forgotten with it."""

    buffer: Any
    size: int
    uses: list[tuple[dict[Any, Any], Any]] = field(default_factory=list[tuple[dict[Any, Any], Any]])


@dataclass(eq=False)
class Kernel:
    """A pipeline and its bind groups, by the ids of the buffers and the bytes of the scalars."""

    name: str
    access: str
    block: tuple[int, int, int]
    pipeline: Any
    layout: Any
    groups: dict[tuple[tuple[int, ...], bytes], Any] = field(default_factory=dict[Any, Any])


def build(wgpu: Any, device: Any, module: KernelModule, info: DeviceInfo) -> dict[str, Kernel]:
    """The pipelines of a module, by kernel name.

    DeviceError with the compiler's words, UnsupportedError for more workgroup memory than there is.
    """
    where = info.name
    shaders: dict[str, Any] = {}
    built: dict[str, Kernel] = {}
    for decl in module.kernels:
        source = decl.source or module.source
        block = _block(source, decl.name, where)
        _check_workgroup_memory(source, decl.name, info)
        try:
            if source not in shaders:
                shaders[source] = device.create_shader_module(code=source)
            built[decl.name] = _pipeline(wgpu, device, shaders[source], decl, block)
        except wgpu.GPUError as error:
            raise DeviceError(f"{where}: kernel {decl.name} does not build: {message(error)}") from error
    if not module.kernels:  # nothing to launch, but an error in the source is still told
        try:
            device.create_shader_module(code=module.source)
        except wgpu.GPUError as error:
            raise DeviceError(f"{where}: the source does not build: {message(error)}") from error
    return built


def _pipeline(wgpu: Any, device: Any, shader: Any, decl: KernelDecl, block: tuple[int, int, int]) -> Kernel:
    compute = wgpu.ShaderStage.COMPUTE
    kinds = ["read-only-storage" if letter == "r" else "storage" for letter in decl.access]
    # A kernel without scalars leaves the last binding unused, which is allowed.
    entries = [
        {"binding": place, "visibility": compute, "buffer": {"type": kind}}
        for place, kind in enumerate([*kinds, "uniform"])
    ]
    layout = device.create_bind_group_layout(entries=entries)
    pipeline = device.create_compute_pipeline(
        layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
        compute={"module": shader, "entry_point": decl.name},
    )
    return Kernel(decl.name, decl.access, block, pipeline, layout)


def _block(source: str, name: str, where: str) -> tuple[int, int, int]:
    """The workgroup size that the source states, which launches must name too."""
    found = re.search(_WORKGROUP.format(name=re.escape(name)), source)
    if found is None:
        raise DeviceError(f"{where}: the source has no kernel {[name]}: expected @compute @workgroup_size(…) fn {name}")
    sizes = [part.strip().rstrip("ui") for part in found[1].split(",") if part.strip()]
    if not all(size.isdigit() for size in sizes) or not 1 <= len(sizes) <= 3:
        raise DeviceError(f"{where}: kernel {name}: expected numbers in @workgroup_size, got {found[1].strip()!r}")
    x, y, z = ([int(size) for size in sizes] + [1, 1])[:3]
    return x, y, z


_SHARED = re.compile(r"var<workgroup>\s+\w+\s*:\s*([^;]+);")
_ARRAY = re.compile(r"array<(.+),\s*(\d+)[ui]?\s*>$")
_VECTOR = re.compile(r"vec([234])(?:<(\w+)>|[fiuh])$")
_WORD_TYPES = {"f32", "i32", "u32", "atomic<i32>", "atomic<u32>", "bool"}


def _check_workgroup_memory(source: str, name: str, info: DeviceInfo) -> None:
    """Told here, because wgpu 29 compiles, and lavapipe runs, a kernel with more than the limit."""
    most = info.limits.workgroup_memory_bytes
    needed = sum(_bytes_of(found.strip(), name) for found in _SHARED.findall(source))
    if needed > most:
        raise UnsupportedError(f"kernel {name} needs {needed:,} bytes of workgroup memory, over the limit of {most:,}")


def _bytes_of(kind: str, name: str) -> int:
    """The size of a WGSL type, as the specification lays it out; DeviceError for one that is not known here."""
    if kind in _WORD_TYPES:
        return 4
    if vector := _VECTOR.match(kind):
        return 4 * (4 if vector[1] == "3" else int(vector[1]))
    if array := _ARRAY.match(kind):
        return _bytes_of(array[1].strip(), name) * int(array[2])
    raise DeviceError(
        f"kernel {name}: expected numbers, vectors or arrays of known size in workgroup memory, got {kind}"
    )


class BindGroups:
    """Makes and keeps bind groups, and the small uniform buffers that hold launches' scalars."""

    #: Uniform buffers kept; launches of one model have few different scalars.
    MOST_UNIFORMS = 4096

    def __init__(self, wgpu: Any, device: Any) -> None:
        self._wgpu = wgpu
        self._device = device
        self._uniforms: dict[bytes, Any] = {}

    def group(self, kernel: Kernel, launch: Launch, memory: dict[int, Memory]) -> Any:
        """The bind group of a launch."""
        ids = tuple(argument.id for argument in launch.args if isinstance(argument, Buffer))
        scalars = _scalars(launch)
        key = (ids, scalars)
        known = kernel.groups.get(key)
        if known is None:
            bound = [memory[id_] for id_ in ids]
            _check_sharing(kernel, ids)
            known = kernel.groups[key] = self._made(kernel, bound, scalars)
            for entry in bound:
                entry.uses.append((kernel.groups, key))
        return known

    def _made(self, kernel: Kernel, bound: Sequence[Memory], scalars: bytes) -> Any:
        resources = [{"buffer": entry.buffer, "offset": 0, "size": entry.size} for entry in bound]
        uniform = self._uniform(scalars)
        resources.append({"buffer": uniform, "offset": 0, "size": uniform.size})
        return self._device.create_bind_group(
            layout=kernel.layout,
            entries=[{"binding": place, "resource": resource} for place, resource in enumerate(resources)],
        )

    def _uniform(self, scalars: bytes) -> Any:
        known = self._uniforms.get(scalars)
        if known is None:
            if len(self._uniforms) >= self.MOST_UNIFORMS:
                self._uniforms.clear()  # bind groups hold those that are in use
            size = max(1, math.ceil(len(scalars) / _UNIFORM_STEP)) * _UNIFORM_STEP
            known = self._device.create_buffer_with_data(
                data=scalars.ljust(size, b"\0"), usage=self._wgpu.BufferUsage.UNIFORM
            )
            self._uniforms[scalars] = known
        return known


def forget_groups(memory: Memory) -> None:
    """Drop the bind groups that hold a buffer that is to be freed."""
    for groups, key in memory.uses:
        groups.pop(key, None)
    memory.uses.clear()


def _check_sharing(kernel: Kernel, ids: tuple[int, ...]) -> None:
    """WebGPU allows no buffer that is written to be bound twice."""
    written = {id_ for id_, letter in zip(ids, kernel.access, strict=True) if letter != "r"}
    for id_ in written:
        if ids.count(id_) > 1:
            raise UnsupportedError(
                f"kernel {kernel.name} writes buffer {id_}, which is bound twice: WebGPU has no such launch"
            )


def _scalars(launch: Launch) -> bytes:
    parts = [_packed(launch.kernel, argument) for argument in launch.args if isinstance(argument, Scalar)]
    return b"".join(parts)


def _packed(kernel: str, scalar: Scalar) -> bytes:
    letter = _PACKED.get(scalar.dtype)
    if letter is None:
        raise UnsupportedError(f"kernel {kernel}: WebGPU passes no scalar of type {scalar.dtype}")
    if letter != "f" and not isinstance(scalar.value, int):
        raise UsageError(f"kernel {kernel}: expected an integer for {scalar.dtype}, got {scalar.value!r}")
    try:
        return struct.pack(f"<{letter}", scalar.value)
    except (struct.error, OverflowError) as error:
        raise UsageError(f"kernel {kernel}: {scalar.value} does not fit {scalar.dtype}") from error


#: Characters kept from each end of a compiler's message.
_ENDS = 2000


def message(error: Exception) -> str:
    """A message of wgpu on one line's worth of text, without its middle when it is long."""
    text = re.sub(r"\n\s*\n+", "\n", str(error)).strip()
    if len(text) <= 2 * _ENDS:
        return text
    return f"{text[:_ENDS]}\n… {len(text) - 2 * _ENDS} characters left out …\n{text[-_ENDS:]}"
