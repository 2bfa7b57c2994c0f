"""The rule ``Grow``: from a seed towards the results, as long as everything between is fusible.

The growth of Collage's pattern generators (Jeon et al., PACT 2022, section 4) and of TVM's FuseOps: from the call
that the region ends with to its immediate post-dominator, with all calls on the paths between. The region then has
that one end, so it swallows nothing and makes no cycle.

Not here: post-dominators themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tapestry.backends.rules.dominators import post_dominators
from tapestry.backends.rules.expression import Expression
from tapestry.backends.rules.index import GraphIndex
from tapestry.backends.rules.pattern import Pattern
from tapestry.backends.rules.rule import NO_RULE, Match, Matchable, Rule, RuleError, Scope
from tapestry.backends.rules.single import CallRule
from tapestry.backends.rules.view import MatchView, Predicate, judged
from tapestry.program.graph import Call
from tapestry.program.serial import overload_name
from tapestry.runtime.device import DeviceInfo


@dataclass(frozen=True)
class Grow(Rule):
    """Regions that start at ``seed`` and grow over the calls that ``follow`` takes.

    One step goes to the immediate post-dominator of the region's last call and takes every call on the way. Growth
    ends where a call on the way is not taken by ``follow``, where a value leaves the graph, or after a call that
    ``stop`` takes, which is the region's last. Each step that ``when`` accepts is a match, the largest first; the
    seed alone is one of them. Captures are those of the seed, which must have a single output. ``limit`` is the
    largest number of calls: what a kernel can fuse is far smaller, and the steps of a long growth are many.
    """

    seed: Pattern | Expression
    follow: CallRule
    stop: CallRule | None = None
    when: Predicate | None = None
    name: str = ""
    limit: int = 64

    def __post_init__(self) -> None:
        if len(self.start.outputs) != 1:
            raise RuleError(f"expected a seed with one output, got {self.start.label}")

    @cached_property
    def start(self) -> Pattern:
        """The seed as a rule of its own."""
        return self.seed if isinstance(self.seed, Pattern) else Pattern(self.seed)

    @property
    def label(self) -> str:
        return self.name or f"Grow({self.start.label})"

    def refuses(self, call: Call, info: DeviceInfo) -> str | None:
        if not self._speaks_of(call, info):
            return f"{NO_RULE}{overload_name(call.target)}"
        return f"{overload_name(call.target)} is taken only in regions that grow from {self.start.label}"

    def refuses_in(self, graph: Matchable, node: str, info: DeviceInfo) -> str | None:
        index = GraphIndex.of(graph)
        call = index.call(node)
        if self.start.refuses_in(index, node, info) is not None:
            return self.refuses(call, info)
        (seed,) = (match for match in self.start.at(call, Scope(index, info)) if match.nodes == (node,))
        return self._refused(Scope(index, info), (node,), seed)

    def find(self, scope: Scope) -> Iterator[Match]:
        above = post_dominators(scope.index)
        for seed in self.start.find(scope):
            stages, _ = self._growth(scope, above, seed)
            for nodes in reversed(stages):
                if self._refused(scope, nodes, seed) is None:
                    yield Match(nodes, seed.bindings, self)

    def why_not(self, scope: Scope, call: Call) -> str | None:
        if not self._speaks_of(call, scope.info):
            return f"{NO_RULE}{overload_name(call.target)}"
        above = post_dominators(scope.index)
        reasons: list[str] = []
        for seed in self.start.find(scope):
            stages, end = self._growth(scope, above, seed)
            held = [nodes for nodes in stages if call.name in nodes]
            refusals = [self._refused(scope, nodes, seed) for nodes in held]
            if None in refusals:
                return None
            if held or scope.index.position[seed.nodes[-1]] < scope.index.position[call.name]:
                reasons.append(next((reason for reason in refusals if reason), end))
        if call.target in self.start.targets:
            reasons = [self.start.why_not(scope, call) or "", *reasons]
        return next((reason for reason in reversed(reasons) if reason), f"no {self.start.label} comes before it")

    # ------------------------------------------------------------------------------------------------------- growth

    def _speaks_of(self, call: Call, info: DeviceInfo) -> bool:
        rules = (self.follow, self.stop) if self.stop else (self.follow,)
        return call.target in self.start.targets or any(rule.refuses(call, info) is None for rule in rules)

    def _growth(self, scope: Scope, above: dict[str, str], seed: Match) -> tuple[list[tuple[str, ...]], str]:
        """The region after each step, the seed first, and what ended the growth."""
        stages = [seed.nodes]
        last = seed.nodes[-1]
        while True:
            if self._stops(scope, last) and len(stages) > 1:
                return stages, f"growth from {seed.nodes[0]} ends after {last}"
            if last not in above:
                return stages, f"growth from {seed.nodes[0]} ends at {last}: its value has readers that never meet"
            between = self._between(scope, last, above[last])
            if isinstance(between, str):
                return stages, f"growth from {seed.nodes[0]} ends at {last}: {between}"
            if len(stages[-1]) + len(between) > self.limit:
                return stages, f"growth from {seed.nodes[0]} ends at {last}: a region holds at most {self.limit} calls"
            last = above[last]
            stages.append((*stages[-1], *scope.index.ordered(between)))  # all of them come after the last one

    def _stops(self, scope: Scope, name: str) -> bool:
        return self.stop is not None and self.stop.refuses(scope.index.by_name[name], scope.info) is None

    def _between(self, scope: Scope, start: str, end: str) -> set[str] | str:
        """The calls on the paths from ``start`` to its post-dominator ``end``, which is one; or what bars one."""
        found: set[str] = set()
        waiting = list(scope.index.data_after[start])
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            call = scope.index.by_name[name]
            reason = scope.bars(call) or self.follow.refuses(call, scope.info)
            if reason is not None and not (name == end and scope.bars(call) is None and self._stops(scope, name)):
                return f"{name} is not followed: {reason}"
            found.add(name)
            if name != end:
                waiting.extend(scope.index.data_after[name])
        return found

    def _refused(self, scope: Scope, nodes: tuple[str, ...], seed: Match) -> str | None:
        when = self.when
        if when is None:
            return None
        view = MatchView(scope.index, scope.info, nodes, seed.bindings)
        return judged(self.label, nodes, lambda: when(view))
