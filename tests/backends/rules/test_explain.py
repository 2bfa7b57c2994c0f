"""Why a rule does not match at a node, in words."""

from __future__ import annotations

import pytest

from support.text_graph import parse_graph, parse_program
from tapestry.backends.rules import (
    AnyOp,
    Expression,
    Grow,
    Ops,
    Pattern,
    Rule,
    Whole,
    any_,
    any_call,
    at_least,
    attr,
    axis,
    either,
    op,
    param,
    rank,
)
from tapestry.errors import UsageError
from tapestry.runtime.device import DeviceInfo

MLP = """
    x: f32[2,3]
    u: f32[4,3]
    w: param f32[4,3]
    b: param f32[4]
    y = aten.linear.default(x, w, b)
    z = aten.gelu.default(y, approximate='tanh')
    n = aten.linear.default(x, u, b)
    m = aten.gelu.default(n)
    return z, m
"""

LINEAR = op("aten.linear", any_("x"), param("w"), param("b"))


@pytest.mark.parametrize(
    ("expression", "node", "reason"),
    [
        (op("aten.gelu", LINEAR, approximate="tanh"), "z", None),
        (op("aten.gelu", LINEAR, approximate="tanh"), "y", None),
        (op("aten.gelu", LINEAR), "z", "z: approximate is 'tanh', expected 'none'"),
        (op("aten.gelu", LINEAR), "m", "n: weight (u) is not a constant"),
        (op("aten.gelu", LINEAR), "n", "n: weight (u) is not a constant"),
        (op("aten.relu", LINEAR), "z", "no rule for aten.gelu.default"),
        (op("aten.relu", LINEAR), "y", "y leads to no aten.relu, which the pattern {label} ends with"),
        (op("aten.gelu", op("aten.mm", ...), ...), "m", "n is aten.linear.default, expected aten.mm"),
        (op("aten.linear", any_(), any_(), None), "y", "y: bias is b, expected None"),
        (op("aten.linear", any_("x"), any_("x"), ...), "y", "y: weight is w, but x is x already"),
        (op("aten.gelu", any_(), approximate=attr("a", lambda _: "never")), "z", "z: approximate is 'tanh': never"),
        (op("aten.gelu", any_(), approximate=either("erf", "none")), "z", "z: approximate is 'tanh', expected 'erf'"),
    ],
)
def test_first_mismatch(expression: Expression, node: str, reason: str | None, info: DeviceInfo) -> None:
    pattern = Pattern(expression)
    expected = reason.format(label=pattern.label) if reason else None
    assert pattern.explain(parse_program(MLP), node, info) == expected


def explained(text: str, rule: Rule, node: str, info: DeviceInfo) -> str | None:
    return rule.explain(parse_graph(text), node, info)


def test_only_what_the_node_leads_to_is_a_reason(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        w: param f32[2,2]
        b: param f32[2]
        a = aten.linear.default(x, w, b)
        c = aten.mm.default(a, w)
        d = aten.linear.default(c, w, b)
        e = aten.relu.default(d)
        return e
    """
    relu = Pattern(op("aten.relu", op("aten.linear", any_(), param(), either(param(), None))), name="end")
    assert explained(text, relu, "d", info) is None
    assert explained(text, relu, "a", info) == "a leads to no aten.relu, which the pattern end ends with"
    assert explained(text, relu, "c", info) == "no rule for aten.mm.default"


def test_a_match_that_leaves_the_node_out(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        b = aten.neg.default(a)
        c = aten.exp.default(a)
        return b, c
    """
    maybe = Pattern(op("aten.neg", either(op("aten.relu", any_()), any_())))
    assert explained(text, maybe, "b", info) is None
    assert explained(text, maybe, "a", info) == "the match of b leaves it out"


def test_a_value_that_something_outside_reads(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        b = aten.neg.default(a)
        c = aten.exp.default(a)
        return b, c
    """
    pattern = Pattern(op("aten.neg", op("aten.relu", any_())))
    assert explained(text, pattern, "b", info) == "value of a is also read by c"
    assert explained(text.replace("return b, c", "return b, a"), pattern, "b", info) == (
        "value of a is also a result of the graph"
    )


def test_a_cycle(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        o = aten.exp.default(a)
        b = aten.mul.Tensor(a, o)
        return b
    """
    relu = op("aten.relu", any_())
    pattern = Pattern((op("aten.mul", relu, any_()), relu))
    assert explained(text, pattern, "b", info) == "a path leaves at a and comes back through o into b: a cycle"


def test_an_operand_that_the_match_computes(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        b = aten.hypot.default(a, a)
        return b
    """
    pattern = Pattern(op("aten.hypot", op("aten.relu", any_()), any_("other")))
    assert explained(text, pattern, "b", info) == "operand other is a, which the match itself computes"


def test_calls_that_no_region_holds(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        w: param f32[2]
        f = aten.neg.default(w)
        r = aten.bernoulli.default(x)
        a = aten.relu.default(x)
        return f, r, a
    """
    rule = AnyOp(lambda call, info: None)
    assert explained(text, rule, "f", info) == "f is folded into a constant: a pattern takes it as param()"
    assert explained(text, rule, "r", info) == (
        "r stays on the source: random: its numbers come from the source's generator, in order"
    )
    assert explained(text, rule, "a", info) is None
    assert rule.explain(parse_graph(text), "a", info, lambda call: f"{call.name} is taken") == "a is taken"


def test_an_unknown_node(info: DeviceInfo) -> None:
    with pytest.raises(UsageError, match="expected the name of a node of the graph, got 'q'"):
        explained(MLP, AnyOp(lambda call, info: None), "q", info)


def test_constants_axes_lists_and_results(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        y: f32[2,3]
        s: param f32[] = 2
        a = aten.mul.Tensor(x, s)
        b = aten._softmax.default(x, 0, False)
        c = aten.cat.default([x, y])
        v, i = aten.max.dim(x, 1)
        d = aten.neg.default(i)
        return a, b, c, d
    """

    def reason(expression: Expression, node: str) -> str | None:
        return Pattern(expression).explain(parse_program(text), node, info)

    assert reason(op("aten.mul", any_(), 3), "a") == "a: other holds 2.0, expected 3"
    assert reason(op("aten.mul.Tensor", any_(), "k").ordered(), "a") == "a: other is s, expected 'k'"
    assert explained(text, Pattern(op("aten.mul", any_(), 3)), "a", info) == (
        "a: other (s) is not known to hold one number, expected 3"
    )
    assert reason(op("aten._softmax", any_(), axis(-1), False), "b") == "b: dim is 0 of 2 dimensions, expected -1"
    assert reason(op("aten.cat", [any_(), any_(), any_()]), "c") == "c: tensors is [x, y], expected a list of 3"
    assert reason(op("aten.neg", op("aten.max.dim", ...)), "d") == "d: self is result 1 of v, expected result 0"
    assert reason(op("aten.cat", attr()), "c") == "c: tensors is the tensor [x, y], expected an attribute"


def test_the_predicates_own_reason(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        a = aten.relu.default(x)
        return a
    """
    assert explained(text, Pattern(op("aten.relu", any_("x")), when=rank("x", 4)), "a", info) == (
        "x has rank 2, expected 4"
    )


def test_single_operators(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        a = aten.relu.default(x)
        return a
    """
    assert explained(text, Ops({"aten.relu"}), "a", info) is None
    assert explained(text, Ops({"aten.relu.default"}), "a", info) is None
    assert explained(text, Ops({"aten.rel"}), "a", info) == "no rule for aten.relu.default"
    assert explained(text, Ops({"aten.relu"}, lambda call, info: "too slow"), "a", info) == "too slow"


GROWN = """
    x: f32[2,3]
    w: param f32[3,3]
    a = aten.mm.default(x, w)
    b = aten.relu.default(a)
    c = aten.sum.default(b)
    d = aten.relu.default(c)
    return d
"""


def test_where_growth_ends(info: DeviceInfo) -> None:
    rule = Grow(any_call("aten.mm"), Ops({"aten.relu"}))
    assert explained(GROWN, rule, "b", info) is None
    assert explained(GROWN, rule, "c", info) == "no rule for aten.sum.default"
    assert explained(GROWN, rule, "d", info) == (
        "growth from a ends at b: c is not followed: no rule for aten.sum.default"
    )
    stopped = Grow(any_call("aten.mm"), Ops({"aten.relu"}), stop=Ops({"aten.sum"}))
    assert explained(GROWN, stopped, "c", info) is None
    assert explained(GROWN, stopped, "d", info) == "growth from a ends after c"
    refused = Grow(any_call("aten.mm"), Ops({"aten.relu"}), when=at_least(3))
    assert explained(GROWN, refused, "b", info) == "2 calls, fewer than 3"


def test_growth_without_a_seed(info: DeviceInfo) -> None:
    rule = Grow(op("aten.mm", any_(), any_()), Ops({"aten.relu"}))
    text = """
        x: f32[2,3]
        a = aten.relu.default(x)
        return a
    """
    assert explained(text, rule, "a", info) == "no aten.mm(_, _) comes before it"
    constant = Grow(op("aten.mm", any_(), any_()), Ops({"aten.relu"})), Grow(op("aten.mm", param(), any_()), Ops(set()))
    assert explained(GROWN, constant[0], "a", info) is None
    assert explained(GROWN, constant[1], "a", info) == "a: self (x) is not a constant"


def test_whole_regions(info: DeviceInfo) -> None:
    rule = Whole(Ops({"aten.mm", "aten.relu"}), when=at_least(2))
    assert explained(GROWN, rule, "a", info) is None
    assert explained(GROWN, rule, "c", info) == "no rule for aten.sum.default"
    assert explained(GROWN, rule, "d", info) == "1 calls, fewer than 2"
