"""Every way to cut a program gives the same results; cuts are acyclic, convex and as few as can be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.eager_device import Bench, nothing
from support.programs import wired
from tapestry.errors import UsageError
from tapestry.migration.levels import cut, merge_depths, refined
from tapestry.migration.merging import hull
from tapestry.placement.grouping import group_by_label
from tapestry.placement.placement import place_on
from tapestry.placement.plan import plan_steps
from tapestry.program.capture import capture
from tapestry.program.graph import operands
from tapestry.program.program import Program
from tapestry.program.region import path_outside, quotient_order


class Small(torch.nn.Module):
    """State, a constant, a view, two results, a diamond: seven nodes or so."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.weight = torch.nn.Parameter(torch.randn(3, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left = x @ self.weight
        right = (x * 2).t()
        self.total += left.sum(0)
        return left + right.relu(), self.total * 2


@cache
def small() -> tuple[Bench, torch.Tensor]:
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    return Bench(capture(Small(), (x,), {})), x


def results(made: Bench, labels: Callable[[Program], Mapping[str, object]], x: torch.Tensor) -> list[torch.Tensor]:
    with made.build(labels) as executable:  # type: ignore[arg-type]
        found = [leaf for _ in range(2) for leaf in executable(x)]
        found += [tensor.clone() for tensor in executable.state.values()]
    assert made.device.stats().buffers == 0
    return found


def equal(got: list[torch.Tensor], want: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


def test_every_subset_of_nodes_as_single_regions() -> None:
    made, x = small()
    nodes = made.program.placeable
    assert 6 <= len(nodes) <= 8
    want = results(made, nothing, x)
    for count in range(len(nodes) + 1):
        for subset in itertools.combinations(nodes, count):
            assert equal(results(made, lambda program, subset=subset: {n: n for n in subset}, x), want)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=20, max_size=20))
def test_random_regions(labels: list[int]) -> None:
    made, x = small()
    chosen = {node: label for node, label in zip(made.program.placeable, labels, strict=False) if label}
    assert equal(results(made, lambda program: chosen, x), results(made, nothing, x))


WIRES = st.integers(2, 8).flatmap(
    lambda count: st.tuples(*[st.tuples(st.integers(0, place), st.integers(0, place)) for place in range(count)])
)


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Program, dict[str, int]]:
    wires = draw(WIRES)
    random = draw(st.frozensets(st.integers(0, len(wires) - 1), max_size=2))
    program = wired(wires, random)
    labels = {node: draw(st.integers(0, 2)) for node in program.placeable}
    return program, {node: label for node, label in labels.items() if label}


@settings(max_examples=200, deadline=None)
@given(labelled())
def test_groups_are_convex_acyclic_and_of_one_label(drawn: tuple[Program, dict[str, int]]) -> None:
    program, labels = drawn
    groups = group_by_label(program, labels)
    assert sorted(node for group in groups for node in group) == sorted(labels)
    for group in groups:
        assert len({labels[node] for node in group}) == 1
        assert path_outside(program, set(group)) is None
    quotient_order(program, groups)


@settings(max_examples=200, deadline=None)
@given(labelled())
def test_one_label_gives_as_few_regions_as_can_be(drawn: tuple[Program, dict[str, int]]) -> None:
    program, labels = drawn
    chosen = list(labels)[:6]
    groups = group_by_label(program, dict.fromkeys(chosen, 0))
    fewest = min(
        (len(parts) for parts in partitions(chosen) if fits(program, parts)),
        default=0,
    )
    assert len(groups) == fewest


def partitions(nodes: list[str]) -> Iterator[list[list[str]]]:
    """All ways to cut nodes into groups."""
    if not nodes:
        yield []
        return
    first, *rest = nodes
    for parts in partitions(rest):
        yield [[first], *parts]
        for place, part in enumerate(parts):
            yield [*parts[:place], [first, *part], *parts[place + 1 :]]


def fits(program: Program, parts: list[list[str]]) -> bool:
    try:
        quotient_order(program, parts)
    except UsageError:
        return False
    return True


@settings(max_examples=150, deadline=None)
@given(labelled(), st.data())
def test_refining_keeps_the_other_regions(drawn: tuple[Program, dict[str, int]], data: st.DataObject) -> None:
    program, labels = drawn
    groups = group_by_label(program, labels)
    assert set(refined(program, groups, set())) == set(groups)
    apart = data.draw(st.sets(st.sampled_from(sorted(labels)))) if labels else set()
    finer = refined(program, groups, apart)
    assert {(node,) for node in apart} <= set(finer)
    for part in finer:
        assert any(set(part) <= set(group) for group in groups)
    quotient_order(program, finer)


@settings(max_examples=200, deadline=None)
@given(labelled(), st.data())
def test_the_hull_is_the_smallest_convex_set(drawn: tuple[Program, dict[str, int]], data: st.DataObject) -> None:
    program, _ = drawn
    ids = [node.id for node in program.nodes]
    chosen = data.draw(st.sets(st.sampled_from(ids), min_size=1, max_size=3))
    found = set(hull(program, sorted(chosen, key=ids.index)))
    convex = (
        [
            set(subset)
            for count in range(len(ids) + 1)
            for subset in itertools.combinations(ids, count)
            if chosen <= set(subset) and path_outside(program, set(subset)) is None
        ]
        if len(ids) <= 8
        else []
    )
    assert path_outside(program, found) is None
    if convex:
        assert found == min(convex, key=len)


@settings(max_examples=150, deadline=None)
@given(labelled())
def test_the_last_level_is_the_fewest_regions(drawn: tuple[Program, dict[str, int]]) -> None:
    program, _ = drawn
    moved = program.placeable
    depths = merge_depths(program, moved, lambda node: "")
    fewest = len(group_by_label(program, dict.fromkeys(moved, 0)))
    if fewest < len(moved):
        assert depths[-1] == 0
        assert len(cut(program, moved, 0, lambda node: "")) == fewest
    else:
        assert depths == []


def test_steps_run_in_an_order_that_respects_every_edge() -> None:
    made, _ = small()
    program = made.program
    options = made.backend.options()[0]
    regions = group_by_label(program, {node: place % 2 for place, node in enumerate(program.placeable)})
    seen: set[str] = set(program.folded)
    for step in plan_steps(program, place_on(program, regions, made.backend, options, "mock:0")):
        nodes = getattr(step, "nodes", None) or step.region.nodes  # type: ignore[union-attr]
        for node in nodes:
            assert {ref.name for ref in operands(program.by_id[node].call) if ref.name in program.by_id} <= seen | set(
                nodes
            )
        seen |= set(nodes)


def test_a_cycle_between_regions_is_refused() -> None:
    program = wired(((0, 0), (1, 1), (2, 2)))
    nodes = program.placeable
    made, _ = small()
    placement = place_on(
        program, [[nodes[0], nodes[-1]], nodes[1:-1]], made.backend, made.backend.options()[0], "mock:0"
    )
    with pytest.raises(UsageError, match=r"cycle|convex"):
        plan_steps(program, placement)
