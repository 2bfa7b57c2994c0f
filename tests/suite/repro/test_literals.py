"""Tensors as text make the same tensors again: every bit, dtype, shape, stride and offset."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from tapestry.errors import FormatError
from tapestry.program.graph import Ref
from tapestry.suite.repro.literals import INLINE, Blob, argument_text, raw_bytes, tensor_text

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.uint16, torch.uint32, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn,
)  # fmt: skip
NAN, INF = math.nan, math.inf


def made(text: str, blob: Blob) -> Tensor:
    """What the text makes, with ``read`` as the script defines it."""

    def read(file: str, dtype: torch.dtype, start: int, count: int) -> Tensor:
        assert file == blob.name
        return torch.frombuffer(bytearray(blob.data), dtype=dtype, count=count, offset=start).clone()

    return eval(text, {"torch": torch, "inf": INF, "nan": NAN, "read": read})  # noqa: S307 (the tests' own text)


def check(tensor: Tensor) -> str:
    blob = Blob("inputs.bin")
    text = tensor_text(tensor, blob)
    again = made(text, blob)
    assert again.dtype == tensor.dtype
    assert again.shape == tensor.shape
    assert again.stride() == tensor.stride()
    assert again.storage_offset() == tensor.storage_offset()
    assert raw_bytes(again) == raw_bytes(tensor)
    return text


def of_bytes(data: bytes, dtype: torch.dtype) -> Tensor:
    if dtype == torch.bool:
        return torch.tensor([byte % 2 == 1 for byte in data], dtype=dtype)
    whole = len(data) // dtype.itemsize * dtype.itemsize
    if not whole:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(data[:whole]), dtype=dtype).clone()


@given(st.binary(max_size=400), st.sampled_from(DTYPES))
@example(b"\x00\x00\xc0\xff" * 2, torch.float32)
@example(b"\x01\x00\x80\x7f" * 2, torch.complex64)
def test_any_bits(data: bytes, dtype: torch.dtype) -> None:
    """NaN of every payload, subnormals, -0.0 and infinities among them."""
    check(of_bytes(data, dtype))


@given(st.lists(st.floats(width=32), min_size=1, max_size=INLINE))
def test_floats_are_read_in_place(numbers: list[float]) -> None:
    text = check(torch.tensor([NAN if math.isnan(number) else number for number in numbers]))
    assert "read" not in text
    assert "view" not in text


@given(st.integers(0, 4), st.integers(0, 5), st.integers(0, 3), st.sampled_from(DTYPES[:-1]))
def test_shapes(rows: int, columns: int, depth: int, dtype: torch.dtype) -> None:
    count = rows * columns * depth
    check((torch.arange(count) % 7 - 2).to(dtype).reshape(rows, columns, depth))


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.tensor(0.1), "torch.tensor(0.1, dtype=torch.float32)"),
        (torch.tensor([[1.5, -0.0]]), "torch.tensor([[1.5, -0.0]], dtype=torch.float32)"),
        (torch.tensor([NAN, -INF, INF]), "torch.tensor([nan, -inf, inf], dtype=torch.float32)"),
        (torch.tensor([True, False]), "torch.tensor([True, False], dtype=torch.bool)"),
        (torch.tensor(2**62 + 1), "torch.tensor(4611686018427387905, dtype=torch.int64)"),
        (torch.tensor([0.1], dtype=torch.float64), "torch.tensor([0.1], dtype=torch.float64)"),
        (torch.full((1000, 1000), 0.1), "torch.full((1000, 1000), 0.1, dtype=torch.float32)"),
        (torch.empty(3, 0), "torch.empty((3, 0), dtype=torch.float32)"),
    ],
)
def test_texts(tensor: Tensor, text: str) -> None:
    assert check(tensor) == text


def test_many_elements_are_bytes_in_a_file() -> None:
    blob = Blob("inputs.bin")
    first, second = torch.arange(INLINE + 1, dtype=torch.uint8), torch.arange(100, dtype=torch.float32)
    texts = [tensor_text(first, blob), tensor_text(second, blob)]
    assert texts[0] == f"read('inputs.bin', torch.uint8, 0, {INLINE + 1}).reshape(({INLINE + 1},))"
    assert texts[1] == "read('inputs.bin', torch.float32, 80, 100).reshape((100,))"
    assert bytes(blob.data[80:88]) == struct.pack("<ff", 0.0, 1.0)
    for text, tensor in zip(texts, (first, second), strict=True):
        assert torch.equal(made(text, blob), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0)[3:],
        torch.arange(12.0)[::5],
        torch.tensor([1.0, NAN]).unsqueeze(0).expand(5, 2),
        torch.arange(1000.0).reshape(10, 100)[2:5, ::7],
        torch.arange(6.0).as_strided((4, 3), (1, 1)),
        torch.arange(24).reshape(2, 3, 2, 2).permute(0, 2, 3, 1),
        torch.zeros(0, 3).t(),
        torch.arange(4.0).reshape(2, 2).to(torch.complex128).t(),
        torch.tensor(3.0).expand(70),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)} {tensor.stride()}",
)
def test_strides_and_offsets(tensor: Tensor) -> None:
    check(tensor)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8))
def test_arguments(value: object) -> None:
    again = eval(argument_text(value), {"inf": INF, "nan": NAN})  # noqa: S307 (the tests' own text)
    assert repr(again) == repr(value)


def test_special_arguments() -> None:
    for value in (torch.float16, torch.device("cpu"), torch.strided, torch.channels_last, complex(-0.0, INF)):
        text = argument_text(value)
        assert repr(eval(text, {"torch": torch, "inf": INF, "nan": NAN})) == repr(value)  # noqa: S307
    assert argument_text((Ref("i0"), [1, Ref("n0", 2)]), lambda ref: f"{ref.name}_{ref.item}") == "[i0_0, [1, n0_2]]"
    with pytest.raises(FormatError, match="no text"):
        argument_text(object())
