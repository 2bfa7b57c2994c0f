"""Disjoint matches in order of priority, without cycles."""

from __future__ import annotations

import pytest

from support.text_graph import block, chosen, parse_graph, regions
from tapestry.backends.rules import AnyOp, Match, Pattern, any_, largest_first, op, optional, select
from tapestry.errors import UsageError
from tapestry.runtime.device import DeviceInfo

ANY = AnyOp(lambda call, info: None)


def match(*nodes: str) -> Match:
    return Match(nodes, {}, ANY)


CHAIN = """
    x: f32[2,2]
    a = aten.mm.default(x, x)
    b = aten.relu.default(a)
    c = aten.mm.default(b, x)
    return c
"""


def test_the_first_of_two_that_overlap_is_taken() -> None:
    assert chosen(select(parse_graph(CHAIN), [match("a", "b"), match("b", "c"), match("c")])) == block("""
        a b
        c
        not b c: b is in the region of a already
    """)


def test_the_largest_first(info: DeviceInfo) -> None:
    graph = parse_graph(CHAIN)
    found = list(Pattern(optional(op("aten.relu", op("aten.mm", any_(), any_())))).matches(graph, info))
    assert regions(found) == "a\na b\nc"
    assert regions(select(graph, sorted(found, key=largest_first)).chosen) == "a b\nc"


CROSSED = """
    x: f32[2]
    a = aten.relu.default(x)
    b = aten.neg.default(x)
    c = aten.exp.default(a)
    d = aten.sin.default(b)
    return c, d
"""


def test_regions_that_would_wait_for_each_other_are_not_both_taken() -> None:
    assert chosen(select(parse_graph(CROSSED), [match("a", "d"), match("b", "c"), match("b")])) == block("""
        a d
        b
        not b c: makes a cycle: a path from the region leads through d back into c
    """)


def test_a_cycle_through_calls_between() -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        o = aten.exp.default(a)
        b = aten.neg.default(o)
        return b
    """
    selection = select(parse_graph(text), [match("a", "b")])
    assert selection.chosen == ()
    assert [entry.reason for entry in selection.left_out] == [
        "makes a cycle: a path from the region leads through o back into b"
    ]


def test_a_cycle_through_the_order_of_random_calls() -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        r = aten.bernoulli.default(a)
        s = aten.rand.default([2])
        b = aten.neg.default(s)
        return b, r
    """
    selection = select(parse_graph(text), [match("a", "b")])
    assert selection.chosen == ()
    assert [entry.reason for entry in selection.left_out] == [
        "makes a cycle: a path from the region leads through s back into b"
    ]


def test_a_match_of_another_graph() -> None:
    with pytest.raises(UsageError, match="expected matches of this graph, got one with the node 'q'"):
        select(parse_graph(CHAIN), [match("a", "q")])
