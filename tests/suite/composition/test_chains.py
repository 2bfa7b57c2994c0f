"""Chains: faults that show only when several calls run as one part die, and right platforms are left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from support import part_faults
from support.part_faults import CONTROLS, MUTANTS, PartFault
from tapestry.numerics import Verdict
from tapestry.program.serial import overload_named
from tapestry.suite.composition.chains import Chain, Ref, Step, chains_for, judge_chain, run_chain, run_fault
from tapestry.suite.composition.steps import filled, records_of
from tapestry.suite.composition.trial import chain_of
from tapestry.suite.schema.calls import calls_for
from tapestry.suite.variants.call import OpCall

#: What a right platform may run at most in the slow test; a broken one has to show before.
CHAINS = 2500


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def call(op: str, *args: object, **kwargs: object) -> OpCall:
    return OpCall(overload_named(op), args, kwargs)


EXAMPLES: dict[str, list[OpCall]] = {
    "aten.mul.Tensor": [call("aten.mul.Tensor", draw(3, 5), draw(3, 5)), call("aten.mul.Tensor", draw(3, 5), 2.0)],
    "aten.add.Tensor": [call("aten.add.Tensor", draw(3, 5), draw(3, 5), alpha=2)],
    "aten.relu.default": [call("aten.relu.default", draw(4, 6))],
    "aten.linear.default": [call("aten.linear.default", draw(3, 5), draw(4, 5), draw(4))],
    "aten.gelu.default": [call("aten.gelu.default", draw(4, 6))],
    "aten.tanh.default": [call("aten.tanh.default", draw(4, 6))],
    "aten.slice.Tensor": [call("aten.slice.Tensor", draw(6, 4), 0, 1, 4)],
    "aten.select.int": [call("aten.select.int", draw(6, 4), 0, 2)],
    "aten.copy_.default": [call("aten.copy_.default", draw(3, 4), draw(3, 4))],
    "aten.add_.Tensor": [call("aten.add_.Tensor", draw(3, 4), draw(3, 4))],
    "aten.neg.default": [call("aten.neg.default", draw(3, 4))],
    "aten.relu_.default": [call("aten.relu_.default", draw(3, 4))],
    "aten.sum.dim_IntList": [call("aten.sum.dim_IntList", draw(3, 5), [1])],
}


def covered(faults: Sequence[PartFault]) -> list[PartFault]:
    return [fault for fault in faults if all(op in EXAMPLES for op in fault.ops)]


def first_failure(fault: PartFault, calls: Mapping[str, Sequence[Any]], limit: int) -> str:
    for chain in chains_for(fault.ops, calls, limit):
        try:
            got = run_fault(chain, fault)
        except (RuntimeError, ValueError, IndexError, TypeError):
            continue  # a fault that does not foresee a chain has not shown itself
        found = judge_chain(chain, got)
        if found.verdict is Verdict.FAIL:
            return f"{chain.name}: {found.reason}"
    return ""


@pytest.mark.parametrize("fault", covered(MUTANTS), ids=lambda fault: fault.name)
def test_a_broken_platform_shows(fault: PartFault) -> None:
    assert first_failure(fault, {op: EXAMPLES[op] for op in fault.ops}, CHAINS)


@pytest.mark.parametrize("fault", covered(CONTROLS), ids=lambda fault: fault.name)
def test_a_right_platform_does_not(fault: PartFault) -> None:
    assert not first_failure(fault, {op: EXAMPLES[op] for op in fault.ops}, 400)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_on_calls_from_the_schema() -> None:
    """At least 95 of 100 broken platforms show, and no right one does."""
    calls = {op: calls_for(op) for fault in (*MUTANTS, *CONTROLS) for op in fault.ops}
    alive = [fault.name for fault in MUTANTS if not first_failure(fault, calls_of(fault, calls), CHAINS)]
    assert len(alive) <= 0.05 * len(MUTANTS), alive
    blamed = {fault.name: first_failure(fault, calls_of(fault, calls), 600) for fault in CONTROLS}
    assert not any(blamed.values()), {name: reason for name, reason in blamed.items() if reason}


def calls_of(fault: PartFault, calls: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    return {op: calls[op] for op in fault.ops}


def test_most_chains_hold_every_operator_and_all_run() -> None:
    ops = ("aten.linear.default", "aten.gelu.default")
    whole = 0
    for chain in chains_for(ops, EXAMPLES, 200):
        used = {step.op for steps in chain.calls for step in steps}
        assert set(ops) & used  # one operator twice is a chain of its own
        whole += set(ops) <= used
        right = run_chain(chain)
        assert judge_chain(chain, right).verdict in (Verdict.PASS, Verdict.UNDEFINED)
        assert any(right.outputs) or right.states
    assert whole > 100


def test_the_same_chains_every_time() -> None:
    ops = ("aten.mul.Tensor", "aten.relu.default")
    names = [[chain.name for chain in chains_for(ops, EXAMPLES, 150)] for _ in range(2)]
    assert names[0] == names[1]


def test_a_fault_is_given_its_own_records() -> None:
    fault = MUTANTS[0]
    assert records_of(fault) == (part_faults.Step, part_faults.Ref)


def test_tensors_of_a_chain_are_never_written() -> None:
    buffer, value = draw(3, 4), draw(3, 4) + 1
    kept = buffer.clone()
    chain = chain_of("write", [Step("aten.copy_.default", (buffer, value), {})])
    assert chain is not None
    assert run_chain(chain).states[0].equal(value)
    assert buffer.equal(kept)


def test_state_is_carried_and_results_are_held() -> None:
    buffer, x = torch.zeros(2), torch.tensor([1.0, 2.0])
    steps = [Step("aten.add_.Tensor", (buffer, x), {}), Step("aten.clone.default", (buffer,), {})]
    chain = chain_of("twice", steps, steps)
    assert chain is not None
    right = run_chain(chain)
    assert [entry.tolist() for outputs in right.outputs for entry in outputs] == [[1.0, 2.0], [2.0, 4.0]]  # type: ignore[attr-defined]
    assert right.states[0].tolist() == [2.0, 4.0]


def test_views_share_memory_in_float64_too() -> None:
    """A write through a view changes what a read of the base gives, and its bound: judged, not only compared."""
    base, x = draw(4, 6), draw(2, 6)
    steps = [
        Step("aten.slice.Tensor", (base, 0, 1, 3), {}), Step("aten.exp.default", (x,), {}),
        Step("aten.copy_.default", (Ref(0), Ref(1)), {}), Step("aten.sum.dim_IntList", (base, [0]), {}),
    ]  # fmt: skip
    chain = chain_of("through a view", steps)
    assert chain is not None
    other = _other_order(chain)
    assert judge_chain(chain, other).verdict is Verdict.PASS
    lost = run_fault(chain, PartFault("lost", (), _without_write))
    assert judge_chain(chain, lost).verdict is Verdict.FAIL


def right_of(step: Step, results: list[Any]) -> Any:
    args = [filled(value, results) for value in step.args]
    return overload_named(step.op)(*args, **step.kwargs)


def _without_write(steps: list[Any]) -> list[Any]:
    results: list[Any] = []
    for step in steps:
        results.append(results[0].clone() if step.op == "aten.copy_.default" else right_of(step, results))
    return results


def _other_order(chain: Chain) -> Any:
    def apply(steps: list[Any]) -> list[Any]:
        results: list[Any] = []
        for step in steps:
            if step.op == "aten.exp.default":
                results.append(torch.exp(step.args[0].double()).float())
            elif step.op == "aten.sum.dim_IntList":
                results.append(step.args[0].flip(0).sum(0))
            else:
                results.append(right_of(step, results))
        return results

    return run_fault(chain, PartFault("other", (), apply))


def test_what_cannot_be_followed_is_undefined() -> None:
    """Memory seen in two dtypes has no bound; the same results still pass."""
    x = torch.zeros(4)
    chain = chain_of(
        "bits", [Step("aten.relu.default", (x,), {}), Step("aten.relu.default", (x.view(torch.int32),), {})]
    )
    assert chain is not None
    right = run_chain(chain)
    assert judge_chain(chain, right).verdict is Verdict.PASS
    other = type(right)(((right.outputs[0][0], right.outputs[0][1] + 1),), ())  # type: ignore[operator]
    assert judge_chain(chain, other).verdict is Verdict.UNDEFINED
