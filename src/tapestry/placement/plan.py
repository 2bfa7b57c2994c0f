"""The order in which a placed program runs: steps on the source, regions on devices, and what they read and make.

Plain data from a program and a placement. Not here: buffers, compilation, and running.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from tapestry.placement.index_checks import IndexCheck, index_checks
from tapestry.placement.placement import PlacedRegion, Placement
from tapestry.program.graph import Ref, operands
from tapestry.program.program import Program
from tapestry.program.region import Region, quotient_order, region_of


@dataclass(frozen=True)
class SourceStep:
    """Nodes that run on the source, one by one. ``reads`` are values made before this step that vary by run."""

    nodes: tuple[str, ...]
    reads: tuple[Ref, ...]
    constants: tuple[Ref, ...]


@dataclass(frozen=True)
class DeviceStep:
    """A region on a device. ``tag`` names it in the launch log."""

    tag: str
    placed: PlacedRegion
    region: Region
    checks: tuple[IndexCheck, ...]

    @property
    def reads(self) -> tuple[Ref, ...]:
        """Values that change from run to run."""
        return tuple(ref for ref in self.region.inputs if not self.region.program.is_constant(ref))


@dataclass(frozen=True)
class HostStep:
    """Nodes of a region whose results the host gives before the others run, which may be none.

    ``run`` takes what gives a value and returns the nodes' results that are read elsewhere. ``reads`` vary by run.
    """

    tag: str
    nodes: tuple[str, ...]
    reads: tuple[Ref, ...]
    run: Callable[[Callable[[Ref], torch.Tensor]], Mapping[Ref, torch.Tensor]]


Step = SourceStep | DeviceStep | HostStep


def plan_steps(
    program: Program, placement: Placement, make_region: Callable[[Sequence[str]], Region] | None = None
) -> tuple[Step, ...]:
    """Steps in an order that respects every edge. UsageError when the placement does not fit or has a cycle.

    ``make_region`` is placed_region of this program, for a caller that remembers what it gives.
    """
    placement.check(program)
    region_at = make_region or partial(placed_region, program)
    homes = {node_id: place for place, region in enumerate(placement.regions) for node_id in region.nodes}
    order = quotient_order(program, [region.nodes for region in placement.regions])
    steps: list[Step] = []
    waiting: list[str] = []
    for group in order:
        if group[0] not in homes:
            waiting.extend(group)
            continue
        if waiting:
            steps.append(_source_step(program, waiting))
            waiting = []
        placed = placement.regions[homes[group[0]]]
        region = region_at(group)
        checks = tuple(check for node_id in group for check in index_checks(program, program.by_id[node_id].call))
        steps.append(DeviceStep(f"r{homes[group[0]]}", placed, region, checks))
    if waiting:
        steps.append(_source_step(program, waiting))
    return tuple(steps)


def placed_region(program: Program, nodes: Iterable[str]) -> Region:
    """The region as a backend compiles it in a placement: indices made and used inside of it are handed out too.

    Kernels do not raise for an index out of range, so the host looks at it. UsageError as region_of.
    """
    region = region_of(program, nodes)
    made = {Ref(node_id, item) for node_id in region.nodes for item in range(len(program.by_id[node_id].call.outputs))}
    checked = (check.index for node_id in region.nodes for check in index_checks(program, program.by_id[node_id].call))
    inside = dict.fromkeys(ref for ref in checked if ref in made and ref not in region.outputs)
    return replace(region, outputs=(*region.outputs, *inside)) if inside else region


def _source_step(program: Program, nodes: Sequence[str]) -> SourceStep:
    made = set(nodes)
    reads: dict[Ref, None] = {}
    constants: dict[Ref, None] = {}
    for node_id in nodes:
        for ref in operands(program.by_id[node_id].call):
            if ref.name not in made:
                (constants if program.is_constant(ref) else reads)[ref] = None
    return SourceStep(tuple(nodes), tuple(reads), tuple(constants))


def last_reads(program: Program, steps: Sequence[Step]) -> dict[Ref, int]:
    """Value → the last step that reads it; ``len(steps)`` for results, and for index operands checked at the end."""
    last: dict[Ref, int] = {}
    for place, step in enumerate(steps):
        for ref in step.reads:
            last[ref] = place
        if isinstance(step, DeviceStep):
            last.update({check.index: len(steps) for check in step.checks})
    last.update({ref: len(steps) for ref in program.results})
    return last


def rest_of(region: Region, without: Collection[str]) -> Region | None:
    """A region without some of its nodes, whose results come from elsewhere before it runs; None when nothing is left.

    What only those nodes read is left out, too. The rest need not be convex.
    """
    program = region.program
    outputs = tuple(ref for ref in region.outputs if ref.name not in without)
    needed = {ref.name for ref in outputs}
    for node_id in reversed(region.nodes):
        if node_id in needed and node_id not in without:
            needed.update(ref.name for ref in operands(program.by_id[node_id].call))
    nodes = tuple(node_id for node_id in region.nodes if node_id in needed and node_id not in without)
    if not nodes:
        return None
    return cut_out(program, nodes, outputs)


def cut_out(program: Program, nodes: tuple[str, ...], outputs: Iterable[Ref]) -> Region:
    """A region of these nodes, in order, that gives these values, each once; it need not be convex."""
    kept = set(nodes)
    reads = (ref for node_id in nodes for ref in operands(program.by_id[node_id].call) if ref.name not in kept)
    return Region(program, nodes, tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(outputs)))
