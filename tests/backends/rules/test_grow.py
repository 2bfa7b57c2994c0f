"""Growth along post-dominators: graph text in, regions out."""

from __future__ import annotations

import pytest

from support.text_graph import block, parse_graph, regions
from tapestry.backends.rules import Grow, Ops, Pattern, RuleError, any_, any_call, at_least, either, op, param
from tapestry.runtime.device import DeviceInfo

ELEMENTWISE = Ops({"aten.relu", "aten.neg", "aten.exp", "aten.add", "aten.mul"})


def grown(text: str, info: DeviceInfo, stop: Ops | None = None) -> str:
    """The regions grown from each ``mm``."""
    return regions(Grow(any_call("aten.mm"), ELEMENTWISE, stop).matches(parse_graph(text), info))


def test_a_chain_is_taken_step_by_step_the_largest_first(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        a = aten.mm.default(x, x)
        b = aten.relu.default(a)
        c = aten.neg.default(b)
        d = aten.mm.default(c, x)
        return d
    """
    assert grown(text, info) == block("""
        a b c
        a b
        a
        d
    """)


def test_a_diamond_is_taken_whole_or_not_at_all(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        a = aten.mm.default(x, x)
        b = aten.relu.default(a)
        c = aten.neg.default(a)
        d = aten.add.Tensor(b, c)
        e = aten.exp.default(d)
        return e
    """
    assert grown(text, info) == block("""
        a b c d e
        a b c d
        a
    """)


def test_a_diamond_with_a_call_that_is_not_followed(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        a = aten.mm.default(x, x)
        b = aten.relu.default(a)
        c = aten.cumsum.default(a, 0)
        d = aten.add.Tensor(b, c)
        return d
    """
    assert grown(text, info) == "a"


def test_nested_diamonds_and_skips(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        a = aten.mm.default(x, x)
        b = aten.relu.default(a)
        c = aten.neg.default(b)
        d = aten.add.Tensor(b, c)
        e = aten.mul.Tensor(a, d)
        f = aten.exp.default(e)
        g = aten.mul.Tensor(f, x)
        return g
    """
    assert grown(text, info) == block("""
        a b c d e f g
        a b c d e f
        a b c d e
        a
    """)


def test_growth_ends_where_a_value_leaves_the_graph(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        a = aten.mm.default(x, x)
        b = aten.relu.default(a)
        c = aten.neg.default(b)
        return b, c
    """
    assert grown(text, info) == "a b\na"


def test_growth_ends_where_paths_never_meet(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        a = aten.mm.default(x, x)
        b = aten.relu.default(a)
        c = aten.neg.default(a)
        return b, c
    """
    assert grown(text, info) == "a"


def test_a_value_that_nothing_reads_ends_growth(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        a = aten.mm.default(x, x)
        b = aten.relu.default(a)
        c = aten.neg.default(a)
        return b
    """
    assert grown(text, info) == "a"


def test_stop_is_taken_as_the_last_call(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        a = aten.mm.default(x, x)
        b = aten.relu.default(a)
        c = aten.sum.default(b)
        d = aten.neg.default(c)
        return d
    """
    assert grown(text, info) == "a b\na"
    assert grown(text, info, stop=Ops({"aten.sum"})) == "a b c\na b\na"
    assert grown(text, info, stop=Ops({"aten.relu"})) == "a b\na"


def test_a_seed_that_stop_takes_still_grows(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        a = aten.mm.default(x, x)
        b = aten.relu.default(a)
        c = aten.mm.default(b, x)
        d = aten.relu.default(c)
        return d
    """
    assert grown(text, info, stop=Ops({"aten.mm"})) == "a b c\na b\na\nc d\nc"


def test_stop_inside_a_diamond_is_not_taken(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        a = aten.mm.default(x, x)
        b = aten.sum.dim_IntList(a, [1], True)
        c = aten.add.Tensor(a, b)
        return c
    """
    assert grown(text, info, stop=Ops({"aten.sum"})) == "a"


def test_the_seed_is_a_pattern_with_captures(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        w: param f32[4,3]
        y = aten.linear.default(x, w)
        z = aten.relu.default(y)
        v = aten.linear.default(x, x)
        return z, v
    """
    rule = Grow(op("aten.linear", any_("x"), param("w"), either(param("b"), None)), ELEMENTWISE, when=at_least(2))
    assert regions(rule.matches(parse_graph(text), info)) == "y z | x=x w=w"


def test_follow_is_judged_call_by_call(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        a = aten.mm.default(x, x)
        b = aten.relu.default(a)
        c = aten.relu.default(b)
        return c
    """
    follow = Ops({"aten.relu"}, lambda call, info: "not c" if call.name == "c" else None)
    assert regions(Grow(any_call("aten.mm"), follow).matches(parse_graph(text), info)) == "a b\na"


def test_only_allowed_calls_are_grown_over(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        a = aten.mm.default(x, x)
        b = aten.relu.default(a)
        return b
    """
    rule = Grow(any_call("aten.mm"), ELEMENTWISE, stop=Ops({"aten.relu"}))
    matches = rule.matches(parse_graph(text), info, lambda call: "no" if call.name == "b" else None)
    assert regions(matches) == "a"


def test_a_seed_with_several_outputs_is_refused() -> None:
    relu = op("aten.relu", any_())
    with pytest.raises(RuleError, match="expected a seed with one output"):
        Grow(Pattern((op("aten.neg", relu), relu)), ELEMENTWISE)


def test_a_region_holds_no_more_calls_than_its_limit(info: DeviceInfo) -> None:
    lines = [f"n{place + 1} = aten.relu.default(n{place})" for place in range(6)]
    text = "\n".join(["x: f32[2,2]", "n0 = aten.mm.default(x, x)", *lines, "return n6"])
    rule = Grow(any_call("aten.mm"), ELEMENTWISE, limit=3)
    assert regions(rule.matches(parse_graph(text), info)) == "n0 n1 n2\nn0 n1\nn0"
    assert rule.explain(parse_graph(text), "n3", info) == ("growth from n0 ends at n2: a region holds at most 3 calls")
