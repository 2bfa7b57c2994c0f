"""Patterns over the settings of operators: what stands together within the first chains, and which faults it shows."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.part_faults import MUTANTS, PartFault
from tapestry.numerics import Verdict
from tapestry.program.serial import overload_named
from tapestry.suite.composition.chains import Chain, Ref, Step, chains_for, judge_chain, run_fault
from tapestry.suite.composition.editing import refs_of
from tapestry.suite.composition.interposed import apart, instances
from tapestry.suite.composition.linking import as_step
from tapestry.suite.composition.patterns import gives_several, items, picks, trios
from tapestry.suite.composition.settings import menu_of
from tapestry.suite.composition.trial import chain_of, results_of
from tapestry.suite.variants.call import OpCall

#: Chains within which the patterns of all kinds have to come.
EARLY = 1500


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def call(op: str, *args: object, **kwargs: object) -> OpCall:
    return OpCall(overload_named(op), args, kwargs)


EXAMPLES: dict[str, list[OpCall]] = {
    "aten.mul.Tensor": [call("aten.mul.Tensor", draw(3, 5), draw(3, 5))],
    "aten.sub.Tensor": [call("aten.sub.Tensor", draw(3, 5), draw(3, 5))],
    "aten.div.Tensor": [call("aten.div.Tensor", draw(3, 5), draw(3, 5))],
    "aten.amax.default": [call("aten.amax.default", draw(3, 5), [-1])],
    "aten.sum.dim_IntList": [call("aten.sum.dim_IntList", draw(3, 5), [1])],
    "aten.mean.dim": [call("aten.mean.dim", draw(3, 5), [1]), call("aten.mean.dim", draw(2, 3, 4), [0, 1])],
    "aten.abs.default": [call("aten.abs.default", draw(3, 5))],
    "aten.exp.default": [call("aten.exp.default", draw(3, 5))],
    "aten.log.default": [call("aten.log.default", draw(3, 5).abs() + 1)],
    "aten.neg.default": [call("aten.neg.default", draw(3, 5))],
    "aten.gelu.default": [call("aten.gelu.default", draw(3, 5))],
    "aten.relu.default": [call("aten.relu.default", draw(3, 5))],
    "aten.tanh.default": [call("aten.tanh.default", draw(3, 5))],
    "aten.sigmoid.default": [call("aten.sigmoid.default", draw(3, 5))],
    "aten.split.Tensor": [call("aten.split.Tensor", draw(6, 4), 2)],
    "aten.var_mean.correction": [call("aten.var_mean.correction", draw(6, 4), [1], correction=1)],
    "aten.transpose.int": [
        call("aten.transpose.int", draw(3, 3), 0, 1), call("aten.transpose.int", draw(2, 2, 2), 0, 1),
    ],
    "aten.permute.default": [call("aten.permute.default", draw(2, 3, 4), [1, 2, 0])],
    "aten.slice.Tensor": [call("aten.slice.Tensor", draw(12, 4), 0, 1, 12, 2)],
    "aten.cumsum.default": [call("aten.cumsum.default", draw(3, 5), 1)],
    "aten.flip.default": [call("aten.flip.default", draw(3, 5), [0])],
}  # fmt: skip


def early(*ops: str) -> list[Chain]:
    return list(chains_for(ops, {op: EXAMPLES[op] for op in ops}, EARLY))


def test_settings_run_and_differ() -> None:
    menu = menu_of({op: EXAMPLES[op] for op in EXAMPLES})
    assert set(menu) == set(EXAMPLES)
    for op, settings in menu.items():
        assert all(results_of((as_step(entry),)) is not None for calls in settings for entry in calls), op
    sums = [(as_step(calls[0]).args[1:], as_step(calls[0]).kwargs) for calls in menu["aten.sum.dim_IntList"]]
    assert ([1],) in [args for args, _ in sums]
    assert ([1], True) in [args for args, _ in sums]
    assert any(args[:1] == ([0, 1],) for args, _ in sums)
    turns = [as_step(calls[0]).args[1] for calls in menu["aten.permute.default"]]
    assert [2, 0, 1] in turns
    assert [0, 2, 1] in turns
    seconds = [as_step(calls[0]).args[1] for calls in menu["aten.sub.Tensor"]]
    assert any(isinstance(entry, float) for entry in seconds)
    assert any(isinstance(entry, torch.Tensor) and entry.dim() == 1 for entry in seconds)
    assert any(as_step(calls[0]).kwargs for calls in menu["aten.sub.Tensor"])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_picks_take_each_of_every_count_first(counts: list[int]) -> None:
    first = list(islice(picks(counts), max(counts)))
    for place, count in enumerate(counts):
        assert {choice[place] for choice in first} == set(range(count))
    whole = list(picks(counts, 10_000))
    assert len(set(whole)) == len(whole)
    if len(counts) == 2:
        assert len(whole) == counts[0] * counts[1]


def test_trios_hold_every_operator() -> None:
    assert trios(["a"]) == [("a", "a", "a")]
    assert len(trios(["a", "b"])) == 6
    assert len(trios(["a", "b", "c"])) == 6


def test_a_diamond_in_both_orders_with_what_is_kept() -> None:
    """sub(m, amax(m, dims, True)) and sub(amax(m, dims, True), m), over other dimensions than the last, too."""
    found: set[tuple[bool, str]] = set()
    for chain in early("aten.mul.Tensor", "aten.amax.default", "aten.sub.Tensor"):
        for step in chain.steps:
            refs = refs_of(step)
            ops = [chain.steps[ref.index].op for ref in refs]
            if step.op != "aten.sub.Tensor" or sorted(ops) != ["aten.amax.default", "aten.mul.Tensor"]:
                continue
            largest = chain.steps[refs[ops.index("aten.amax.default")].index]
            if largest.args[2:] == (True,) and largest.args[0] == refs[ops.index("aten.mul.Tensor")]:
                found.add((ops[0] == "aten.mul.Tensor", str(largest.args[1])))
    assert {order for order, _ in found} == {True, False}
    assert {"[-1]", "[0]", "[0, 1]"} <= {dims for _, dims in found}


def test_first_middle_and_last_items_are_read() -> None:
    read = {ref.item for chain in early("aten.split.Tensor", "aten.neg.default") for step in chain.steps
            for ref in refs_of(step) if chain.steps[ref.index].op == "aten.split.Tensor"}  # fmt: skip
    assert {0, 1, 2} <= read
    assert gives_several("aten.split.Tensor")
    assert not gives_several("aten.neg.default")


def test_all_items_leave() -> None:
    steps = (Step("aten.split.Tensor", (draw(6, 4), 2), {}), Step("aten.neg.default", (Ref(0, 0),), {}))
    named = dict(reversed(list(items(steps))))
    chain = chain_of("items", named["all items are read"])
    assert chain is not None
    assert len(chain.outputs[0]) == 4
    assert refs_of(named["two items together"][-1]) == [Ref(0, 0), Ref(0, 2)]


def test_another_instance_is_on_tensors_of_its_own() -> None:
    x = draw(3, 5)
    steps = (Step("aten.exp.default", (x,), {}), Step("aten.mul.Tensor", (Ref(0), x), {}))
    own = apart(steps, 1, Random(0))
    assert own is not None
    assert not refs_of(own)
    assert all(isinstance(arg, torch.Tensor) and arg.shape == x.shape and arg is not x for arg in own.args)
    places = {
        (index, step.op)
        for name, found in instances(steps, Random(0)) if name == "another instance between"
        for index, step in enumerate(found) if not refs_of(step) and len(found) == 3
    }  # fmt: skip
    assert {(0, "aten.mul.Tensor"), (1, "aten.exp.default"), (1, "aten.mul.Tensor"), (2, "aten.exp.default")} <= places


NEW = [fault for fault in MUTANTS if all(op in EXAMPLES for op in fault.ops)]


@pytest.mark.parametrize("fault", NEW, ids=lambda fault: fault.name)
def test_a_fault_of_a_setting_shows_early(fault: PartFault) -> None:
    for chain in early(*fault.ops):
        try:
            got = run_fault(chain, fault)
        except (RuntimeError, ValueError, IndexError, TypeError):
            continue  # a fault that does not foresee a chain has not shown itself
        if judge_chain(chain, got).verdict is Verdict.FAIL:
            return
    pytest.fail(f"{fault.name} is alive behind {EARLY} chains")
