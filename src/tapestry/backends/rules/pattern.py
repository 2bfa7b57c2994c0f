"""The rule ``Pattern``: every place where an expression fits the graph and the calls it takes are a region.

Not here: the expressions and the matcher.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from tapestry.backends.rules.convex import returning_path, swallowed, text
from tapestry.backends.rules.expression import Either, Expression, Item, Op, Wildcard, output_calls, targets_of
from tapestry.backends.rules.index import GraphIndex
from tapestry.backends.rules.matcher import Matcher, State, Trace
from tapestry.backends.rules.rule import NO_RULE, Match, Matchable, Rule, RuleError, Scope
from tapestry.backends.rules.view import MatchView, Predicate, judged
from tapestry.program.graph import Call, Ref, refs_in
from tapestry.program.serial import overload_name
from tapestry.runtime.device import DeviceInfo


@dataclass(frozen=True, eq=False)
class Pattern(Rule):
    """The regions that an expression fits, under a condition.

    ``expression`` stands for the value that the region hands out; a tuple of expressions for several, each of which
    must share an expression or a name with those before it. ``when`` sees the whole match. A match is given only if
    nothing outside reads a value inside (other than the outputs) and no path leaves the region and comes back.
    RuleError for outputs that no call makes or that have nothing to do with each other.
    """

    expression: Expression | tuple[Expression, ...]
    when: Predicate | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.outputs:
            raise RuleError("expected at least one output in a pattern, got none")
        known: set[object] = set()
        for place, output in enumerate(self.outputs):
            output_calls(output)
            marks = _marks(output)
            if place and not marks & known:
                raise RuleError(f"pattern {self.label}: output {place} shares no value with the outputs before it")
            known |= marks

    @property
    def label(self) -> str:
        return self.name or ", ".join(map(str, self.outputs))

    @cached_property
    def outputs(self) -> tuple[Expression, ...]:
        """The expressions of the values that a match hands out."""
        return self.expression if isinstance(self.expression, tuple) else (self.expression,)

    @cached_property
    def calls(self) -> tuple[Op, ...]:
        """All ``op`` expressions of the pattern."""
        found = (part for output in self.outputs for part in output.walk() if isinstance(part, Op))
        return tuple(dict.fromkeys(found))

    @cached_property
    def targets(self) -> frozenset[torch._ops.OpOverload]:
        """All overloads that the pattern can take."""
        return targets_of(self.calls)

    def refuses(self, call: Call, info: DeviceInfo) -> str | None:
        if call.target not in self.targets:
            return f"{NO_RULE}{overload_name(call.target)}"
        return f"{overload_name(call.target)} is taken only where it stands in the pattern {self.label}"

    def refuses_in(self, graph: Matchable, node: str, info: DeviceInfo) -> str | None:
        scope = Scope(GraphIndex.of(graph), info)
        call = scope.index.call(node)
        if any(match.nodes == (node,) for match in self.at(call, scope)):
            return None
        return self.refuses(call, info) if len(self.calls) > 1 else self.explain(graph, node, info)

    def at(self, call: Call, scope: Scope) -> Iterator[Match]:
        """The matches whose first output ``call`` makes."""
        return self._from((call,), scope, None)

    def find(self, scope: Scope) -> Iterator[Match]:
        return self._from(_anchors(self.outputs[0], scope.index.calls, scope), scope, None)

    def why_not(self, scope: Scope, call: Call) -> str | None:
        if call.target not in self.targets:
            return f"{NO_RULE}{overload_name(call.target)}"
        near: Trace | None = None
        left_out = ""
        for anchor in self._anchors_near(scope, call):
            trace = Trace(call.name)
            matches: list[tuple[str, ...]] = [match.nodes for match in self._from((anchor,), scope, trace)]
            if any(call.name in nodes for nodes in matches):
                return None
            if matches:  # what backtracking met besides is no reason
                left_out = left_out or f"the match of {', '.join(matches[0][:4])} leaves it out"
            elif near is None or trace.reached > near.reached:
                near = trace
        ends = " or ".join(dict.fromkeys(wanted.operator for wanted, _ in output_calls(self.outputs[0])))
        nothing = f"{call.name} leads to no {ends}, which the pattern {self.label} ends with"
        return (near and near.reason) or left_out or nothing

    def _anchors_near(self, scope: Scope, call: Call) -> Iterator[Call]:
        """The calls that may make the first output of a match that holds ``call``."""
        index, after, first = scope.index, scope.index.data_after, self.outputs[0]
        around, steps = after, _height(first) - 1
        if len(self.outputs) > 1:  # the first output need not come after the call
            around, steps = {name: (*index.before[name], *after[name]) for name in after}, len(self.calls)
        found = edge = {call.name}
        for _ in range(steps):
            edge = {other for name in edge for other in around[name]} - found
            found = found | edge
        return _anchors(first, (index.by_name[name] for name in index.ordered(found)), scope)

    # ------------------------------------------------------------------------------------------------------ finding

    def _from(self, anchors: Iterable[Call], scope: Scope, trace: Trace | None) -> Iterator[Match]:
        """The matches whose first output one of ``anchors`` makes, those of the same calls once."""
        matcher = Matcher(scope, self.label, trace)
        items = sorted({item for _, item in output_calls(self.outputs[0])})
        seen: set[frozenset[str]] = set()
        for call in anchors:
            for item in items:
                value = Ref(call.name, item)
                for first in matcher.match(self.outputs[0], value, State(), call.name):
                    for state in self._further(1, matcher, first):
                        if frozenset(state.nodes) not in seen and self._accepts(matcher, state):
                            seen.add(frozenset(state.nodes))
                            yield Match(scope.index.ordered(state.nodes), state.names, self)

    def _further(self, place: int, matcher: Matcher, state: State) -> Iterator[State]:
        """The ways to match the outputs from number ``place`` on."""
        if place == len(self.outputs):
            yield state
            return
        output = self.outputs[place]
        starts = tuple(_linked(output, matcher.scope, state))
        if not starts:
            matcher.miss(state, lambda: f"no call reads what {output} shares with the rest of the pattern")
        for value in starts:
            for found in matcher.match(output, value, state, text(value)):
                yield from self._further(place + 1, matcher, found)

    def _accepts(self, matcher: Matcher, state: State) -> bool:
        reason = self._problem(matcher.scope, state)
        if reason is not None:
            matcher.miss(state, lambda: reason)
        return reason is None

    def _problem(self, scope: Scope, state: State) -> str | None:
        nodes = scope.index.ordered(state.nodes)
        handed_out = [_taken(output, state) for output in self.outputs]

        def is_output(ref: Ref) -> bool:
            return any(ref.name == name and item in {None, ref.item} for name, item in handed_out)

        return (
            _inner_operand(state)
            or swallowed(scope.index, state.nodes, is_output)
            or returning_path(scope.index, state.nodes)
            or self._refused(scope, nodes, state)
        )

    def _refused(self, scope: Scope, nodes: tuple[str, ...], state: State) -> str | None:
        when = self.when
        if when is None:
            return None
        view = MatchView(scope.index, scope.info, nodes, state.names)
        return judged(self.label, nodes, lambda: when(view))


def _height(expression: Expression) -> int:
    """The number of calls on the longest way from an expression to an operand."""
    return isinstance(expression, Op) + max(map(_height, expression.parts), default=0)


def _marks(output: Expression) -> set[object]:
    """What an output can share with another: its expressions and the names in it."""
    found: set[object] = set(output.walk())
    return found | {name for part in output.walk() if (name := _name(part))}


def _name(expression: Expression) -> str:
    name: object = getattr(expression, "name", "")
    return name if isinstance(name, str) else ""


def _anchors(output: Expression, calls: Iterable[Call], scope: Scope) -> Iterator[Call]:
    """The calls among ``calls`` that may make an output of the pattern."""
    targets = targets_of(tuple(wanted for wanted, _ in output_calls(output)))
    if calls is not scope.index.calls:
        return (call for call in calls if call.target in targets)
    found = [call for target in targets for call in scope.index.by_target.get(target, ())]
    return iter(sorted(found, key=lambda call: scope.index.position[call.name]))


def _linked(output: Expression, scope: Scope, state: State) -> Iterator[Ref]:
    """The values that may be a further output: reached by readers from what it shares with the state."""
    index = scope.index
    shared = {ref for value in _shared(output, state) for ref in refs_in(value)}
    reached = {ref.name for ref in shared} & index.by_name.keys()
    front = {reader for ref in shared for reader in _readers(index, ref)}
    for _ in range(_height(output)):
        reached |= front
        front = {reader for name in front for reader in index.data_after[name]} - reached
    wanted = {(target, item) for call, item in output_calls(output) for target in call.slots}
    for name in index.ordered(reached):
        call = index.by_name[name]
        yield from (Ref(name, item) for item in range(len(call.outputs)) if (call.target, item) in wanted)


def _readers(index: GraphIndex, ref: Ref) -> tuple[str, ...]:
    """The calls that read a value, or any result of the call that makes it."""
    return index.data_after[ref.name] if ref.name in index.data_after else index.readers.get(ref, ())


def _shared(output: Expression, state: State) -> Iterator[object]:
    """The values bound already to parts of ``output``."""
    for part in output.walk():
        if part in state.values:
            yield state.values[part]
        elif _name(part) in state.names:
            yield state.names[_name(part)]


def _taken(output: Expression, state: State) -> tuple[str, int | None]:
    """The call that makes an output, and which result that is; None stands for all of them."""
    if isinstance(output, Either):
        value = state.values[output]
        return _taken(next(option for option in output.options if state.values.get(option) == value), state)
    value = state.values[output]
    assert isinstance(value, Ref)
    return value.name, value.item if isinstance(output, Item) else None


def _inner_operand(state: State) -> str | None:
    """A wildcard that stands for what the match itself makes: a kernel could not read it as an input."""
    for expression, value in state.values.items():
        if isinstance(expression, Wildcard):
            inner = next((ref for ref in refs_in(value) if ref.name in state.nodes), None)
            if inner is not None:
                return f"operand {expression} is {text(inner)}, which the match itself computes"
    return None
