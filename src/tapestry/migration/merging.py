"""Merging offloaded nodes into larger regions, and finding what is right node by node but wrong together.

Not here: running a step (steps), and what a finding looks like (engine).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tapestry.errors import UsageError
from tapestry.migration.check import CheckResult
from tapestry.migration.levels import Regions, cut, merge_depths, refined
from tapestry.migration.steps import Steps
from tapestry.program.graph import operands
from tapestry.program.program import Program
from tapestry.program.region import quotient_order, region_of

#: Of the nodes between the two ends of a wrong set so many are told from innocent ones, each by a bisection.
_MOST_BETWEEN = 2


@dataclass(frozen=True)
class Together:
    """Nodes that are wrong when compiled as one region, and the same of every other place with that region's key."""

    places: tuple[tuple[str, ...], ...]
    result: CheckResult


class Merging:
    """Merges coarser and coarser, as long as the whole program stays right.

    A set of nodes that is wrong together is handed to ``found``; it is kept apart from then on, at every place with
    its key: the last node of each place becomes a region of its own, and the rest is merged without it.
    """

    def __init__(self, steps: Steps, found: Callable[[Together], None]) -> None:
        self.steps = steps
        self.program = steps.program
        self.apart: set[str] = set()
        self._found = found
        self._hopeless: set[tuple[str, ...]] = set()
        #: The last bad result: what a finding quotes.
        self._bad: CheckResult

    def run(self, moved: Sequence[str], start: Regions, tell: Callable[[str, int, int], None]) -> Regions:
        """The moved nodes as few regions as stay right. ``start`` are the regions they are in already."""
        current = start
        depths = merge_depths(self.program, moved, self.steps.choice.label)
        for done, keep in enumerate(depths):
            tell("merging", done, len(depths))
            current = self._level(current, moved, keep)
        tell("merging", len(depths), len(depths))
        return current

    def _level(self, current: Regions, moved: Sequence[str], keep: int) -> Regions:
        while True:
            wanted = self._wanted(current, cut(self.program, moved, keep, self.steps.choice.label, self.apart))
            if not wanted:
                return current
            count = self._right(current, wanted)
            current = replaced(current, wanted[:count])
            if count == len(wanted):
                return current
            self._reduce(current, wanted[count])
            current = refined(self.program, current, self.apart)

    def _wanted(self, current: Regions, level: Regions) -> list[tuple[str, ...]]:
        """The regions of a level that are new, compile, tear none apart that is kept, and make no cycle."""
        known = set(current)
        wanted: list[tuple[str, ...]] = []
        for region in level:
            if region in known or region in self._hopeless or _crosses(current, region):
                continue
            if not self._acyclic(replaced(current, [*wanted, region])):
                continue
            if self.steps.compiles(region):
                wanted.append(region)
            else:
                self._hopeless.add(region)
        return wanted

    def _acyclic(self, regions: Regions) -> bool:
        try:
            quotient_order(self.program, regions)
        except UsageError:
            return False
        return True

    def _right(self, current: Regions, wanted: Sequence[tuple[str, ...]]) -> int:
        """How many of the wanted regions, from the first, can be put in place of their parts."""

        if self._good("merge", replaced(current, wanted)):
            return len(wanted)
        return last_good(0, len(wanted), lambda count: self._good("merge", replaced(current, wanted[:count])))

    def _reduce(self, current: Regions, wrong: tuple[str, ...]) -> None:
        """Narrow a wrong region down to few nodes that are wrong together, and hand them on.

        The shortest prefix that is wrong, then its shortest suffix, then what lies between the two ends: a node there
        is innocent when the region is wrong although the source gives it that node's results. Prefixes and suffixes
        of a convex region, in program order, are convex, and so are the hulls.
        """
        rest = tuple(region for region in current if region[0] not in set(wrong))

        def right(nodes: Sequence[str]) -> bool:
            region = hull(self.program, nodes)
            others = [node_id for node_id in wrong if node_id not in set(region)]
            return self._good("search", (*rest, region, *alone(others)), frozenset(region) - set(nodes))

        end = 1 + last_good(1, len(wrong), lambda count: right(wrong[:count]))
        start = first_good(end, lambda begin: right(wrong[begin:end]))
        guilty = self._thinned(wrong[start:end], right)
        region = hull(self.program, guilty)
        chosen = [region.index(node_id) for node_id in guilty]
        places = alike(self.program, region)
        self.apart.update(place[-1] for place in places)
        self._found(Together(tuple(tuple(place[at] for at in chosen) for place in places), self._bad))

    def _good(self, kind: str, regions: Regions, given: frozenset[str] = frozenset()) -> bool:
        result = self.steps.step(kind, regions, given)
        if not result.good:
            self._bad = result
        return result.good

    def _thinned(self, nodes: tuple[str, ...], right: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
        """Leave out what lies between the two ends and is innocent: look for those needed, from the last."""
        first, *inner, last = nodes
        needed: list[str] = []
        while inner and right([first, *needed, last]):
            if len(needed) == _MOST_BETWEEN:
                return (first, *inner, *needed, last)
            before = inner

            def good(count: int) -> bool:
                return right([first, *before[:count], *needed, last])  # noqa: B023 (called before ``before`` changes)

            place = last_good(0, len(inner), good)
            needed.insert(0, inner[place])
            inner = inner[:place]
        return (first, *needed, last)


def last_good(low: int, high: int, good: Callable[[int], bool]) -> int:
    """The largest count known to be good, by bisection: ``low`` is good, ``high`` is not."""
    while high - low > 1:
        middle = (low + high) // 2
        if good(middle):
            low = middle
        else:
            high = middle
    return low


def first_good(length: int, good: Callable[[int], bool]) -> int:
    """The last start that is still bad: 0 is bad, a single node (start ``length - 1``) is good."""
    low, high = 0, length - 1
    while high - low > 1:
        middle = (low + high) // 2
        if good(middle):
            high = middle
        else:
            low = middle
    return low


def hull(program: Program, nodes: Sequence[str]) -> tuple[str, ...]:
    """The smallest convex set with these nodes, in program order: they, and all that lies on paths between them."""
    chosen = set(nodes)
    first = min(program.position[node_id] for node_id in nodes)
    last = max(program.position[node_id] for node_id in nodes)
    between = program.nodes[first : last + 1]
    below: set[str] = set()
    for node in between:
        if node.id in chosen or any(ref.name in below for ref in operands(node.call)):
            below.add(node.id)
    above: set[str] = set()
    for node in reversed(between):
        if node.id in chosen or node.id in above:
            above.add(node.id)
            above.update(ref.name for ref in operands(node.call))
    return tuple(node.id for node in between if node.id in below and node.id in above)


def alike(program: Program, nodes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """These nodes and every other place with their key, where it is repeated as a block (the layers of a model)."""
    key = region_of(program, nodes).key
    first = program.position[nodes[0]]
    offsets = [program.position[node_id] - first for node_id in nodes]
    ops = [program.by_id[node_id].op for node_id in nodes]
    movable = set(program.placeable)
    found: list[tuple[str, ...]] = []
    for begin in range(len(program.nodes) - offsets[-1]):
        place = tuple(program.nodes[begin + offset].id for offset in offsets)
        if not all(node_id in movable for node_id in place) or [program.by_id[node_id].op for node_id in place] != ops:
            continue
        if place == tuple(nodes) or _key_of(program, place) == key:
            found.append(place)
    return tuple(found)


def _key_of(program: Program, nodes: Sequence[str]) -> str | None:
    try:
        return region_of(program, nodes).key
    except UsageError:
        return None  # not convex there


def alone(nodes: Sequence[str]) -> Regions:
    """Each node a region of its own."""
    return tuple((node_id,) for node_id in nodes)


def replaced(current: Regions, wanted: Sequence[tuple[str, ...]]) -> Regions:
    """The wanted regions in place of their parts."""
    taken = {node_id for region in wanted for node_id in region}
    return (*(region for region in current if region[0] not in taken), *wanted)


def _crosses(current: Regions, region: tuple[str, ...]) -> bool:
    """Whether a region would tear apart one that is kept from an earlier level."""
    inside = set(region)
    return any(inside & set(part) and not set(part) <= inside for part in current)
