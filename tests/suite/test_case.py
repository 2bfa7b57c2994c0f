"""Strides come back as they were, and oracle results equal to the source's are not stored twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.eager import same_bits
from tapestry.suite.case import with_strides

BASE = torch.arange(24.0).view(2, 3, 4)
DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool,
    torch.int8, torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128,
]  # fmt: skip


def layouts(tensor: Tensor) -> list[Tensor]:
    return [
        tensor,
        tensor.transpose(0, 2),
        tensor[:, ::2],
        tensor[1:, :, 1:3],
        tensor[0, 0, 0],
        tensor[:0],
        tensor[:0].transpose(0, 1),
        tensor[:, :1].expand(2, 5, 4),
        tensor[0, 0, 0].expand(3),
        tensor.reshape(-1).unfold(0, 6, 2),
        tensor.reshape(-1).as_strided((2, 2), (1, 1)),
        tensor.unsqueeze(0),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_of_every_dtype(dtype: torch.dtype) -> None:
    for layout in layouts(BASE.to(dtype)):
        plain = layout.contiguous()
        got = with_strides(plain, tuple(layout.stride()))
        assert tuple(got.stride()) == tuple(layout.stride())
        assert same_bits(got, layout)


def test_nan_and_signed_zeros_keep_their_bits() -> None:
    tensor = torch.tensor([[float("nan"), -0.0], [0.0, 1e-42]])
    assert same_bits(with_strides(tensor, (1, 2)), tensor)
