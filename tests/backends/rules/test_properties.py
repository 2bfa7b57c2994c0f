"""Random graphs against definitions written out by brute force: convexity, completeness, growth, maximality, cycles."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.text_graph import parse_program
from tapestry.backends.rules import (
    Expression,
    GraphIndex,
    Grow,
    Op,
    Ops,
    Pattern,
    Whole,
    any_,
    any_call,
    either,
    op,
    optional,
    select,
)
from tapestry.backends.rules.dominators import post_dominators
from tapestry.backends.rules.expression import Wildcard
from tapestry.backends.rules.rule import Match
from tapestry.errors import UsageError
from tapestry.program.graph import Ref
from tapestry.program.program import Program
from tapestry.program.region import quotient_order, region_of
from tapestry.runtime.device import DeviceInfo

pytestmark = pytest.mark.slow

INFO = DeviceInfo("mock", "mock:0", "a mock device", "mock-1")
UNARY, BINARY = ("relu.default", "neg.default"), ("add.Tensor", "div.Tensor")


@st.composite
def programs(draw: st.DrawFn, most: int = 9) -> Program:
    """Programs of a few element-wise calls over two inputs and a parameter, some random, with any of them returned."""
    names = ["x", "y", "w"]
    lines = ["x: f32[2]", "y: f32[2]", "w: param f32[2]"]
    for place in range(draw(st.integers(1, most))):
        target = draw(st.sampled_from([*UNARY, *UNARY, *BINARY, *BINARY, "bernoulli.default"]))
        count = 2 if target in BINARY else 1
        # Recent values more often, so that graphs get deep.
        operands = [draw(st.sampled_from([*names, *names[-3:], *names[-2:]])) for _ in range(count)]
        lines.append(f"n{place} = aten.{target}({', '.join(operands)})")
        names.append(f"n{place}")
    results = draw(st.lists(st.sampled_from(names[3:]), min_size=1, unique=True))
    return parse_program("\n".join([*lines, f"return {', '.join(results)}"]))


def test_generator_makes_what_the_properties_need() -> None:
    """Diamonds, random calls and folded calls all occur, or the properties below would say little."""
    seen: set[str] = set()

    @settings(max_examples=200, derandomize=True, deadline=None)
    @given(programs())
    def look(program: Program) -> None:
        if program.folded:
            seen.add("folded")
        if program.random_before:
            seen.add("random")
        if any(len(users) > 1 for users in program.users.values()):
            seen.add("diamond")

    look()
    assert seen == {"folded", "random", "diamond"}


# ------------------------------------------------------------------------------------------------------ definitions


def edges(program: Program) -> set[tuple[str, str]]:
    """All that must run before another: data, and the order of random calls."""
    data = {(ref.name, reader) for ref, readers in program.users.items() for reader in readers}
    order = {(before, after) for after, before in program.random_before.items()}
    return {(a, b) for a, b in data | order if a in program.by_id}


def reached(program: Program) -> set[tuple[str, str]]:
    """The transitive closure of the edges."""
    found = edges(program)
    while True:
        more = {(a, d) for a, b in found for c, d in found if b == c} - found
        if not more:
            return found
        found |= more


def is_convex(program: Program, nodes: set[str]) -> bool:
    paths = reached(program)
    outside = program.by_id.keys() - nodes
    return not any((a, o) in paths and (o, b) in paths for o in outside for a in nodes for b in nodes)


def can_run(program: Program, groups: Iterable[Iterable[str]]) -> bool:
    try:
        quotient_order(program, groups)
    except UsageError:
        return False
    return True


def takeable(program: Program) -> set[str]:
    return set(program.placeable)


# --------------------------------------------------------------------------------------------------------- patterns

X, Y = any_("x"), any_("y")
RELU = op("aten.relu", X)
SHARED = op("aten.neg", Y)

PLAIN: list[tuple[Expression, ...]] = [
    (op("aten.neg", RELU),),
    (op("aten.add", RELU, any_("z")),),
    (op("aten.add", op("aten.relu", any_()), op("aten.relu", any_())),),
    (op("aten.div", op("aten.neg", X), X),),
    (op("aten.add", op("aten.add", X, any_()), X),),
    (op("aten.div", RELU, op("aten.add", RELU, any_())),),
    (op("aten.relu", SHARED), SHARED),
    (op("aten.relu", SHARED), op("aten.add", SHARED, any_())),
    (op("aten.neg", X), op("aten.relu", X)),
]


def calls_in(outputs: tuple[Expression, ...]) -> list[Op]:
    return list(dict.fromkeys(part for output in outputs for part in output.walk() if isinstance(part, Op)))


def laid_out(program: Program, outputs: tuple[Expression, ...]) -> Iterator[dict[Op, str]]:
    """All ways to lay the calls of a pattern onto different nodes so that operators and edges agree."""
    calls = calls_in(outputs)
    choices = [
        [
            node.id
            for node in program.nodes
            if node.op.rpartition(".")[0] == call.operator and node.id in takeable(program)
        ]
        for call in calls
    ]
    for nodes in itertools.product(*choices):
        if len(set(nodes)) == len(nodes):
            placed = dict(zip(calls, nodes, strict=True))
            orders = [[call.arguments, call.arguments[::-1]] if call.commutes else [call.arguments] for call in calls]
            if any(agrees(program, placed, order) for order in itertools.product(*orders)):
                yield placed


def agrees(program: Program, placed: dict[Op, str], orders: tuple[tuple[Expression, ...], ...]) -> bool:
    bound: dict[object, Ref] = {}
    for node, arguments in zip(placed.values(), orders, strict=True):
        for expression, value in zip(arguments, program.by_id[node].call.args, strict=True):
            assert isinstance(value, Ref)
            if isinstance(expression, Op):
                if value != Ref(placed[expression]):
                    return False
                continue
            assert isinstance(expression, Wildcard)
            if value.name in placed.values() or bound.setdefault(expression.name or expression, value) != value:
                return False
    return True


def swallows(program: Program, nodes: set[str], outputs: set[str]) -> bool:
    return any(
        Ref(node) in program.results or any(user not in nodes for user in program.users.get(Ref(node), ()))
        for node in nodes - outputs
    )


def matched(outputs: tuple[Expression, ...], program: Program) -> list[frozenset[str]]:
    return [frozenset(match.nodes) for match in Pattern(outputs).matches(program, INFO)]


@settings(max_examples=250, derandomize=True, deadline=None)
@given(programs(), st.sampled_from(PLAIN))
def test_a_pattern_matches_exactly_what_its_definition_says(program: Program, outputs: tuple[Expression, ...]) -> None:
    expected = {
        frozenset(placed.values())
        for placed in laid_out(program, outputs)
        if is_convex(program, set(placed.values()))
        and not swallows(program, set(placed.values()), {placed[out] for out in outputs if isinstance(out, Op)})
    }
    found = matched(outputs, program)
    assert len(found) == len(set(found))
    assert set(found) == expected


@settings(max_examples=150, derandomize=True, deadline=None)
@given(programs())
def test_optional_and_either_are_the_union_of_their_options(program: Program) -> None:
    base = op("aten.relu", X)
    maybe = op("aten.add", optional(op("aten.neg", base)), Y)
    one_of = either(op("aten.neg", base), op("aten.relu", base), base)
    with_and_without = {*matched((op("aten.add", op("aten.neg", base), Y),), program)}
    with_and_without |= {*matched((op("aten.add", base, Y),), program)}
    assert set(matched((maybe,), program)) == with_and_without
    options = [(op("aten.neg", base),), (op("aten.relu", base),), (base,)]
    assert set(matched((one_of,), program)) == {nodes for option in options for nodes in matched(option, program)}


@settings(max_examples=200, derandomize=True, deadline=None)
@given(programs(), st.sampled_from(PLAIN))
def test_every_match_is_a_region_and_explanations_agree(program: Program, outputs: tuple[Expression, ...]) -> None:
    pattern = Pattern(outputs)
    held: set[str] = set()
    for match in pattern.matches(program, INFO):
        held.update(match.nodes)
        assert region_of(program, match.nodes).nodes == match.nodes
        assert can_run(program, [match.nodes])
    for node in program.nodes:
        reason = pattern.explain(program, node.id, INFO)
        assert (reason is None) == (node.id in held)
        assert reason is None or reason


# ------------------------------------------------------------------------------------------------------------- growth


def exits(program: Program, node: str, without: str) -> bool:
    """Whether what is made from ``node`` can leave the graph, or die, on a path that avoids ``without``."""
    if node == without:
        return False
    users = program.users.get(Ref(node), ())
    return Ref(node) in program.results or not users or any(exits(program, user, without) for user in users)


def immediate(program: Program, node: str) -> str | None:
    """The first in execution order of all nodes that post-dominate: they lie on one path."""
    later = [other.id for other in program.nodes[program.position[node] + 1 :]]
    return next((other for other in later if not exits(program, node, other)), None)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(programs())
def test_post_dominators_are_what_their_definition_says(program: Program) -> None:
    expected = {node.id: found for node in program.nodes if (found := immediate(program, node.id)) is not None}
    assert post_dominators(GraphIndex.of(program)) == expected


def data_paths(program: Program) -> set[tuple[str, str]]:
    """Which node leads to which by data; every node to itself."""
    found = {(node.id, node.id) for node in program.nodes}
    for node in reversed(program.nodes):
        for user in program.users.get(Ref(node.id), ()):
            found |= {(node.id, end) for start, end in found if start == user}
    return found


def grown(program: Program, seed: str, follow: set[str]) -> list[frozenset[str]]:
    paths = data_paths(program)
    stages = [frozenset({seed})]
    last = seed
    while (above := immediate(program, last)) is not None:
        between = {node.id for node in program.nodes if (last, node.id) in paths and (node.id, above) in paths} - {last}
        if not between <= follow:
            break
        stages.append(stages[-1] | between)
        last = above
    return stages[::-1]


@settings(max_examples=250, derandomize=True, deadline=None)
@given(programs())
def test_growth_is_what_its_definition_says(program: Program) -> None:
    rule = Grow(any_call("aten.add"), Ops({"aten.relu", "aten.neg", "aten.add"}))
    follow = {node.id for node in program.nodes if "div" not in node.op} & takeable(program)
    seeds = [node.id for node in program.nodes if "add" in node.op and node.id in takeable(program)]
    found = [frozenset(match.nodes) for match in rule.matches(program, INFO)]
    assert found == [nodes for seed in seeds for nodes in grown(program, seed, follow)]
    for nodes in found:
        region = region_of(program, nodes)
        assert len({ref.name for ref in region.outputs}) <= 1
        assert can_run(program, [nodes])


# -------------------------------------------------------------------------------------------------------------- whole


@settings(max_examples=250, derandomize=True, deadline=None)
@given(programs(most=14), st.data())
def test_whole_regions_are_maximal(program: Program, data: st.DataObject) -> None:
    barred = data.draw(st.sets(st.sampled_from([node.id for node in program.nodes])))
    rule = Whole(Ops({"aten.relu", "aten.neg", "aten.add"}))
    found = [match.nodes for match in rule.matches(program, INFO, lambda c: "barred" if c.name in barred else None)]
    takes = {node.id for node in program.nodes if node.op.split(".")[1] in {"relu", "neg", "add"}}
    assert sorted(itertools.chain(*found)) == sorted((takes & takeable(program)) - barred)
    assert can_run(program, found)
    for nodes in found:
        assert is_convex(program, set(nodes))
    for one, other in itertools.combinations(found, 2):
        rest = [nodes for nodes in found if nodes not in (one, other)]
        assert not can_run(program, [*rest, (*one, *other)])
        assert not is_convex(program, {*one, *other})


# ------------------------------------------------------------------------------------------------------------- choice


@settings(max_examples=300, derandomize=True, deadline=None)
@given(programs(most=12), st.data())
def test_select_takes_all_that_it_can_in_order(program: Program, data: st.DataObject) -> None:
    ids = list(takeable(program)) or [program.nodes[0].id]
    rule = Ops({"aten.relu"})
    groups = data.draw(st.lists(st.sets(st.sampled_from(sorted(ids)), min_size=1, max_size=5), max_size=6))
    if program.folded:
        groups = [nodes for nodes in groups if not nodes & program.folded]
    index = GraphIndex.of(program)
    matches = [Match(index.ordered(nodes), {"place": place}, rule) for place, nodes in enumerate(groups)]
    selection = select(index, matches)
    taken: list[tuple[str, ...]] = []
    expected: list[Match] = []
    for match in matches:
        if can_run(program, [*taken, match.nodes]):
            taken.append(match.nodes)
            expected.append(match)
    assert selection.chosen == tuple(expected)
    assert [entry.match for entry in selection.left_out] == [match for match in matches if match not in expected]
    assert all(entry.reason for entry in selection.left_out)
