"""Graphs that searches go wrong on: text and rules in, the chosen regions out. And that the work stays near linear."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from support.mock_costs import MockCosts
from support.rule_backend import INFO, RuleBackend
from support.text_graph import block, parse_program
from support.written_programs import call, program_of
from tapestry.backends.rules import Ops, Pattern, any_, op
from tapestry.placement.search.candidates import candidates_of, ways_of
from tapestry.placement.search.exact import Effort, Solution, solve
from tapestry.placement.search.problem import Problem, problem_of
from tapestry.placement.search.warm import warm_start
from tapestry.program.graph import Ref
from tapestry.program.program import Program
from tapestry.program.region import quotient_order

OPS = Ops({"aten.relu", "aten.neg", "aten.add", "aten.exp", "aten.mul", "aten.copy"})
#: Whoever runs a node on it saves nine tenths of its time, and pays for each region and each value that crosses.
FAST = MockCosts({"fast": 0.1, "other": 0.2})


def searched(program: Program, *backends: RuleBackend, costs: MockCosts = FAST) -> tuple[Problem, Solution]:
    problem = problem_of(candidates_of(program, ways_of(backends, [INFO])), costs).problem
    solution = solve(problem)
    groups = [problem.priced[number].candidate.nodes for number in solution.choice]
    quotient_order(program, groups)  # raises for a cycle, and for a node in two regions
    assert sorted(name for group in groups for name in group) == sorted(problem.nodes)
    assert solution.gap == 0
    return problem, solution


def regions(program: Program, *backends: RuleBackend, costs: MockCosts = FAST) -> str:
    problem, solution = searched(program, *backends, costs=costs)
    chosen = [problem.priced[number] for number in solution.choice]
    placed = [entry.candidate for entry in sorted(chosen, key=lambda entry: entry.places)]
    return "\n".join(f"{entry.kind.backend}: {' '.join(entry.nodes)}" for entry in placed if not entry.on_source)


def whole(name: str = "fast") -> RuleBackend:
    return RuleBackend(name, OPS)


def fused(*patterns: Pattern) -> RuleBackend:
    return RuleBackend("fast", *patterns, fuses=False)


def test_a_diamond_is_one_region() -> None:
    program = parse_program("""
        x: f32[4]
        a = aten.relu.default(x)
        b = aten.neg.default(a)
        c = aten.exp.default(a)
        d = aten.add.Tensor(b, c)
        return d
    """)
    assert regions(program, whole()) == "fast: a b c d"


def test_a_node_that_nobody_takes_cuts_a_diamond_on_one_side_only() -> None:
    program = parse_program("""
        x: f32[4]
        a = aten.relu.default(x)
        b = aten.tan.default(a)
        c = aten.exp.default(a)
        d = aten.add.Tensor(b, c)
        return d
    """)
    assert regions(program, whole()) == "fast: a c\nfast: d"


def test_two_matches_that_need_each_other_are_not_both_taken() -> None:
    """Each pair alone can run; together each waits for the other's first node."""
    program = parse_program("""
        x: f32[4]
        y: f32[4]
        a = aten.relu.default(x)
        b = aten.neg.default(y)
        c = aten.add.Tensor(a, b)
        d = aten.mul.Tensor(b, a)
        return c, d
    """)
    first, second = op("aten.relu", any_("x")), op("aten.neg", any_("y"))
    one = Pattern((op("aten.add.Tensor", first, any_("z")), first), name="one")
    two = Pattern((op("aten.mul.Tensor", second, any_("z")), second), name="two")
    costs = MockCosts({"fast": 0.01}, per_node=100.0, hop=1.0)
    solution = searched(program, fused(one, two), costs=costs)[1]
    assert regions(program, fused(one, two), costs=costs) in ("fast: a c", "fast: b d")
    assert solution.cuts == 1


def test_siblings_share_a_region_and_a_conversion() -> None:
    """Three readers of one value that crosses: the conversion is paid once."""
    program = parse_program("""
        x: f32[4]
        a = aten.tan.default(x)
        b = aten.neg.default(a)
        c = aten.exp.default(a)
        d = aten.relu.default(a)
        return b, c, d
    """)
    apart = RuleBackend("fast", OPS, fuses=False)
    costs = MockCosts({"fast": 0.1}, per_node=50.0)
    problem, solution = searched(program, apart, costs=costs)
    assert len(problem.crossings(solution.choice)) == 4  # a once, and three results
    assert regions(program, whole()) == "fast: b c d"


def test_a_residual_that_two_patterns_want_is_taken_once() -> None:
    program = parse_program("""
        x: f32[4]
        y: f32[4]
        a = aten.relu.default(x)
        b = aten.neg.default(y)
        c = aten.add.Tensor(a, b)
        return c
    """)
    left = Pattern(op("aten.add.Tensor", op("aten.relu", any_("x")), any_("y")), name="left")
    right = Pattern(op("aten.add.Tensor", any_("x"), op("aten.neg", any_("y"))), name="right")
    costs = MockCosts({"fast": 0.01}, hop=1.0)
    found = regions(program, fused(left, right), costs=costs)
    assert found in ("fast: a c", "fast: b c")
    assert found == regions(program, fused(left, right), costs=costs)


def test_an_intermediate_that_escapes_is_converted_for_its_reader_outside() -> None:
    program = parse_program("""
        x: f32[4]
        a = aten.relu.default(x)
        b = aten.neg.default(a)
        t = aten.tan.default(a)
        return b, t
    """)
    problem, solution = searched(program, whole())
    crossing = [(ref.name, given.backend, wanted.backend) for ref, given, wanted in problem.crossings(solution.choice)]
    assert crossing == [("x", "source", "fast"), ("a", "fast", "source"), ("b", "fast", "source")]


def test_an_input_that_is_an_output_crosses_nothing() -> None:
    program = parse_program("""
        x: f32[4]
        y: f32[4]
        a = aten.relu.default(x)
        return y, a
    """)
    problem, solution = searched(program, whole())
    assert "y" not in {ref.name for ref, _, _ in problem.crossings(solution.choice)}


def test_a_constant_that_all_share_costs_no_conversion_and_makes_no_cycle() -> None:
    program = parse_program("""
        x: f32[4]
        w: param f32[4]
        f = aten.neg.default(w)
        a = aten.add.Tensor(x, f)
        t = aten.tan.default(a)
        b = aten.mul.Tensor(t, f)
        c = aten.add.Tensor(b, a)
        return c
    """)
    problem, solution = searched(program, whole())
    assert {ref.name for ref, _, _ in problem.crossings(solution.choice)} == {"x", "a", "t", "c"}
    assert regions(program, whole()) == "fast: a\nfast: b c"


def test_a_state_stays_with_whoever_writes_it() -> None:
    """A decode step: what crosses is the token and the result, never the cache of a million bytes."""
    program = parse_program("""
        x: f32[4]
        cache: state f32[250000]
        k = aten.add.Tensor(cache, 1.0)
        s = aten.relu.default(x)
        o = aten.neg.default(s)
        write cache = k
        return o
    """)
    problem, solution = searched(program, whole())
    assert {ref.name for ref, _, _ in problem.crossings(solution.choice)} == {"x", "o"}
    # Were the cache left on the source, nothing would cross either; what counts is that moving it costs nothing.
    assert {problem.priced[number].candidate.kind.backend for number in solution.choice} == {"fast"}


def test_a_state_that_is_also_an_output_comes_back() -> None:
    program = parse_program("""
        x: f32[4]
        cache: state f32[4]
        k = aten.add.Tensor(cache, x)
        write cache = k
        return k
    """)
    problem, solution = searched(program, whole(), costs=MockCosts({"fast": 0.01}, per_node=100.0))
    assert ("k", "source") in {(ref.name, wanted.backend) for ref, _, wanted in problem.crossings(solution.choice)}


def test_two_backends_share_a_program_where_each_is_the_faster() -> None:
    program = parse_program("""
        x: f32[4]
        a = aten.relu.default(x)
        b = aten.neg.default(a)
        t = aten.tan.default(b)
        u = aten.tan.default(t)
        return u
    """)
    costs = MockCosts({"fast": 0.1, "other": 0.1}, per_node=50.0)
    assert regions(program, whole(), RuleBackend("other", Ops({"aten.tan"})), costs=costs) == block("""
        fast: a b
        other: t u
    """)


def test_a_refused_candidate_is_not_chosen_and_its_reason_is_kept() -> None:
    program = parse_program("""
        x: f32[4]
        a = aten.relu.default(x)
        b = aten.neg.default(a)
        return b
    """)
    costs = MockCosts({"fast": 0.1}, refused=lambda entry: "crashed" if len(entry.nodes) > 1 else None)
    pricing = problem_of(candidates_of(program, ways_of([whole()], [INFO])), costs)
    assert [(str(entry.candidate), entry.reason) for entry in pricing.refused] == [
        ("a … b [2] by fast (precision=float32) on mock:0", "crashed")
    ]
    assert {len(entry.candidate.nodes) for entry in pricing.problem.priced} == {1}


# -------------------------------------------------------------------------------------------------------------- sizes


def tiny(count: int) -> Program:
    """Operators that do almost nothing, each added to what came five before; every fiftieth is taken by nobody."""
    values, calls = [Ref("input:x")], []
    for place in range(count):
        if place % 50 == 49:
            calls.append(call(f"n{place}", torch.ops.aten.tan.default, values[-1]))
        else:
            calls.append(call(f"n{place}", torch.ops.aten.add.Tensor, values[-1], values[max(0, len(values) - 5)]))
        values.append(Ref(f"n{place}"))
    return program_of(calls, [values[-1]])


def test_hundreds_of_tiny_operators_are_gathered() -> None:
    program = tiny(300)
    problem, solution = searched(program, whole(), costs=MockCosts({"fast": 0.1}, per_node=1.0))
    placed = [problem.priced[number].candidate for number in solution.choice]
    assert max(len(entry.nodes) for entry in placed) >= 45
    assert problem.cost(solution.choice) < 300 * 1000 / 2


def function_calls(work: Callable[[], object]) -> int:
    """How many Python functions are called: what no load of the machine changes."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_planning_takes_work_in_proportion_to_the_nodes() -> None:
    """Four times the nodes: at most five times the work, and so at 2,000 nodes, whose problem is solved below."""
    counted = []
    for size in (125, 500):
        program, costs = tiny(size), MockCosts({"fast": 0.1})

        def plan(program: Program = program, costs: MockCosts = costs) -> None:
            found = problem_of(candidates_of(program, ways_of([whole()], [INFO])), costs)
            warm_start(found.problem, 1.0)

        counted.append((function_calls(plan), costs.asked["region"], costs.asked["boundary"]))
    (few, asked, hops), (many, asked_later, hops_later) = counted
    assert many <= 5 * few
    assert asked_later <= 5 * asked
    assert hops_later == hops  # one for each pair of kinds and size of a value


def test_two_thousand_nodes_are_placed() -> None:
    program, costs = tiny(2000), MockCosts({"fast": 0.1, "other": 0.12}, per_node=1.0, noise=0.5)
    backends = [whole(), whole("other")]
    problem = problem_of(candidates_of(program, ways_of(backends, [INFO])), costs).problem
    solution = solve(problem, effort=Effort(work=1.0))
    quotient_order(program, [problem.priced[number].candidate.nodes for number in solution.choice])
    assert costs.asked["region"] <= 10 * 2000
    assert solution.cost <= problem.cost(warm_start(problem, 1.0))
    assert 0 <= solution.gap < 0.5


def test_the_answer_does_not_hang_on_the_order_of_the_backends() -> None:
    program = tiny(60)
    backends = [whole(), whole("other")]
    first = searched(program, *backends)[1]
    second = searched(program, *reversed(backends))[1]
    assert first.cost == second.cost
