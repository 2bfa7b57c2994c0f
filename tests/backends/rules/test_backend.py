"""A backend's answers from its rules: matches, refusals, explanations, and whose fault a broken rule is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from support.text_graph import parse_graph, regions
from tapestry.backends import base
from tapestry.backends.base import Availability, Backend, Options
from tapestry.backends.rules import (
    AnyOp,
    CallRule,
    Grow,
    Ops,
    Pattern,
    Rule,
    RuleError,
    Whole,
    any_,
    any_call,
    at_least,
    op,
    param,
)
from tapestry.program.graph import Graph
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Compiled

TEXT = """
    x: f32[2,3]
    w: param f32[3,3]
    a = aten.mm.default(x, w)
    b = aten.relu.default(a)
    c = aten.exp.default(b)
    return c
"""


class Ruled(Backend):
    """A backend that is nothing but rules."""

    name: ClassVar[str] = "ruled"
    device_kinds: ClassVar[frozenset[str]] = frozenset({"mock"})

    def __init__(self, *rules: Rule) -> None:
        self._rules = rules

    def availability(self) -> Availability:
        return Availability(True)

    def rules(self) -> Sequence[Rule]:
        return self._rules

    def options(self) -> Sequence[Options]:
        return (Options(),)

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        raise NotImplementedError

    def fingerprint(self) -> str:
        return "ruled"


FUSED = Pattern(op("aten.relu", op("aten.mm", any_("x"), param("w"))), name="fused")
ALONE = Pattern(op("aten.mm", any_("x"), param("w")))


def test_the_names_stay_where_backends_import_them() -> None:
    assert (base.Rule, base.Ops, base.AnyOp, base.CallRule) == (Rule, Ops, AnyOp, CallRule)
    assert base.When is not None


def test_matches_of_all_rules(info: DeviceInfo) -> None:
    backend = Ruled(FUSED, Ops({"aten.exp"}), Grow(any_call("aten.mm"), Ops({"aten.relu"})), Whole(Ops({"aten.relu"})))
    assert regions(backend.matches(parse_graph(TEXT), info)) == "a b | x=x w=w\nc\na b\na\nb"


def test_refusals_of_a_call_alone(info: DeviceInfo) -> None:
    a, b, c = parse_graph(TEXT).calls
    assert Ruled(FUSED).refuses(a, info) == "aten.mm.default is taken only where it stands in the pattern fused"
    assert Ruled(FUSED, Ops({"aten.mm"})).refuses(a, info) is None
    assert Ruled(FUSED).refuses(c, info) == "no rule for aten.exp.default"
    assert Ruled(Ops({"aten.mm"}), FUSED).refuses(b, info) == (
        "aten.relu.default is taken only where it stands in the pattern fused"
    )
    assert Ruled(Grow(any_call("aten.mm"), Ops({"aten.relu"}))).refuses(b, info) == (
        "aten.relu.default is taken only in regions that grow from aten.mm(...)"
    )
    assert Ruled(Whole(Ops({"aten.mm"}))).refuses(a, info) is None
    assert Ruled().refuses(a, info) == "the backend has no rules"


def test_refusals_in_a_graph(info: DeviceInfo) -> None:
    graph = parse_graph(TEXT)
    assert Ruled(ALONE).refuses_in(graph, "a", info) is None
    assert Ruled(FUSED).refuses_in(graph, "a", info) == (
        "aten.mm.default is taken only where it stands in the pattern fused"
    )
    assert (
        Ruled(Pattern(op("aten.mm", param(), any_()))).refuses_in(graph, "a", info) == "a: self (x) is not a constant"
    )
    assert Ruled(ALONE, Ops({"aten.exp"})).refuses_in(graph, "c", info) is None
    whole = Whole(Ops({"aten.mm"}), when=at_least(2))
    assert Ruled(whole).refuses_in(graph, "a", info) == "1 calls, fewer than 2"
    assert Ruled(whole).refuses_in(graph, "c", info) == "no rule for aten.exp.default"
    grow = Grow(op("aten.mm", any_("x"), param("w")), Ops({"aten.relu"}))
    assert Ruled(grow).refuses_in(graph, "a", info) is None
    assert Ruled(grow).refuses_in(graph, "b", info) == (
        "aten.relu.default is taken only in regions that grow from aten.mm(x, param(w))"
    )


def test_explanations_of_all_rules(info: DeviceInfo) -> None:
    answers = Ruled(FUSED, ALONE, Ops({"aten.exp"})).explain(parse_graph(TEXT), "a", info)
    assert [answer.reason for answer in answers] == [None, None, "no rule for aten.mm.default"]


def test_a_broken_rule_names_its_backend(info: DeviceInfo) -> None:
    backend = Ruled(Pattern(op("aten.mm", any_("x"), param("w")), lambda match: match.spec("y") and None, name="mine"))
    with pytest.raises(RuleError, match="backend ruled: rule mine, at a: its predicate raised RuleError: expected the"):
        list(backend.matches(parse_graph(TEXT), info))
    with pytest.raises(RuleError, match="backend ruled: rule mine"):
        backend.explain(parse_graph(TEXT), "a", info)
    with pytest.raises(RuleError, match="backend ruled: rule mine"):
        backend.refuses_in(parse_graph(TEXT), "a", info)
