"""The features of a tensor name every kind of value that platforms get wrong, whatever its dtype and layout."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tapestry.suite.features import RARE, features_of

INF, NAN = math.inf, math.nan
TINY = 1e-42  # subnormal in float32


def rare(tensor: Tensor) -> set[str]:
    return set(features_of(tensor).tokens & RARE)


def t(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (t(1, -2, 3), set()),
        (t(1, 0, 3), {"zeros"}),
        (t(1, -0.0), {"zeros"}),
        (t(1, TINY), {"subnormal"}),
        (t(1, 0, -TINY), {"zeros", "subnormal"}),
        (t(1, 0, TINY, NAN), {"zeros", "subnormal", "nan"}),
        (t(1, NAN), {"nan", "all equal"}),
        (t(1, 2, INF), {"+inf"}),
        (t(1, 2, -INF), {"-inf"}),
        (t(1, 2, -INF, INF, NAN), {"-inf", "+inf", "nan"}),
        (t(NAN), {"nan"}),
        (t(-INF, -INF), {"-inf"}),
        (t(3, 3, 3), {"all equal"}),
        (t(3e38, 1), {"saturated"}),
        (t(60000, 1, dtype=torch.float16), {"saturated"}),
        (t(1e-7, 1, dtype=torch.float16), {"subnormal"}),
        (t(1e-39, 1, dtype=torch.bfloat16), {"subnormal"}),
        (t(1e-310, 1, dtype=torch.float64), {"subnormal"}),
        (t(448, 1, dtype=torch.float8_e4m3fn), {"saturated"}),
        (t(NAN, 0, 1, dtype=torch.float8_e5m2), {"nan", "zeros"}),
        (t(1, 2, dtype=torch.int32), set()),
        (t(2**31 - 1, 2, dtype=torch.int32), {"extreme"}),
        (t(-(2**63), 2, dtype=torch.int64), {"extreme"}),
        (t(0, 5, dtype=torch.uint8), {"extreme"}),
        (t(5, 2**16 - 1, dtype=torch.uint16), {"extreme"}),
        (t(5, 6, dtype=torch.uint32), set()),
        (torch.tensor([5, 2**64 - 1], dtype=torch.uint64), {"extreme"}),
        (t(7, 7, dtype=torch.int8), {"all equal"}),
        (t(1, 1, dtype=torch.bool), {"all true"}),
        (t(0, 0, dtype=torch.bool), {"all false"}),
        (t(0, 1, dtype=torch.bool), set()),
        (torch.complex(t(1, 2), t(NAN, 3)), {"nan"}),
        (torch.complex(t(1, 2), t(INF, 3)).conj(), {"-inf"}),
        (torch.tensor(0.0), {"zeros", "all equal"}),
    ],
)  # fmt: skip
def test_rare_values(tensor: Tensor, expected: set[str]) -> None:
    assert rare(tensor) == expected
    assert rare(torch.stack([tensor, tensor]).t()) == expected
    assert rare(tensor.unsqueeze(0).expand(3, *tensor.shape)) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64, torch.complex64, torch.float8_e4m3fn])
def test_empty(dtype: torch.dtype) -> None:
    found = features_of(torch.zeros(0, 3, dtype=dtype))
    assert (found.tokens, found.peak) == ({"empty"}, 0.0)


def test_magnitude_and_sign() -> None:
    assert features_of(t(1, 300)).tokens > features_of(t(1, 17)).tokens & {"not negative"}
    tokens = [features_of(t(value, 1)).tokens for value in (1.5, 7, 40, 300, 1e6, 1e-6, -3)]
    assert len(set(tokens)) >= 5
    assert "squares leave float16" in features_of(t(-300, 1)).tokens
    assert "squares leave float16" not in features_of(t(255, 1)).tokens
    assert [features_of(value).peak for value in (t(-7, 3), t(INF, -2, NAN), t(NAN), t(-9, 2, dtype=torch.int8))] == [
        7, 2, 0, 9,
    ]  # fmt: skip
    signs = ["negative", "not negative", "both signs"]
    for value, sign in zip((t(-1, -2), t(0, 1), t(-1, 1)), signs, strict=True):
        assert features_of(value).tokens & set(signs) == {sign}


floats = st.floats(width=32, allow_subnormal=True)


@settings(derandomize=True, deadline=None)
@given(st.lists(floats, min_size=1, max_size=8))
def test_against_a_plain_definition(values: list[float]) -> None:
    finite = [value for value in values if math.isfinite(value)]
    expected = {
        "nan": any(math.isnan(value) for value in values),
        "+inf": INF in values,
        "-inf": -INF in values,
        "zeros": 0.0 in values,
        "subnormal": any(0 < abs(value) < torch.finfo(torch.float32).tiny for value in values),
        "all equal": bool(finite) and len(set(finite)) == 1,
        "saturated": any(abs(value) > torch.finfo(torch.float32).max / 2 for value in finite),
    }
    found = features_of(t(*values))
    assert {name for name, there in expected.items() if there} == found.tokens & RARE
    assert found.peak == max((abs(value) for value in finite), default=0.0)
