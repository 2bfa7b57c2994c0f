"""Losses, distances, scans, recurrent networks, transforms, linear algebra: eager passes, what is a little off fails.

Judged without the source, so that nothing is excused by eager's own error.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.judged_calls import CALLS, Call, seeded
from tapestry.numerics import Judgement, flatten_result, judge, oracle
from tapestry.numerics.facts import CallFacts
from tapestry.numerics.undefined import is_free

pytestmark = pytest.mark.slow


def judged(call: Call, got: Any) -> Judgement:
    target, args, kwargs = call
    return judge(target, args, kwargs, flatten_result(got), None, oracle(target, args, kwargs))


def results(call: Call) -> list[tuple[int, Tensor]]:
    """The floating results that a platform must get right."""
    target, args, kwargs = call
    facts = CallFacts(target, args, kwargs)
    flat = enumerate(flatten_result(target(*args, **kwargs)))
    kept = [(i, x) for i, x in flat if x is not None and (x.is_floating_point() or x.is_complex())]
    return [(i, x) for i, x in kept if x.numel() and not is_free(facts, i)]


def with_result(call: Call, index: int, changed: Tensor) -> list[Tensor | None]:
    target, args, kwargs = call
    flat: list[Tensor | None] = list(flatten_result(target(*args, **kwargs)))
    flat[index] = changed
    return flat


@pytest.mark.parametrize("name", CALLS)
@given(
    rows=st.integers(2, 6),
    columns=st.integers(2, 33),
    scale=st.sampled_from([1e-3, 1.0, 10.0]),
    shift=st.sampled_from([0.0, 1.0, -30.0]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_eager_passes(name: str, rows: int, columns: int, scale: float, shift: float, seed: int) -> None:
    call = CALLS[name](seeded(seed, rows, columns) * scale + shift)
    target, args, kwargs = call
    outcome = judged(call, target(*args, **kwargs))
    assert outcome.verdict in ("pass", "undefined"), outcome
    assert not outcome.judged_by.startswith("unknown"), outcome


@pytest.mark.parametrize("name", CALLS)
def test_one_element_off_by_a_thousandth_fails(name: str) -> None:
    call = CALLS[name](seeded(1, 6, 20))
    for index, right in results(call):
        wrong = right.clone().contiguous()
        place = int(wrong.abs().flatten().argmax())
        wrong.view(-1)[place] *= 1 + 1e-3
        assert judged(call, with_result(call, index, wrong)).verdict == "fail", index


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_results_rounded_to_sixteen_bits_fail(name: str, dtype: torch.dtype) -> None:
    call = CALLS[name](seeded(2, 6, 20))
    for index, right in results(call):
        parts = torch.view_as_real(right) if right.is_complex() else right
        wrong = parts.to(dtype).float()
        if bool(((wrong - parts).abs() <= 1e-4 * parts.abs()).all()):
            continue  # short already, or as good as
        changed = torch.view_as_complex(wrong) if right.is_complex() else wrong
        assert judged(call, with_result(call, index, changed)).verdict == "fail", index
