"""Patterns and predicates that are written wrongly are refused, in words, naming the rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.text_graph import parse_graph
from tapestry.backends.rules import (
    AnyOp,
    Grow,
    MatchView,
    Ops,
    Pattern,
    Rule,
    RuleError,
    Whole,
    any_,
    any_call,
    attr,
    axis,
    either,
    op,
    optional,
    param,
)
from tapestry.runtime.device import DeviceInfo

TEXT = """
    x: f32[2,3]
    w: param f32[3,3]
    a = aten.mm.default(x, w)
    b = aten.relu.default(a)
    return b
"""


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: op("aten.linaer", any_(), any_()), r"no operator aten.linaer in torch .*; did you mean aten.linear\?"),
        (lambda: op("linear", any_(), any_()), r"expected an operator as aten.add or aten.add.Tensor, got 'linear'"),
        (lambda: op("aten.linear.Tensor", ...), r"operator aten.linear has no overload 'Tensor', only default, out"),
        (
            lambda: op("aten.mm.default", any_()),
            r"needs mat2 \(end the arguments with \.\.\. to let them be anything\)",
        ),
        (lambda: op("aten.relu.default", any_(), any_()), r"takes 1 positional arguments, got 2"),
        (lambda: op("aten.gelu.default", any_(), approx="tanh"), r"has no argument 'approx', only self, approximate"),
        (lambda: op("aten.relu.default", any_(), self=any_()), r"argument 'self' is given twice"),
        (lambda: op("aten.mm", ..., any_()), r"expected \.\.\. as the last positional argument only"),
        (lambda: op("aten.sum", any_(), [axis(-1)]), r"expected axis\(\) as an argument by itself"),
        (lambda: op("aten.sum", any_(), either(axis(-1), None)), r"expected axis\(\) as an argument by itself"),
        (lambda: optional(op("aten.relu", ...)), r"expected an operand of the call to stand for it, got None"),
        (lambda: optional(op("aten.relu", any_()), any_()), r"expected an operand of the call to stand for it, got _"),
        (lambda: Pattern(any_()), r"expected the output of a pattern to be made by an operator, got _"),
        (lambda: Pattern(optional(op("aten.relu", param("w")))), r"made by an operator, got param\(w\)"),
        (lambda: Pattern(()), r"expected at least one output in a pattern, got none"),
        (
            lambda: Pattern((op("aten.relu", any_("x")), op("aten.neg", any_("y"))), name="pair"),
            r"pattern pair: output 1 shares no value with the outputs before it",
        ),
    ],
)
def test_a_wrong_pattern_is_refused_where_it_is_written(write: Callable[[], object], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        write()


RULES: list[Callable[[Callable[[object], object]], Rule]] = [
    lambda ask: Pattern(op("aten.relu", any_("x")), when=ask, name="mine"),  # type: ignore[arg-type]
    lambda ask: Grow(any_call("aten.mm"), Ops({"aten.relu"}), when=ask, name="mine"),  # type: ignore[arg-type]
    lambda ask: Whole(Ops({"aten.relu", "aten.mm"}), when=ask, name="mine"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("rule", RULES)
def test_a_predicate_that_raises_names_the_rule(
    rule: Callable[[Callable[[object], object]], Rule], info: DeviceInfo
) -> None:
    def ask(match: object) -> str | None:
        raise IndexError("tuple index out of range")

    with pytest.raises(RuleError, match=r"rule mine, at (a|b|a, b): its predicate raised IndexError: tuple index"):
        list(rule(ask).matches(parse_graph(TEXT), info))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("answer", [True, False, ""])
def test_a_predicate_that_answers_yes_or_no_is_refused(
    rule: Callable[[Callable[[object], object]], Rule], answer: object, info: DeviceInfo
) -> None:
    with pytest.raises(RuleError, match=rf"expected its predicate to give None \(yes\) or a reason, got {answer!r}"):
        list(rule(lambda match: answer).matches(parse_graph(TEXT), info))


def test_an_attributes_condition_that_raises_names_the_rule(info: DeviceInfo) -> None:
    text = "x: f32[2]\na = aten.leaky_relu.default(x, 0.5)\nreturn a"
    pattern = Pattern(op("aten.leaky_relu", any_(), attr("slope", lambda value: value.missing)), name="leaky")  # type: ignore[union-attr]
    with pytest.raises(RuleError, match="rule leaky, at a: negative_slope: its predicate raised AttributeError"):
        list(pattern.matches(parse_graph(text), info))


def test_single_call_rules_name_themselves(info: DeviceInfo) -> None:
    def broken(call: object, info: object) -> str | None:
        raise KeyError("alpha")

    call = parse_graph(TEXT).calls[0]
    with pytest.raises(RuleError, match=r"rule Ops\(aten.mm\), at a: its predicate raised KeyError: 'alpha'"):
        Ops({"aten.mm"}, broken).refuses(call, info)
    with pytest.raises(RuleError, match="rule AnyOp, at a: its predicate raised KeyError"):
        AnyOp(broken).refuses(call, info)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m: m.spec("y"), r"expected the name of a capture \(mm, x, w\), got 'y'"),
        (lambda m: m.call("x"), r"expected 'x' to be bound to the result of a node, got an input of the graph"),
        (lambda m: m.attribute("mm", "alpha"), r"operator aten.mm.default has no argument 'alpha', only self, mat2"),
    ],
)
def test_a_view_says_what_there_is(ask: Callable[[MatchView], object], message: str, info: DeviceInfo) -> None:
    pattern = Pattern(op("aten.mm", any_("x"), param("w")).named("mm"), when=lambda match: str(ask(match)))
    with pytest.raises(RuleError, match=message):
        list(pattern.matches(parse_graph(TEXT), info))


def test_expressions_print_as_they_are_written() -> None:
    linear = op("aten.linear", any_("x"), param("w"), either(param("b"), None))
    pattern = Pattern(optional(op("aten.gelu", linear, approximate="tanh")))
    text = "aten.linear(x, param(w), either(param(b), None))"
    assert pattern.label == f"either(aten.gelu({text}, approximate='tanh'), {text})"
    assert str(op("aten.max.dim", any_(), axis(-1), ...).item(1)) == "aten.max.dim(_, axis(-1), ...)[1]"
    assert str(op("aten.cat", [any_("a"), any_("b")], 1)) == "aten.cat([a, b], 1)"
    assert str(op("aten.sum", any_(), attr("dims"))) == "aten.sum(_, attr(dims))"
