"""Which of a device's backends takes each node of a program, and which nodes may share a region.

Not here: finding out whose cases are right (suite.replay).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tapestry.backends.rules import largest_first, select
from tapestry.program.program import Program
from tapestry.suite.on_target import Target


class Choice:
    """Which target takes each node of a program, and which nodes may share a region."""

    def __init__(self, program: Program, targets: Sequence[Target]) -> None:
        self.program = program
        self.targets = tuple(targets)
        self._of: dict[str, Target] = {}
        self._claimed: dict[str, tuple[str, ...]] = {}

    def assign(self, nodes: Iterable[str], target: Target) -> None:
        """These nodes go to this target."""
        self._of.update(dict.fromkeys(nodes, target))

    def claim(self, nodes: Sequence[str], target: Target) -> None:
        """These nodes are one region of this target, and share none with others."""
        self._claimed.update(dict.fromkeys(nodes, tuple(nodes)))
        self._of.update(dict.fromkeys(nodes, target))

    def copy(self) -> Choice:
        """The same choices, to be changed apart from these."""
        twin = Choice(self.program, self.targets)
        twin._of.update(self._of)
        twin._claimed.update(self._claimed)
        return twin

    def restore(self, other: Choice) -> None:
        """Take over another's choices."""
        self._of, self._claimed = dict(other._of), dict(other._claimed)

    def target(self, region: Sequence[str]) -> Target:
        """The target of a region, whose nodes all go to the same one; the least preferred where nothing was said."""
        return self._of.get(region[0], self.targets[-1])

    def label(self, node_id: str) -> str:
        """Nodes with another label never share a region: other backends, claimed regions, kernels for single calls."""
        if node_id in self._claimed:
            return f"claimed {self._claimed[node_id][0]}"
        target = self.target((node_id,))
        return target.backend.name if target.backend.fuses else f"alone {node_id}"

    def matches(self, moved: Iterable[str]) -> list[tuple[Target, tuple[str, ...]]]:
        """Regions of several moved nodes that a backend's rules match as a whole, where it does not fuse by itself."""
        allowed = set(moved)
        found: list[tuple[Target, tuple[str, ...]]] = []
        for target in self.targets:
            if target.backend.fuses:
                continue
            matches = [
                match
                for match in target.backend.matches(self.program, target.resident.device.info)
                if len(match.nodes) > 1 and set(match.nodes) <= allowed
            ]
            chosen = select(self.program, sorted(matches, key=largest_first)).chosen
            found += [(target, match.nodes) for match in chosen]
            allowed -= {node_id for match in chosen for node_id in match.nodes}
        return found
