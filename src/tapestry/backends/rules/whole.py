"""The rule ``Whole``: as few and as large regions as there can be, for backends that take whole graphs.

Not here: cutting them (the placement search).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tapestry.backends.rules.index import GraphIndex
from tapestry.backends.rules.rule import Match, Matchable, Rule, Scope
from tapestry.backends.rules.single import CallRule
from tapestry.backends.rules.view import MatchView, Predicate, judged
from tapestry.program.graph import Call
from tapestry.runtime.device import DeviceInfo


@dataclass(frozen=True)
class Whole(Rule):
    """The maximal regions of the calls that ``ops`` takes: together they hold all such calls.

    The regions can run one after the other (with the other calls between them), and no two of them could be one
    region: a path from the one to the other goes through a call that is not taken. A region may have parts that are
    not connected. ``when`` sees each region and may refuse it.
    """

    ops: CallRule
    when: Predicate | None = None
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or f"Whole({self.ops.label})"

    def refuses(self, call: Call, info: DeviceInfo) -> str | None:
        return self.ops.refuses(call, info)

    def refuses_in(self, graph: Matchable, node: str, info: DeviceInfo) -> str | None:
        index = GraphIndex.of(graph)
        return self.refuses(index.call(node), info) or self._refused(Scope(index, info), (node,))

    def find(self, scope: Scope) -> Iterator[Match]:
        for nodes in self._regions(scope):
            if self._refused(scope, nodes) is None:
                yield Match(nodes, {}, self)

    def why_not(self, scope: Scope, call: Call) -> str | None:
        reason = self.ops.refuses(call, scope.info)
        if reason is not None:
            return reason
        region = next(nodes for nodes in self._regions(scope) if call.name in nodes)
        return self._refused(scope, region)

    def _regions(self, scope: Scope) -> list[tuple[str, ...]]:
        """Taken calls by their level: the largest number of times that a path to them leaves the taken calls.

        Levels never fall along a path, so one region per level can run in order of the levels. A call at level k + 1
        has a path from level k through a call that is not taken, so no two levels can be one region, and fewer
        regions than levels are not possible.
        """
        index = scope.index
        level: dict[str, int] = {}
        regions: list[list[str]] = []
        taken: set[str] = set()
        for call in index.calls:
            inside = scope.bars(call) is None and self.ops.refuses(call, scope.info) is None
            before = index.before[call.name]
            level[call.name] = max((level[name] + (name in taken and not inside) for name in before), default=0)
            if not inside:
                continue
            taken.add(call.name)
            while len(regions) <= level[call.name]:
                regions.append([])
            regions[level[call.name]].append(call.name)
        return [tuple(nodes) for nodes in regions if nodes]

    def _refused(self, scope: Scope, nodes: tuple[str, ...]) -> str | None:
        when = self.when
        if when is None:
            return None
        view = MatchView(scope.index, scope.info, nodes, {})
        return judged(self.label, nodes, lambda: when(view))
