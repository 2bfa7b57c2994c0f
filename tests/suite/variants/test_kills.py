"""Variants of ordinary calls show faults that ordinary calls do not."""

from __future__ import annotations

import pytest
import torch

from support.handed_faults import HANDED, HandedFault
from support.killing import fails, killer
from tapestry.numerics.arguments import eager_results, flatten_result
from tapestry.suite.variants.call import Kind, OpCall
from tapestry.suite.variants.derive import Budget

_KINDS = {
    "values": frozenset({Kind.VALUES, Kind.NONFINITE}),
    "layout": frozenset({Kind.LAYOUT}),
    "shape": frozenset({Kind.SHAPE}),
    "attributes": frozenset({Kind.ATTRIBUTES}),
}


def _call(fault: HandedFault) -> OpCall:
    args, kwargs = fault.usual()
    return OpCall(fault.target, args, kwargs)


@pytest.mark.parametrize("fault", HANDED, ids=lambda fault: fault.name)
def test_a_handed_fault_does_not_show_on_its_ordinary_call(fault: HandedFault) -> None:
    call = _call(fault)
    right = eager_results(call.target, call.args, call.kwargs)
    got = flatten_result(fault.apply(call.args, call.kwargs))
    assert all(torch.equal(one, other) for one, other in zip(got, right, strict=True))


@pytest.mark.parametrize("fault", HANDED, ids=lambda fault: fault.name)
def test_a_handed_fault_is_killed_by_its_class_of_variants(fault: HandedFault) -> None:
    assert killer(_call(fault), fault.apply, _KINDS[fault.needs])


@pytest.mark.parametrize("fault", HANDED, ids=lambda fault: fault.name)
def test_a_handed_fault_is_killed_within_the_common_budget(fault: HandedFault) -> None:
    assert killer(_call(fault), fault.apply, budget=Budget(cases=64))


@pytest.mark.parametrize("fault", HANDED, ids=lambda fault: fault.name)
def test_eager_itself_is_never_judged_wrong(fault: HandedFault) -> None:
    call = _call(fault)
    assert killer(call, lambda args, kwargs: call.target(*args, **kwargs), budget=Budget(cases=24)) is None


def test_a_fault_that_shows_everywhere_shows_on_the_ordinary_call() -> None:
    call = OpCall(torch.ops.aten.tanh.default, (torch.linspace(-1, 1, 9),))
    assert fails(call, lambda args, kwargs: torch.tanh(*args) + 0.1)
