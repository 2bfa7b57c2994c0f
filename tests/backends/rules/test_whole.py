"""Maximal regions: graph text in, regions out."""

from __future__ import annotations

from support.text_graph import block, parse_graph, parse_program, regions
from tapestry.backends.rules import Ops, Whole, at_least
from tapestry.runtime.device import DeviceInfo

RULE = Whole(Ops({"aten.relu", "aten.neg", "aten.add"}))


def test_all_calls_are_one_region(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        b = aten.neg.default(x)
        c = aten.add.Tensor(a, b)
        return a, c
    """
    assert regions(RULE.matches(parse_program(text), info)) == "a b c"


def test_a_call_that_is_not_taken_cuts_only_what_depends_on_it(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        o = aten.exp.default(a)
        b = aten.neg.default(a)
        c = aten.add.Tensor(b, o)
        d = aten.neg.default(b)
        return c, d
    """
    assert regions(RULE.matches(parse_graph(text), info)) == block("""
        a b d
        c
    """)


def test_regions_beside_each_other_do_not_make_a_cycle(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        y: f32[2]
        a = aten.relu.default(x)
        p = aten.exp.default(a)
        b = aten.neg.default(p)
        c = aten.relu.default(y)
        q = aten.exp.default(c)
        d = aten.neg.default(q)
        return b, d
    """
    assert regions(RULE.matches(parse_graph(text), info)) == block("""
        a c
        b d
    """)


def test_the_order_of_random_calls_cuts_too(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        r = aten.bernoulli.default(a)
        s = aten.rand.default([2])
        b = aten.add.Tensor(x, s)
        return b, r
    """
    assert regions(RULE.matches(parse_program(text), info)) == "a\nb"


def test_folded_calls_are_left_out(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        w: param f32[2]
        f = aten.neg.default(w)
        a = aten.add.Tensor(x, f)
        return a
    """
    assert regions(RULE.matches(parse_program(text), info)) == "a"


def test_when_sees_each_region(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        b = aten.relu.default(a)
        o = aten.exp.default(b)
        c = aten.neg.default(o)
        return c
    """
    assert regions(Whole(RULE.ops, when=at_least(2)).matches(parse_graph(text), info)) == "a b"


def test_calls_that_are_not_allowed_cut(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        b = aten.relu.default(a)
        c = aten.neg.default(b)
        return c
    """
    matches = RULE.matches(parse_graph(text), info, lambda call: "wrong here" if call.name == "b" else None)
    assert regions(matches) == "a\nc"
