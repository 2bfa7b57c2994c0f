"""What predicates see of a match, and the ready-made ones."""

from __future__ import annotations

import pytest
import torch

from support.text_graph import parse_graph, parse_program
from tapestry.backends.rules import (
    MatchView,
    Pattern,
    Predicate,
    all_of,
    any_,
    any_of,
    at_least,
    attr,
    constant,
    contiguous,
    device_kind,
    divisible,
    dtypes,
    op,
    optional,
    param,
    rank,
    same_shape,
)
from tapestry.program.graph import Ref
from tapestry.runtime.device import DeviceInfo

TEXT = """
    x: f32[2,3]
    y: f32[3]
    w: param f32[3,4]
    a = aten.add.Tensor(x, y, alpha=2)
    b = aten.mm.default(a, w)
    c = aten.relu.default(b)
    return c, x
"""


def seen(pattern: Pattern, info: DeviceInfo) -> MatchView:
    """The view that the pattern's predicate is given in TEXT."""
    views: list[MatchView] = []

    def keep(match: MatchView) -> str | None:
        views.append(match)
        return None

    list(Pattern(pattern.expression, keep).matches(parse_program(TEXT), info))
    return views[-1]


def test_a_view_shows_values_attributes_and_users(info: DeviceInfo) -> None:
    add = op("aten.add", any_("x"), any_("y"), alpha=attr("factor")).named("add")
    view = seen(Pattern(optional(op("aten.relu", op("aten.mm", add, param("w")).named("mm")).named("relu"))), info)
    assert view.nodes == ("a", "b", "c")
    assert [call.name for call in view.calls] == ["a", "b", "c"]
    assert view.inputs == (Ref("x"), Ref("y"), Ref("w"))
    assert view.value("factor") == 2
    assert view.ref("x") == Ref("x")
    assert (view.spec("x").shape, view.spec("x").dtype) == ((2, 3), torch.float32)
    assert view.spec("mm").shape == (2, 4)
    assert view.attribute("add", "alpha") == 2
    assert view.call("mm").name == "b"
    assert (view.is_constant("w"), view.is_constant("x")) == (True, False)
    assert view.users("x") == ("a",)
    assert (view.is_result("x"), view.is_result("y"), view.is_result("relu")) == (True, False, True)
    assert "relu" in view
    assert "sigmoid" not in view
    assert view.info is info


def test_an_optional_call_that_is_absent_is_not_in_the_view(info: DeviceInfo) -> None:
    view = seen(Pattern(op("aten.mm", optional(op("aten.neg", any_("x")).named("neg")), any_())), info)
    assert "neg" not in view
    assert view.ref("x") == Ref("a")


def answer(predicate: Predicate, info: DeviceInfo) -> str | None:
    mm = op("aten.mm", op("aten.add", any_("x"), any_("y"), ...), param("w")).named("mm")
    return Pattern(mm, predicate).explain(parse_graph(TEXT), "b", info)


@pytest.mark.parametrize(
    ("predicate", "reason"),
    [
        (dtypes("float32"), None),
        (dtypes("float16", "bfloat16"), "x is float32, expected float16 or bfloat16"),
        (dtypes("float32", of=("x",)), None),
        (dtypes("float16", of=("w",)), "w is float32, expected float16"),
        (rank("y", 1, 2), None),
        (rank("y", 2, 3), "y has rank 1, expected 2 or 3"),
        (divisible("w", -1, 4), None),
        (divisible("w", 0, 4), "w has size 3 in dimension 0, no multiple of 4"),
        (divisible("w", 2, 4), "w has rank 2, so no dimension 2"),
        (same_shape("x", "x"), None),
        (same_shape("x", "y"), "x has shape [2, 3], y [3]"),
        (constant("w"), None),
        (constant("w", "y"), "y is not a constant"),
        (contiguous("x", "w"), None),
        (at_least(2), None),
        (at_least(3), "2 calls, fewer than 3"),
        (device_kind("opencl", "mock"), None),
        (device_kind("opencl"), "device mock, expected opencl"),
        (all_of(), None),
        (all_of(rank("x", 2), rank("y", 1)), None),
        (all_of(rank("x", 2), rank("y", 2), rank("x", 1)), "y has rank 1, expected 2"),
        (any_of(rank("x", 1), rank("x", 2)), None),
        (any_of(rank("x", 1), rank("x", 3)), "x has rank 2, expected 1, and x has rank 2, expected 3"),
    ],
)
def test_ready_made(predicate: Predicate, reason: str | None, info: DeviceInfo) -> None:
    assert answer(predicate, info) == reason


def test_contiguous_looks_at_strides(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        a = aten.t.default(x)
        b = aten.exp.default(a)
        e = aten.unsqueeze.default(x, 0)
        f = aten.exp.default(e)
        return b, f
    """
    pattern = Pattern(op("aten.exp", any_("v")), contiguous("v"))
    assert pattern.explain(parse_graph(text), "b", info) == "v has strides [1, 3] for shape [3, 2], not contiguous"
    assert pattern.explain(parse_graph(text), "f", info) is None


def test_dtypes_looks_at_every_result(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        v, i = aten.max.dim(x, 1)
        return v, i
    """
    pattern = Pattern(op("aten.max.dim", any_(), ...), dtypes("float32"))
    assert pattern.explain(parse_graph(text), "v", info) == "v[1] is int64, expected float32"
