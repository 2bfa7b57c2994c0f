"""Tensors as device memory holds them, and back: contiguous, in the storage type that the device has.

Not here: when to transfer (executable).
"""

from __future__ import annotations

import torch

from tapestry.errors import InputError
from tapestry.program.graph import TensorSpec
from tapestry.program.program import tensor_bytes
from tapestry.program.serial import dtype_name, dtype_named
from tapestry.runtime.module import TensorDecl


def to_storage(tensor: torch.Tensor, decl: TensorDecl, what: str) -> memoryview:
    """The bytes to upload. InputError when an integer does not fit the storage; ``what`` names the value then."""
    storage = dtype_named(decl.storage)
    if tensor.dtype == storage or _kept_as_bits(tensor.dtype, storage):
        return tensor_bytes(tensor)
    if not storage.is_floating_point and not tensor.dtype.is_floating_point and tensor.dtype != torch.bool:
        _check_range(tensor, storage, what)
    return tensor_bytes(tensor.to(storage))


def _kept_as_bits(dtype: torch.dtype, storage: torch.dtype) -> bool:
    """Whether the device keeps a float's bits in an integer of its size, as one without 16-bit arithmetic does."""
    return dtype.is_floating_point and not storage.is_floating_point and dtype.itemsize == storage.itemsize


def _check_range(tensor: torch.Tensor, storage: torch.dtype, what: str) -> None:
    if tensor.numel() == 0:
        return
    low, high = (int(entry.item()) for entry in torch.aminmax(tensor))
    limits = torch.iinfo(storage)
    if low < limits.min or high > limits.max:
        raise InputError(
            f"{what}: the device keeps it as {dtype_name(storage)}, expected values in [{limits.min}, {limits.max}], "
            f"got {low} to {high}"
        )


def from_storage(data: bytes, decl: TensorDecl, spec: TensorSpec) -> torch.Tensor:
    """A tensor of its own from downloaded bytes, with the dtype and strides that eager would give it."""
    storage = dtype_named(decl.storage)
    if spec.numel == 0:
        return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype)
    # bytearray: torch wants writable memory, and the result belongs to the caller.
    flat = torch.frombuffer(bytearray(data), dtype=storage, count=spec.numel)
    values = flat.view(spec.dtype) if _kept_as_bits(spec.dtype, storage) else flat.to(spec.dtype)
    return with_layout(values.reshape(spec.shape), spec)


def with_layout(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The tensor with the strides of the spec; a copy where they differ."""
    if tuple(tensor.stride()) == spec.stride or tensor.numel() == 0:
        return tensor
    return copied(tensor, spec)


def copied(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The elements in memory of their own, with the strides of the spec: also overlapping ones (expand, unfold)."""
    extent = 1 + sum((size - 1) * step for size, step in zip(spec.shape, spec.stride, strict=True))
    if spec.numel <= extent:
        return torch.empty_strided(spec.shape, spec.stride, dtype=tensor.dtype).copy_(tensor)
    storage = torch.zeros(extent, dtype=tensor.dtype)
    places = torch.arange(extent).as_strided(spec.shape, spec.stride)
    storage[places.reshape(-1)] = tensor.reshape(-1)
    return storage.as_strided(spec.shape, spec.stride)
