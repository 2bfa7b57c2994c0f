"""Integers beyond 2^24 in float arithmetic: PyTorch converts them first, and what is computed then may differ a little.

Tolerances are those of the class, around the result for the converted integers.
"""

from __future__ import annotations

import pytest
import torch

from tapestry.numerics import judge, oracle

aten = torch.ops.aten
#: Neighbours that float32 takes for one.
BESIDE = torch.tensor([[2**24 + 1, 2**24, 2**24 - 1, 2**24 - 3], [2**30, 2**30 + 1, 2**30 - 1, 2**30 + 17]])

CALLS = {
    "softmax": (aten.softmax.int, (BESIDE, 1, torch.float32)),
    "log_softmax": (aten.log_softmax.int, (BESIDE, 1, torch.float32)),
    "sub": (aten.sub.Tensor, (BESIDE, torch.full((2, 4), 2.0**24))),
    "sin": (aten.sin.default, (BESIDE,)),
}


@pytest.mark.parametrize("name", CALLS)
def test_converted_before_or_exact_both_pass(name: str) -> None:
    target, args = CALLS[name]
    want = oracle(target, args)
    converted = target(*(arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args))
    moved = torch.where(converted.abs() > 1e-3, torch.nextafter(converted, torch.zeros(())), converted)
    outcome = judge(target, args, {}, (moved,), None, want)
    assert outcome.verdict == "pass", outcome
    exact = want[0]
    assert exact is not None
    assert judge(target, args, {}, (exact.float(),), None, want).verdict == "pass"


@pytest.mark.parametrize("name", CALLS)
def test_other_roundings_fail(name: str) -> None:
    target, args = CALLS[name]
    wrong = target(*(BESIDE.bfloat16().float() if arg is BESIDE else arg for arg in args))
    assert judge(target, args, {}, (wrong * 1.01,), None, oracle(target, args)).verdict == "fail"


def test_exact_results_stay_exact() -> None:
    total = BESIDE + 1
    assert (
        judge(
            aten.add.Tensor, (BESIDE, 1), {}, (total.float().long(),), None, oracle(aten.add.Tensor, (BESIDE, 1))
        ).verdict
        == "fail"
    )
