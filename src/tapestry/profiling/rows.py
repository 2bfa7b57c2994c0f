"""From times and work to what a profile shows: rates, shares of the roof, headroom, and sums by operator.

Not here: measuring.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from tapestry.profiling.result import OperatorProfile, RegionProfile, Roofs, Site, Timing
from tapestry.program.program import Program
from tapestry.program.work import Work


def operator_of(program: Program, node_id: str) -> str:
    """The operator that the user wrote, where capture knows it: that of the node's origin."""
    node = program.by_id[node_id]
    return program.origins[node.origin].op if node.origin in program.origins else node.op


def operators_of(program: Program, nodes: Iterable[str]) -> tuple[str, ...]:
    """The operators of some nodes, each once; views are left out where there is anything else."""
    found = list(nodes)
    computing = [node_id for node_id in found if node_id in program.compute]
    return tuple(dict.fromkeys(operator_of(program, node_id) for node_id in computing or found))


def site_of(program: Program, nodes: Sequence[str]) -> Site:
    """Where the nodes are: named by the first one that computes."""
    first = next((node_id for node_id in nodes if node_id in program.compute), nodes[0])
    source = program.by_id[first].source
    return Site(tuple(nodes), source.module, str(source))


def against_roof(row: RegionProfile, timing: Timing, work: Work, roofs: Roofs) -> RegionProfile:
    """The row with its time and what that means: its rates, which roof is lower, how near it is, what is to be saved.

    Work that fits into a cache may be faster than a roof measured on memory: its share is above 1, its headroom 0.
    """
    least = roofs.seconds(work.flops, work.nbytes)
    seconds = timing.median
    arithmetic = work.flops / roofs.flops_per_second > work.nbytes / roofs.bytes_per_second
    return structs.replace(
        row,
        flops=work.flops,
        nbytes=work.nbytes,
        timing=timing,
        bytes_per_second=work.nbytes / seconds if seconds else None,
        flops_per_second=work.flops / seconds if seconds else None,
        bound="arithmetic" if arithmetic else "memory",
        roof_seconds=least,
        roof_share=least / seconds if seconds else None,
        headroom_seconds=max(0.0, seconds - least) * row.calls,
    )


def by_headroom(rows: Iterable[RegionProfile]) -> tuple[RegionProfile, ...]:
    """Rows on the target, the largest headroom first, then those on the source, the slowest first."""
    return tuple(sorted(rows, key=lambda row: (row.place != "target", -(row.headroom_seconds or 0.0), -row.seconds)))


def summed_by_operator(rows: Iterable[RegionProfile]) -> tuple[OperatorProfile, ...]:
    """One entry per kind of region, the largest headroom first."""
    kinds: dict[str, list[RegionProfile]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    found = [_summed(kind, same) for kind, same in kinds.items()]
    return tuple(sorted(found, key=lambda entry: (-entry.headroom_seconds, -entry.source_seconds)))


def _summed(kind: str, rows: Sequence[RegionProfile]) -> OperatorProfile:
    there = [row for row in rows if row.place == "target"]
    left = [row for row in rows if row.place != "target"]
    seconds = sum(row.seconds for row in there)
    least = sum((row.roof_seconds or 0.0) * row.calls for row in there)
    return OperatorProfile(
        op=kind,
        regions=len(rows),
        calls=sum(row.calls for row in there),
        seconds=seconds,
        headroom_seconds=sum(row.headroom_seconds or 0.0 for row in there),
        roof_share=least / seconds if seconds else None,
        source_calls=sum(row.calls for row in left),
        source_seconds=sum(row.seconds for row in left),
    )
