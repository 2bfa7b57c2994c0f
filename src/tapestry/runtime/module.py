"""What a backend hands to a device: kernel modules or artifacts, and the flat list of launches that runs a region.

Everything here is plain data (msgspec): it is cached on disk, sent to workers and agents, and stored in packages.
No torch, and no knowledge of any backend.
"""

from __future__ import annotations

import hashlib
from math import prod

import msgspec

#: Bytes of one element, by dtype name (torch's names).
ITEM_BYTES: dict[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


class Scalar(msgspec.Struct, frozen=True, tag="scalar"):
    """A kernel argument passed by value."""

    dtype: str
    value: int | float


class KernelDecl(msgspec.Struct, frozen=True):
    """One entry point of a kernel module.

    ``access`` holds one letter per buffer argument, in order: ``r`` read only, ``w`` write only, ``x`` both or not
    known. A buffer may be larger than the tensor in it: a kernel gets sizes from its source or its scalars.
    ``source`` is the kernel's own text, in a language where one text holds one entry point (WGSL from a compiler).
    """

    name: str
    access: str
    source: str = ""


class KernelModule(msgspec.Struct, frozen=True, tag="kernels"):
    """Source text that a device compiles: ``language`` is ``opencl``, ``wgsl`` or ``cuda``."""

    language: str
    source: str
    kernels: tuple[KernelDecl, ...]
    options: str = ""

    @property
    def digest(self) -> str:
        return _digest(self)


class Artifact(msgspec.Struct, frozen=True, tag="artifact"):
    """An opaque program for the host driver, run by the loader at ``loader`` (``package.module:function``).

    ``native`` says that the payload may run native code: remote agents load such only when told to allow it.
    ``binds`` says that the loader's program is given its constants once, before the first run (drivers.host.Unbound).
    """

    loader: str
    payload: bytes
    native: bool = True
    binds: bool = False

    @property
    def digest(self) -> str:
        return _digest(self)


class TensorDecl(msgspec.Struct, frozen=True):
    """A tensor on the device, always contiguous. ``dtype`` is the program's, ``storage`` what the buffer holds.

    The two differ where a device lacks the type (bool kept as int32, int64 as range-checked int32, float16 as
    uint16 where kernels compute in float32).
    ``alias`` names the index of the tensor whose buffer this one shares (a reshape), or -1.
    """

    shape: tuple[int, ...]
    dtype: str
    storage: str
    alias: int = -1

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.storage]


class LaunchDecl(msgspec.Struct, frozen=True):
    """One kernel launch: arguments are tensor indices or scalars; ``grid`` in workgroups, ``block`` in invocations."""

    kernel: str
    args: tuple[int | Scalar, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


class ConstantDecl(msgspec.Struct, frozen=True):
    """A tensor to be filled once, before the first run.

    ``source`` is ``input`` (the region's constant input number ``index``, converted to the declared storage)
    or ``prepared`` (result number ``index`` of the region's preparation).
    """

    tensor: int
    source: str
    index: int


class Compiled(msgspec.Struct, frozen=True):
    """A compiled region.

    ``inputs[i]`` is the tensor that holds region input ``i``, or -1 when the region does not read it on the
    device (a constant consumed by the preparation). ``outputs[i]`` holds region output ``i``; an output may be
    an alias of an input or of another output. ``preparation`` is a serialised graph (tapestry.program.serial)
    from the region's constant inputs to prepared constants (transposed or packed weights), run on the host once.
    With an ``Artifact``, ``launches`` is empty: one call reads ``inputs`` and writes ``outputs``.
    ``updates`` are pairs of an output and the input whose content the launches find in it: they change it in place. It
    is copied there first, unless both were given one buffer.
    """

    backend: str
    module: KernelModule | Artifact
    tensors: tuple[TensorDecl, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    launches: tuple[LaunchDecl, ...] = ()
    constants: tuple[ConstantDecl, ...] = ()
    preparation: bytes = b""
    updates: tuple[tuple[int, int], ...] = ()


def _digest(value: msgspec.Struct) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(value)).hexdigest()
