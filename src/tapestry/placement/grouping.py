"""Cutting a program into regions: nodes that share a label become as few regions as stay convex and acyclic.

Not here: what the labels are (modules, backends).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from tapestry.program.graph import operands
from tapestry.program.program import Program


def group_by_label(program: Program, labels: Mapping[str, Hashable]) -> tuple[tuple[str, ...], ...]:
    """Regions of the labelled nodes, in order of their first node.

    Every region holds nodes of one label; unlabelled nodes count as regions of one, so that no cycle runs through
    them either; random nodes keep their order. A node joins the first region of its label that does not already
    lead to it through another one: with a single label, that gives as few regions as there can be.
    The invariant: what a region needs, transitively, never includes itself.
    """
    return _Grouping(program, labels).run()


class _Grouping:
    def __init__(self, program: Program, labels: Mapping[str, Hashable]) -> None:
        self.program = program
        self.labels = labels
        self.members: list[list[str]] = []
        self.needs: list[int] = []  # bit sets of regions, transitively
        self.home: dict[str, int] = {}
        self.by_label: dict[Hashable, list[int]] = {}
        self.labelled: list[int] = []

    def run(self) -> tuple[tuple[str, ...], ...]:
        for node in self.program.nodes:
            if node.id in self.program.folded:
                continue
            above = {self.home[ref.name] for ref in operands(node.call) if ref.name in self.home}
            if node.id in self.program.random_before:
                above.add(self.home[self.program.random_before[node.id]])
            place = self._find(node.id, above)
            self.home[node.id] = place
            self.members[place].append(node.id)
            self._depend(place, above - {place})
        return tuple(tuple(self.members[place]) for place in self.labelled)

    def _find(self, node_id: str, above: set[int]) -> int:
        if node_id not in self.labels:
            return self._open()
        label = self.labels[node_id]
        for place in self.by_label.setdefault(label, []):
            bit = 1 << place
            if not any(self.needs[other] & bit for other in above if other != place):
                return place
        place = self._open()
        self.by_label[label].append(place)
        self.labelled.append(place)
        return place

    def _open(self) -> int:
        self.members.append([])
        self.needs.append(0)
        return len(self.members) - 1

    def _depend(self, place: int, above: set[int]) -> None:
        new = 0
        for other in above:
            new |= (1 << other) | self.needs[other]
        if new | self.needs[place] == self.needs[place]:
            return
        self.needs[place] |= new
        bit = 1 << place
        for other, needed in enumerate(self.needs):
            if needed & bit:
                self.needs[other] |= new
