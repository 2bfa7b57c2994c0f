"""How a tensor lies in memory, and other values laid out in the same way. Not here: which values or layouts."""

from __future__ import annotations

import torch
from torch import Tensor


def free_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape with every expanded dimension (stride 0) as 1: the elements that can be chosen freely."""
    return tuple(1 if step == 0 else size for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def collapsed(tensor: Tensor) -> Tensor:
    """The tensor without its repeats: of `free_shape`, a view."""
    for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if step == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def extent(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """How many elements of storage a tensor spans from its first element on."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def laid_like(values: Tensor, like: Tensor) -> Tensor:
    """``values``, of the shape or the `free_shape` of ``like``, in its dtype with its strides and storage offset.

    Fresh memory; gaps hold zeros. Where elements of ``like`` overlap in other ways than by stride 0 (sliding windows),
    the values are written to its storage one after the other instead.
    """
    return laid_out(values, tuple(like.shape), tuple(like.stride()), int(like.storage_offset()), like.dtype)


def laid_out(
    values: Tensor,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    filler: Tensor | None = None,
) -> Tensor:
    """``values`` with these strides and this offset (in elements); ``filler``, one element, fills the gaps."""
    span = offset + extent(shape, stride)
    storage = torch.zeros(span, dtype=dtype)
    if filler is not None:
        storage.copy_(filler.to(dtype).expand(span))
    if 0 in shape:
        return storage.as_strided(shape, stride, offset)
    own = tuple(1 if step == 0 else size for size, step in zip(shape, stride, strict=True))
    if _overlaps(own, stride):
        flat = values.reshape(-1)
        storage.copy_(flat[torch.arange(span) % flat.numel()])
    else:
        storage.as_strided(own, stride, offset).copy_(_narrowed(values, own))
    return storage.as_strided(shape, stride, offset)


def _narrowed(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The first entry along every dimension that is expanded."""
    for dim, size in enumerate(shape):
        if values.shape[dim] != size:
            values = values.narrow(dim, 0, size)
    return values


def _overlaps(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    reach = 0
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True) if size > 1):
        if step <= reach:
            return True
        reach += (size - 1) * step
    return False
