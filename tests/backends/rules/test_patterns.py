"""What patterns match: graph text in, regions out."""

from __future__ import annotations

import pytest

from support.text_graph import block, parse_graph, parse_program, regions
from tapestry.backends.rules import (
    Expression,
    Pattern,
    any_,
    any_call,
    attr,
    axis,
    const,
    either,
    op,
    optional,
    param,
)
from tapestry.runtime.device import DeviceInfo


def found(text: str, expression: Expression | tuple[Expression, ...], info: DeviceInfo) -> str:
    """The matches of an expression in the program that the text stands for."""
    return regions(Pattern(expression).matches(parse_program(text), info))


def test_a_chain_is_one_region(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        w: param f32[4,3]
        b: param f32[4]
        y = aten.linear.default(x, w, b)
        z = aten.gelu.default(y, approximate='tanh')
        return z
    """
    pattern = Pattern(op("aten.gelu", op("aten.linear", any_("x"), param("w"), param("b")), approximate="tanh"))
    expected = "y z | x=x w=w b=b"
    assert regions(pattern.matches(parse_program(text), info)) == expected
    assert regions(pattern.matches(parse_graph(text), info)) == expected


def test_every_place_is_found_in_execution_order(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        w: param f32[2,2]
        a = aten.mm.default(x, w)
        b = aten.relu.default(a)
        c = aten.mm.default(b, w)
        d = aten.relu.default(c)
        return d
    """
    expression = op("aten.relu", op("aten.mm", any_("x"), any_("w")))
    assert found(text, expression, info) == block("""
        a b | x=x w=w
        c d | x=b w=w
    """)


def test_a_value_read_outside_is_not_swallowed(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        b = aten.neg.default(a)
        c = aten.exp.default(a)
        return b, c
    """
    assert found(text, op("aten.neg", op("aten.relu", any_())), info) == ""


def test_a_result_of_the_graph_is_not_swallowed(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        b = aten.neg.default(a)
        return a, b
    """
    relu = op("aten.relu", any_())
    assert found(text, op("aten.neg", relu), info) == ""
    assert found(text, (op("aten.neg", relu), relu), info) == "a b"


def test_a_new_state_is_not_swallowed(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        s: state f32[2]
        a = aten.add.Tensor(x, s)
        b = aten.neg.default(a)
        write s = a
        return b
    """
    assert found(text, op("aten.neg", op("aten.add", any_(), any_())), info) == ""
    assert found(text, op("aten.add", any_("x"), any_("s")), info) == "a | x=x s=s"


@pytest.mark.parametrize(("operands", "expected"), [("x, x", "a | x=x"), ("x, y", "")])
def test_the_same_name_is_the_same_value(operands: str, expected: str, info: DeviceInfo) -> None:
    text = f"""
        x: f32[2,2]
        y: f32[2,2]
        a = aten.mm.default({operands})
        return a
    """
    assert found(text, op("aten.mm", any_("x"), any_("x")), info) == expected


@pytest.mark.parametrize(("last", "expected"), [("b", "b c"), ("d", "")])
def test_the_same_expression_is_the_same_call(last: str, expected: str, info: DeviceInfo) -> None:
    text = f"""
        x: f32[2]
        b = aten.sigmoid.default(x)
        d = aten.sigmoid.default(x)
        c = aten.div.Tensor(b, {last})
        return c
    """
    shared = op("aten.sigmoid", any_())
    assert found(text, op("aten.div", shared, shared), info) == expected


def test_different_expressions_are_different_calls(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        b = aten.sigmoid.default(x)
        c = aten.div.Tensor(b, b)
        return c
    """
    assert found(text, op("aten.div", op("aten.sigmoid", any_()), op("aten.sigmoid", any_())), info) == ""


def test_a_named_call_is_shared_by_its_name(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        g = aten.sigmoid.default(x)
        y = aten.mul.Tensor(x, g)
        return y
    """
    silu = op("aten.mul", any_("x"), op("aten.sigmoid", any_("x")).named("gate"))
    assert found(text, silu, info) == "g y | x=x gate=g"


@pytest.mark.parametrize("operands", ["g, x", "x, g"])
def test_known_operators_commute(operands: str, info: DeviceInfo) -> None:
    text = f"""
        x: f32[2]
        g = aten.sigmoid.default(x)
        y = aten.mul.Tensor({operands})
        return y
    """
    assert found(text, op("aten.mul", any_("x"), op("aten.sigmoid", any_("x"))), info) == "g y | x=x"


def test_ordered_keeps_the_operands_in_place(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        g = aten.sigmoid.default(x)
        y = aten.mul.Tensor(g, x)
        return y
    """
    assert found(text, op("aten.mul", any_(), op("aten.sigmoid", any_())).ordered(), info) == ""


def test_commuting_lets_any_operator_exchange_operands(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        g = aten.sigmoid.default(x)
        y = aten.hypot.default(g, x)
        return y
    """
    expression = op("aten.hypot", any_(), op("aten.sigmoid", any_()))
    assert found(text, expression, info) == ""
    assert found(text, expression.commuting(), info) == "g y"


def test_add_with_a_factor_does_not_commute(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        g = aten.sigmoid.default(x)
        y = aten.add.Tensor(g, x, alpha=2)
        return y
    """
    gate = op("aten.sigmoid", any_())
    assert found(text, op("aten.add", any_("x"), gate, alpha=attr("factor")), info) == ""
    assert found(text, op("aten.add", gate, any_("x"), alpha=attr("factor")), info) == "g y | x=x factor=2"


def test_both_choices_of_a_commutative_operand_are_matches(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        y: f32[2]
        a = aten.relu.default(x)
        b = aten.relu.default(y)
        c = aten.add.Tensor(a, b)
        return c
    """
    assert found(text, op("aten.add", op("aten.relu", any_("x")), any_("rest")), info) == block("""
        a c | x=x rest=b
        b c | x=y rest=a
    """)


def test_exchanged_operands_are_tried_when_the_predicate_refuses(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        y: f32[2]
        c = aten.add.Tensor(y, x)
        return c
    """
    pattern = Pattern(
        op("aten.add", any_("whole"), any_("row")),
        when=lambda m: None if len(m.spec("whole").shape) == 2 else "whole is no matrix",
    )
    assert regions(pattern.matches(parse_program(text), info)) == "c | whole=x row=y"


def test_arguments_that_are_not_written_have_their_defaults(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        y: f32[2]
        a = aten.add.Tensor(x, y)
        b = aten.add.Tensor(a, y, alpha=1)
        c = aten.add.Tensor(b, y, alpha=2)
        return c
    """
    assert found(text, op("aten.add", any_(), any_()), info) == "a\nb"
    assert found(text, op("aten.add", any_(), any_(), ...), info) == "a\nb\nc"
    assert found(text, op("aten.add", any_(), any_(), alpha=2), info) == "c"


def test_sizes_are_compared_as_the_operator_reads_them(info: DeviceInfo) -> None:
    text = """
        x: f32[1,3,8,8]
        w: param f32[3,3,3,3]
        a = aten.conv2d.default(x, w, None, [1], [1, 1])
        b = aten.conv2d.default(a, w, None, [1, 1], [1], [1, 1], 1)
        c = aten.conv2d.default(b, w, None, [2, 1], [1, 1])
        return c
    """
    assert found(text, op("aten.conv2d", any_(), param(), padding=1), info) == "a\nb"
    assert found(text, op("aten.conv2d", any_(), param(), padding=[1, 1], stride=[2, 1]), info) == "c"


def test_a_name_without_overload_is_any_that_fits(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        s: param f32[] = 2
        a = aten.mul.Tensor(x, s)
        b = aten.mul.Scalar(a, 2)
        c = aten.mul.Tensor(b, 2.0)
        d = aten.mul.Tensor(c, 3.0)
        return d
    """
    assert found(text, op("aten.mul", any_("x"), 2), info) == "a | x=x\nb | x=a\nc | x=b"
    assert found(text, op("aten.mul.Scalar", any_("x"), 2), info) == "b | x=a"


def test_a_constant_matches_what_is_computed_from_constants(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        s: param f32[] = 0.1
        c = aten.lift_fresh_copy.default(s)
        f = aten.full.default([], 0.1)
        a = aten.mul.Tensor(x, c)
        b = aten.mul.Tensor(a, f)
        d = aten.mul.Tensor(b, x)
        return d
    """
    assert found(text, op("aten.mul", any_("x"), const(0.1)), info) == "a | x=x\nb | x=a"


def test_a_fraction_is_not_a_whole_number(info: DeviceInfo) -> None:
    text = """
        x: i64[2]
        s: param i64[] = 1
        a = aten.mul.Tensor(x, s)
        return a
    """
    assert found(text, op("aten.mul", any_(), const(1.5)), info) == ""
    assert found(text, op("aten.mul", any_(), const(True)), info) == ""
    assert found(text, op("aten.mul", any_(), const(1)), info) == "a"


def test_param_takes_what_is_folded_from_parameters(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        w: param f32[4,3]
        t = aten.t.default(w)
        y = aten.mm.default(x, t)
        return y
    """
    assert found(text, op("aten.mm", any_("x"), param("w")), info) == "y | x=x w=t"
    assert found(text, op("aten.mm", any_("x"), op("aten.t", param("w"))), info) == ""


def test_a_written_buffer_is_no_param(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        s: state f32[2]
        a = aten.add.Tensor(x, s)
        write s = a
        return x
    """
    assert found(text, op("aten.add", any_(), param()), info) == ""


@pytest.mark.parametrize(("bias", "bound"), [("b", " b=b"), ("None", "")])
def test_either_takes_a_bias_or_none(bias: str, bound: str, info: DeviceInfo) -> None:
    text = f"""
        x: f32[2,3]
        w: param f32[4,3]
        b: param f32[4]
        y = aten.linear.default(x, w, {bias})
        return y
    """
    expression = op("aten.linear", any_("x"), param("w"), either(param("b"), None))
    assert found(text, expression, info) == f"y | x=x w=w{bound}"


def test_either_takes_any_of_several_calls(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        w: param f32[4,3]
        y = aten.linear.default(x, w)
        a = aten.relu.default(y)
        z = aten.linear.default(x, w)
        b = aten.silu.default(z)
        return a, b
    """
    linear = op("aten.linear", any_(), param())
    assert found(text, either(op("aten.relu", linear), op("aten.silu", linear)), info) == "y a\nz b"


def test_an_optional_end_is_matched_with_and_without(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        w: param f32[4,3]
        y = aten.linear.default(x, w)
        a = aten.relu.default(y)
        z = aten.linear.default(x, w)
        return a, z
    """
    linear = op("aten.linear", any_(), param()).named("linear")
    assert found(text, optional(op("aten.relu", linear).named("relu")), info) == block("""
        y | linear=y
        y a | relu=a linear=y
        z | linear=z
    """)


def test_an_optional_middle_is_taken_where_it_stands(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        m: f32[2,2]
        a = aten.mm.default(x, x)
        b = aten.add.Tensor(a, m)
        c = aten._softmax.default(b, -1, False)
        d = aten.mm.default(c, x)
        e = aten._softmax.default(d, -1, False)
        return e
    """
    scores = op("aten.mm", any_(), any_())
    softmax = op("aten._softmax", optional(op("aten.add", scores, any_("mask"))), -1, False)
    assert found(text, softmax, info) == "a b c | mask=m\nd e"


def test_an_optional_call_may_stand_on_any_operand(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.exp.default(x)
        b = aten.rsub.Scalar(a, 1.0)
        return b
    """
    inner = op("aten.exp", any_("x"))
    assert found(text, optional(op("aten.rsub", inner, 1), inner), info) == "a | x=x\na b | x=x"


def test_axis_counts_from_either_end(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3,4]
        a = aten._softmax.default(x, -1, False)
        b = aten._softmax.default(a, 2, False)
        c = aten._softmax.default(b, 1, False)
        d = aten.sum.dim_IntList(c, [2])
        e = aten.sum.dim_IntList(c, [1, 2])
        return d, e
    """
    assert found(text, op("aten._softmax", any_(), axis(-1), False), info) == "a\nb"
    assert found(text, op("aten.sum", any_(), axis(-1)), info) == "d"


def test_attributes_are_captured_and_judged(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        a = aten.leaky_relu.default(x, 0.1)
        b = aten.leaky_relu.default(a, -1.0)
        c = aten.leaky_relu.default(b)
        return c
    """

    def positive(value: object) -> str | None:
        return None if isinstance(value, float) and value > 0 else "not positive"

    expression = op("aten.leaky_relu", any_(), negative_slope=attr("slope", positive))
    assert found(text, expression, info) == "a | slope=0.1\nc | slope=0.01"


def test_lists_of_tensors(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        y: f32[2]
        a = aten.cat.default([x, y])
        b = aten.cat.default([a, x, y])
        return b
    """
    assert found(text, op("aten.cat", [any_("p"), any_("q")]), info) == "a | p=x q=y"
    assert found(text, op("aten.cat", any_("all")), info) == "a | all=[x,y]\nb | all=[a,x,y]"


def test_results_of_a_call_with_several(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        v, i = aten.max.dim(x, 1)
        a = aten.neg.default(v)
        w, j = aten.max.dim(x, 0)
        b = aten.neg.default(w)
        c = aten.neg.default(j)
        return a, b, c
    """
    largest = op("aten.max.dim", any_("x"), ...)
    assert found(text, op("aten.neg", largest.item(0)), info) == "v a | x=x"
    assert found(text, op("aten.neg", largest.item(1)), info) == ""
    assert found(text, (op("aten.neg", largest.item(0)), op("aten.neg", largest.item(1))), info) == "w b c | x=x"
    assert found(text, (op("aten.neg", largest.item(1)), op("aten.neg", largest.item(0))), info) == "w b c | x=x"


def test_an_item_as_output_hands_out_that_item_only(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        v, i = aten.max.dim(x, 1)
        w, j = aten.max.dim(x, 0)
        return v, w, j
    """
    largest = op("aten.max.dim", any_(), ...)
    assert found(text, largest.item(0), info) == "v"
    assert found(text, largest, info) == "v\nw"


def test_several_outputs_share_a_part(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        w: param f32[2,2]
        q: param f32[2,2]
        h = aten.relu.default(x)
        a = aten.mm.default(h, w)
        b = aten.mm.default(h, q)
        c = aten.neg.default(a)
        d = aten.neg.default(b)
        return c, d
    """
    shared = op("aten.relu", any_("x"))
    a, b = op("aten.mm", shared, param("w")), op("aten.mm", shared, param("q"))
    assert found(text, (op("aten.neg", a), op("aten.neg", b)), info) == "h a b c d | x=x w=w q=q"


def test_a_further_output_may_have_an_optional_part(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        h = aten.relu.default(x)
        a = aten.sin.default(h)
        e = aten.exp.default(h)
        b = aten.neg.default(e)
        k = aten.relu.default(x)
        c = aten.sin.default(k)
        d = aten.neg.default(k)
        return a, b, c, d
    """
    shared = op("aten.relu", any_())
    outputs = (op("aten.sin", shared), op("aten.neg", optional(op("aten.exp", shared))))
    assert found(text, outputs, info) == "h a e b\nk c d"


def test_several_outputs_share_an_input_by_name(info: DeviceInfo) -> None:
    text = """
        x: f32[2,2]
        y: f32[2,2]
        w: param f32[2,2]
        a = aten.mm.default(x, w)
        b = aten.sin.default(x)
        c = aten.sin.default(y)
        return a, b, c
    """
    assert found(text, (op("aten.mm", any_("x"), param()), op("aten.sin", any_("x"))), info) == "a b | x=x"


def test_outputs_with_a_path_between_them_outside_are_no_region(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        o = aten.exp.default(a)
        b = aten.mul.Tensor(a, o)
        return b
    """
    relu = op("aten.relu", any_())
    assert found(text, (op("aten.mul", relu, any_("o")), relu), info) == ""


def test_a_region_cannot_stand_on_both_sides_of_a_random_call(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        r = aten.bernoulli.default(a)
        s = aten.rand.default([2])
        b = aten.mul.Tensor(a, s)
        return b, r
    """
    relu = op("aten.relu", any_())
    assert found(text, (op("aten.mul", relu, any_()), relu), info) == ""
    assert found(text.replace("bernoulli.default(a)", "bernoulli.default(x)"), op("aten.mul", relu, any_()), info) == (
        "a b"
    )


def test_a_wildcard_is_never_what_the_match_computes(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        b = aten.hypot.default(a, a)
        return b
    """
    assert found(text, op("aten.hypot", op("aten.relu", any_()), any_("other")), info) == ""


def test_random_calls_are_never_matched(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.bernoulli.default(x)
        return a
    """
    assert found(text, op("aten.bernoulli", any_()), info) == ""


def test_only_allowed_calls_are_taken(info: DeviceInfo) -> None:
    text = """
        x: f32[2]
        a = aten.relu.default(x)
        b = aten.relu.default(a)
        return b
    """
    pattern = Pattern(op("aten.relu", any_()))
    matches = pattern.matches(parse_graph(text), info, lambda call: "placed already" if call.name == "a" else None)
    assert regions(matches) == "b"


def test_any_call_takes_operators_whatever_their_arguments(info: DeviceInfo) -> None:
    text = """
        x: f32[2,3]
        a = aten.sum.dim_IntList(x, [1], True)
        b = aten.leaky_relu.default(a, 0.3)
        c = aten.exp.default(b)
        return c
    """
    assert found(text, any_call("aten.sum", "aten.leaky_relu"), info) == "a\nb"


def test_attention_written_out(info: DeviceInfo) -> None:
    text = """
        q: f32[2,4,8]
        k: f32[2,4,8]
        v: f32[2,4,8]
        s: param f32[] = 0.25
        t = aten.transpose.int(k, 1, 2)
        a = aten.bmm.default(q, t)
        b = aten.mul.Tensor(s, a)
        c = aten._softmax.default(b, 2, False)
        d = aten.bmm.default(c, v)
        return d
    """
    keys = op("aten.transpose", any_("k"), attr(), attr())
    scores = op("aten.mul", op("aten.bmm", any_("q"), keys), 0.25)
    attention = op("aten.bmm", op("aten._softmax", scores, axis(-1), False), any_("v"))
    assert found(text, attention, info) == "t a b c d | q=q k=k v=v"
