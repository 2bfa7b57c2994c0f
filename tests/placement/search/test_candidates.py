"""Which regions a search chooses from: graph text and rules in, candidates out."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

import pytest
import torch

from support.rule_backend import INFO, Precise, RuleBackend
from support.text_graph import block, parse_program
from support.written_programs import SPEC, call, program_of
from tapestry.backends.rules import GraphIndex, Grow, Ops, Pattern, Whole, any_, op
from tapestry.placement.search.blocks import convex_parts, halves, module_blocks
from tapestry.placement.search.candidates import SOURCE, Bounds, Candidates, Way, candidates_of, ways_of
from tapestry.program.graph import Ref
from tapestry.program.program import Node, Program, Source
from tapestry.program.region import path_outside
from tapestry.runtime.device import DeviceInfo

UNARY = Ops({"aten.relu", "aten.neg", "aten.add", "aten.exp"})
CHAIN = """
    x: f32[2]
    a = aten.relu.default(x)
    b = aten.neg.default(a)
    o = aten.tan.default(b)
    c = aten.add.Tensor(o, a)
    d = aten.exp.default(c)
    return d
"""


def found(program: Program, *backends: RuleBackend) -> Candidates:
    return candidates_of(program, ways_of(backends, [INFO]))


def lines(candidates: Candidates, why: str = "") -> str:
    return "\n".join(
        f"{entry.kind.backend}: {' '.join(entry.nodes)}"
        for entry in candidates.entries
        if not entry.on_source and (not why or entry.why == why)
    )


def test_every_node_has_a_candidate_on_the_source() -> None:
    candidates = found(parse_program(CHAIN))
    assert [entry.nodes for entry in candidates.entries] == [("a",), ("b",), ("o",), ("c",), ("d",)]
    assert {entry.kind for entry in candidates.entries} == {SOURCE}


def test_folded_nodes_are_in_no_candidate_and_random_ones_stay_on_the_source() -> None:
    program = parse_program("""
        x: f32[2]
        w: param f32[2]
        f = aten.neg.default(w)
        r = aten.bernoulli.default(x)
        a = aten.add.Tensor(r, f)
        return a
    """)
    candidates = found(program, RuleBackend("any", Ops({"aten.neg", "aten.bernoulli", "aten.add"})))
    assert [entry.nodes for entry in candidates.entries if entry.on_source] == [("r",), ("a",)]
    assert lines(candidates) == "any: a"


def test_a_backend_that_fuses_gets_the_whole_around_what_it_does_not_take() -> None:
    """b and a lie before the operator that is not taken, c and d behind it."""
    assert lines(found(parse_program(CHAIN), RuleBackend("any", UNARY)), "whole") == "any: a b\nany: c d"


def test_a_backend_that_does_not_fuse_gets_what_its_rules_match_only() -> None:
    backend = RuleBackend(
        "kernels", Pattern(op("aten.neg", op("aten.relu", any_("x"))), name="pair"), UNARY, fuses=False
    )
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        b = aten.neg.default(a)
        c = aten.exp.default(b)
        return c
    """
    assert lines(found(parse_program(text), backend)) == block("""
        kernels: a
        kernels: b
        kernels: c
        kernels: a b
    """)


def test_growth_gives_its_stages_and_a_whole_rule_its_regions() -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        b = aten.neg.default(a)
        c = aten.exp.default(b)
        return c
    """
    grow = Grow(op("aten.relu", any_("x")), Ops({"aten.neg", "aten.exp"}), name="grown")
    grown = found(parse_program(text), RuleBackend("fused", grow, fuses=False))
    assert lines(grown, "grown") == "fused: a b c\nfused: a b"
    whole = found(parse_program(text), RuleBackend("graph", Whole(UNARY), fuses=False))
    assert lines(whole) == "graph: a\ngraph: b\ngraph: c\ngraph: a b c"


def test_each_option_and_each_device_is_a_way_of_its_own() -> None:
    backend = RuleBackend("any", UNARY, options=(Precise(), Precise("float16")))
    other = DeviceInfo("mock", "mock:1", "another", "mock-2")
    ways = ways_of([backend], [INFO, other])
    candidates = candidates_of(parse_program(CHAIN), ways)
    alone = [(entry.options, entry.kind.device) for entry in candidates.entries if entry.nodes == ("a",)][1:]
    assert alone == [
        ("precision=float32", "mock:0"), ("precision=float16", "mock:0"),
        ("precision=float32", "mock:1"), ("precision=float16", "mock:1"),
    ]  # fmt: skip
    for entry in candidates.entries:
        if not entry.on_source:
            way = candidates.way(entry)
            assert (way.kind, str(way.options)) == (entry.kind, entry.options)


def test_a_backend_of_another_kind_of_device_is_no_way() -> None:
    host = DeviceInfo("host", "cpu", "a processor", "host-1")
    assert ways_of([RuleBackend("any", UNARY)], [host]) == ()


# -------------------------------------------------------------------------------------------------------- node sets


def layered(layers: int, per_layer: int = 4) -> Program:
    """A chain of equal layers, each a module of its own, with one wide residual in each."""
    calls, sources, last = [], [], Ref("input:x")
    for layer in range(layers):
        start = last
        for place in range(per_layer):
            name = f"l{layer}.{place}"
            end = place == per_layer - 1
            args = (last, start) if end else (last,)
            target = torch.ops.aten.add.Tensor if end else torch.ops.aten.relu.default
            calls.append(call(name, target, *args))
            sources.append(f"layers.{layer}.{'tail' if end else 'body'}")
            last = Ref(name)
    program = program_of(calls, [last])
    nodes = tuple(
        Node(entry.call, entry.origin, Source("", 0, "", module, ""))
        for entry, module in zip(program.nodes, sources, strict=True)
    )
    return dataclasses.replace(program, nodes=nodes)


def test_modules_give_their_blocks_from_the_leaves_up_each_once() -> None:
    program = layered(2)
    blocks = list(module_blocks(program, GraphIndex.of(program), [node.id for node in program.nodes]))
    assert [" ".join(nodes) for nodes in blocks] == [
        "l0.0 l0.1 l0.2", "l1.0 l1.1 l1.2",
        "l0.0 l0.1 l0.2 l0.3", "l1.0 l1.1 l1.2 l1.3",
        "l0.0 l0.1 l0.2 l0.3 l1.0 l1.1 l1.2 l1.3",
    ]  # fmt: skip


def test_halves_are_two_four_and_eight_pieces() -> None:
    nodes = tuple("abcdefghij")
    assert ["".join(half) for half in halves(nodes)] == [
        "abcde", "fghij", "ab", "cde", "fg", "hij", "a", "b", "c", "de", "f", "g", "h", "ij",
    ]  # fmt: skip
    assert ["".join(half) for half in halves(tuple("abc"))] == ["a", "bc"]
    assert list(halves(("a",))) == []


def test_every_candidate_is_convex() -> None:
    program = parse_program("""
        x: f32[2]
        a = aten.relu.default(x)
        p = aten.tan.default(a)
        b = aten.add.Tensor(a, p)
        q = aten.tan.default(b)
        c = aten.add.Tensor(q, a)
        d = aten.neg.default(x)
        e = aten.add.Tensor(d, c)
        return e, b
    """)
    index = GraphIndex.of(program)
    parts = convex_parts(index, ["a", "b", "c", "d", "e"])
    assert parts == [("a", "d"), ("b",), ("c", "e")]
    for entry in found(program, RuleBackend("any", UNARY)).entries:
        assert path_outside(program, set(entry.nodes)) is None


# ------------------------------------------------------------------------------------------------------------ bounds


def test_growth_is_thinned_above_the_small_stages() -> None:
    last, calls = Ref("input:x"), []
    for place in range(40):
        calls.append(call(f"n{place}", torch.ops.aten.relu.default, last))
        last = Ref(f"n{place}")
    program = program_of(calls, [last])
    grow = Grow(op("aten.relu", any_("x")), Ops({"aten.relu"}), name="grown")
    ways = [Way(RuleBackend("fused", grow, fuses=False), Precise(), INFO)]
    sizes = [len(entry.nodes) for entry in candidates_of(program, ways).entries if entry.nodes[0] == "n0"][2:]
    assert sizes == [40, 20, 10, 8, 7, 6, 5, 4, 3, 2]


def test_at_most_so_many_sets_begin_at_one_node_and_what_is_left_out_is_counted() -> None:
    program = layered(8)
    ways = [Way(RuleBackend("any", UNARY), Precise(), INFO)]
    everything = candidates_of(program, ways)
    assert everything.left_out == ()
    bounded = candidates_of(program, ways, Bounds(per_node=2))
    starts = [entry.nodes[0] for entry in bounded.entries if not entry.on_source and len(entry.nodes) > 1]
    assert max(starts.count(name) for name in starts) == 2
    (left_out,) = bounded.left_out
    assert left_out.count == len(everything.entries) - len(bounded.entries) > 0
    kept = [len(entry.nodes) for entry in bounded.entries if entry.nodes[0] == "l0.0" and len(entry.nodes) > 1]
    assert sorted(kept) == [16, 32]


@pytest.mark.parametrize("make", [layered, lambda layers: program_of_tiny(layers * 4)], ids=["modules", "flat"])
def test_work_grows_in_proportion_to_the_nodes(make: Callable[[int], Program]) -> None:
    """Counted in calls of functions, which no load of the machine changes: 4 times the nodes, 5 times the work."""
    backend = RuleBackend("any", UNARY, Grow(op("aten.relu", any_("x")), UNARY, name="grown"))
    few, many = (work(make(layers), backend) for layers in (40, 160))
    assert many[1] <= 5 * few[1]
    assert many[0] <= 4.2 * few[0]


def program_of_tiny(count: int) -> Program:
    last, calls = Ref("input:x"), []
    for place in range(count):
        calls.append(call(f"n{place}", torch.ops.aten.relu.default, last, outputs=(SPEC,)))
        last = Ref(f"n{place}")
    return program_of(calls, [last])


def work(program: Program, backend: RuleBackend) -> tuple[int, int]:
    """How many candidates there are, and how many Python functions are called to find them."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        candidates = candidates_of(program, [Way(backend, Precise(), INFO)])
    finally:
        sys.setprofile(None)
    return len(candidates.entries), calls
