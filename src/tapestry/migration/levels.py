"""How offloaded nodes are merged into regions, step by step: by the module tree from its leaves to the whole.

Not here: checking a merge (engine).
"""

from __future__ import annotations

from collections.abc import Collection

from tapestry.placement.grouping import group_by_label
from tapestry.program.program import Program

Regions = tuple[tuple[str, ...], ...]

#: A level is tried when it has at most this share of the regions of the one before.
_SHRINK = 0.5


def merge_levels(program: Program, moved: Collection[str]) -> list[Regions]:
    """Partitions of the moved nodes into regions, from fine to coarse; the last one is as few regions as can be.

    The starting point, one region per node, is not among them.
    """
    depth = max((node.source.module.count(".") + 1 for node in program.nodes if node.source.module), default=0)
    levels: list[Regions] = []
    count = len(moved)
    for keep in range(depth, -1, -1):
        labels = {node_id: _prefix(program.by_id[node_id].source.module, keep) for node_id in moved}
        regions = group_by_label(program, labels)
        if len(regions) <= _SHRINK * count or (keep == 0 and len(regions) < count):
            levels.append(regions)
            count = len(regions)
    return levels


def _prefix(module: str, keep: int) -> str:
    return ".".join(module.split(".")[:keep])
