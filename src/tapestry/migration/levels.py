"""How offloaded nodes are merged into regions, step by step: by the module tree from its leaves to the whole.

Not here: checking a merge (merging).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tapestry.placement.grouping import group_by_label
from tapestry.program.program import Program

Regions = tuple[tuple[str, ...], ...]

#: A level is tried when it has at most this share of the regions of the one before.
_SHRINK = 0.5


#: Nodes with another label never share a region.
Label = Callable[[str], str]


def merge_depths(program: Program, moved: Collection[str], label: Label) -> list[int]:
    """The depths of the module tree at which to cut, from fine to coarse; the last one, 0, is the whole program.

    Empty when there is nothing to merge.
    """
    if len(moved) < 2:
        return []
    depth = max((node.source.module.count(".") + 1 for node in program.nodes if node.source.module), default=0)
    found: list[int] = []
    count = len(moved)
    for keep in range(depth, -1, -1):
        regions = cut(program, moved, keep, label)
        if len(regions) <= _SHRINK * count or (keep == 0 and len(regions) < count):
            found.append(keep)
            count = len(regions)
    return found


def cut(program: Program, moved: Collection[str], keep: int, label: Label, apart: Collection[str] = ()) -> Regions:
    """The moved nodes as regions of one module each, modules told apart by the first ``keep`` parts of their path.

    Nodes in ``apart`` are regions of one. With ``keep`` 0, one label and none apart these are as few regions as can be.
    """
    labels = {
        node_id: node_id if node_id in apart else (label(node_id), _prefix(program.by_id[node_id].source.module, keep))
        for node_id in moved
    }
    return group_by_label(program, labels)


def refined(program: Program, regions: Regions, apart: Collection[str]) -> Regions:
    """These regions, with the nodes in ``apart`` taken out of them; what is left of a region stays convex."""
    labels = {
        node_id: node_id if node_id in apart else place for place, region in enumerate(regions) for node_id in region
    }
    return group_by_label(program, labels)


def _prefix(module: str, keep: int) -> str:
    return ".".join(module.split(".")[:keep])
