"""Tensors and arguments as Python text that makes them again, bit by bit; large tensors as little-endian bytes.

The text needs ``torch`` and ``inf`` and ``nan`` of ``math``. Not here: the script around it (script).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor

from tapestry.errors import FormatError
from tapestry.program.graph import Ref
from tapestry.suite.variants.memory import extent

#: Tensors of more elements (in storage) are bytes in a file.
INLINE = 64

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class Blob:
    """A file of tensors, one after the other, each beginning at a multiple of 16 bytes."""

    name: str
    data: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> int:
        """Append bytes; where they begin."""
        self.data += bytes(-len(self.data) % 16)
        start = len(self.data)
        self.data += data
        return start


def tensor_text(tensor: Tensor, blob: Blob) -> str:
    """An expression for a tensor with its dtype, shape, strides and storage offset.

    A tensor of more than ``INLINE`` elements of storage goes to ``blob``; then the expression calls ``read(file,
    dtype, first byte, elements)``, which the script defines. Gaps between a tensor's elements are not kept, they are 0.
    """
    plain = tensor.detach().resolve_conj().resolve_neg()
    shape, stride, offset = tuple(plain.shape), tuple(plain.stride()), int(plain.storage_offset())
    if stride == torch.empty(shape, device="meta").stride() and not offset:
        return _dense_text(plain, shape, blob)
    flat = _storage(plain, offset)
    base = _dense_text(flat, (flat.numel(),), blob)
    return f"{base}.as_strided({shape!r}, {stride!r}, {offset})"


def raw_bytes(tensor: Tensor) -> bytes:
    """The elements in order as little-endian bytes."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    if flat.dtype == torch.bool:
        flat = flat.view(torch.uint8)
    data: np.ndarray = flat.view(_INTEGERS[flat.element_size()]).numpy()
    return data.tobytes() if sys.byteorder == "little" else data.byteswap().tobytes()


def argument_text(value: object, named: Callable[[Ref], str] = lambda ref: ref.name) -> str:
    """An argument of a call as Python text; a value of the graph by the name of its variable."""
    if isinstance(value, Ref):
        return named(value)
    if isinstance(value, float):
        return repr(value)  # inf, -inf and nan are names of the script
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    if isinstance(value, tuple | list):
        return f"[{', '.join(argument_text(entry, named) for entry in cast('Sequence[object]', value))}]"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    raise FormatError(f"an argument of type {type(value).__name__} has no text: {value!r}")


def _storage(tensor: Tensor, offset: int) -> Tensor:
    """Everything in memory up to the tensor's last element, the gaps 0."""
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    flat = torch.zeros(offset + extent(shape, stride), dtype=tensor.dtype)
    if tensor.numel():
        bits = _INTEGERS.get(tensor.dtype.itemsize)
        places = torch.arange(flat.numel()).as_strided(shape, stride, offset).reshape(-1)
        if bits is None:
            flat[places] = tensor.reshape(-1)
        else:
            flat.view(bits)[places] = tensor.reshape(-1).view(bits)
    return flat


def _dense_text(tensor: Tensor, shape: tuple[int, ...], blob: Blob) -> str:
    count = tensor.numel()
    dtype = str(tensor.dtype)
    if not count:
        return f"torch.empty({shape!r}, dtype={dtype})"
    if count > 1 and _uniform(tensor):
        (text,) = _numbers(tensor.reshape(-1)[:1]) or ("",)
        if text:
            return f"torch.full({shape!r}, {text}, dtype={dtype})"
    if count > INLINE:
        start = blob.add(raw_bytes(tensor))
        return f"read({blob.name!r}, {dtype}, {start}, {count}).reshape({shape!r})"
    texts = _numbers(tensor)
    return _bits_text(tensor, shape) if texts is None else f"torch.tensor({_nested(texts, shape)}, dtype={dtype})"


def _bits_text(tensor: Tensor, shape: tuple[int, ...]) -> str:
    """By the bits: a NaN of another payload, or a dtype whose numbers do not make it."""
    size = tensor.element_size()
    if size not in _INTEGERS:  # complex128
        return f"torch.view_as_complex({_bits_text(torch.view_as_real(tensor.contiguous()), (*shape, 2))})"
    bits = tensor.contiguous().reshape(-1).view(_INTEGERS[size])
    return f"torch.tensor({bits.tolist()!r}, dtype={bits.dtype}).view({tensor.dtype}).reshape({shape!r})"


def _uniform(tensor: Tensor) -> bool:
    data = raw_bytes(tensor)
    size = len(data) // tensor.numel()
    return data == data[:size] * tensor.numel()


def _numbers(tensor: Tensor) -> list[str] | None:
    """Each element as text; None where a tensor of the numbers that the texts mean is not this one, bit by bit."""
    values = tensor.detach().reshape(-1).tolist()
    pairs = [_number(value, tensor.dtype) for value in values]
    try:
        made = torch.tensor([meant for _, meant in pairs], dtype=tensor.dtype)
    except (RuntimeError, ValueError, TypeError, OverflowError):
        return None
    return [text for text, _ in pairs] if raw_bytes(made) == raw_bytes(tensor) else None


def _number(value: complex, dtype: torch.dtype) -> tuple[str, complex]:
    """The text of a number and what it means. That of a float32 may be shorter than that of the same double."""
    if isinstance(value, complex):
        return argument_text(value), complex(_meant(value.real), _meant(value.imag))
    if not isinstance(value, float) or dtype == torch.float64 or not math.isfinite(value):
        return argument_text(value), _meant(value)
    short = str(np.float32(value))
    same = torch.tensor([float(short), value], dtype=dtype)
    # The shortest text of the largest number is a little above it, which torch.full does not take.
    inside = abs(float(short)) <= torch.finfo(dtype).max
    return (short, float(short)) if inside and bool(same[0] == same[1]) else (repr(value), value)


def _meant(value: float) -> float:
    """What the text of a number is read as: ``nan`` has neither the sign nor the payload of the NaN it stands for."""
    return math.nan if value != value else value


def _nested(texts: list[str], shape: tuple[int, ...]) -> str:
    """A list of lists of this shape, which has no size 0."""
    if not shape:
        return texts[0]
    step = len(texts) // shape[0]
    return f"[{', '.join(_nested(texts[place : place + step], shape[1:]) for place in range(0, len(texts), step))}]"
