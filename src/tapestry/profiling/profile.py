"""Profiling a program on a device: every region timed there, set against the roofs, ranked by what is to be saved.

Not here: how a region is timed (regions), and the roofs (roofs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tapestry.backends.base import Backend, Options
from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import check_kind, ready_backend
from tapestry.errors import DeviceLostError, TapestryError, UsageError
from tapestry.placement.constants import ProgramConstants
from tapestry.placement.placement import Placement, read_options
from tapestry.placement.plan import placed_region
from tapestry.profiling.regions import RegionTimer, TimedRegion
from tapestry.profiling.result import ProfileResult, RegionProfile, Roofs, Timing
from tapestry.profiling.roofs import measured_roofs
from tapestry.profiling.rows import against_roof, by_headroom, operators_of, site_of, summed_by_operator
from tapestry.profiling.source import SourceRun, run_on_source
from tapestry.profiling.timing import clock_of
from tapestry.profiling.work import region_work
from tapestry.program import traits
from tapestry.program.inputs import as_input_sets
from tapestry.program.program import Program
from tapestry.program.region import Region, region_of
from tapestry.runtime.again import until_connected
from tapestry.runtime.resident import Resident

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class _Way:
    """A backend that may take a region, with its options on the device."""

    backend: Backend
    options: Options


@dataclass
class _Group:
    """Regions with one key, and who is asked to take them, in order."""

    region: Region
    ways: tuple[_Way, ...]
    places: list[tuple[str, ...]]


def profile(
    program: Program,
    inputs: Sequence[object],
    resident: Resident,
    backends: Sequence[Backend],
    compiler: Compiler,
    options: Mapping[str, Options] | None = None,
    placement: Placement | None = None,
    roofs: Roofs | None = None,
    roofs_folder: Path | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> ProfileResult:
    """Time every region of a program on a device, on the values of the first call of ``inputs`` (as_input_sets).

    Each operator is a region of its own, on the first of the ``backends`` that takes it and runs it; with a
    ``placement`` its regions are, on the backends that it names. What no backend takes is listed with the reason and
    the time that it takes on the source. ``roofs`` are measured unless given (measured_roofs, with ``fresh``).

    UsageError for a placement of another program or device, and for a backend that does not run on this device;
    UnsupportedError for a kind of device without roof benchmarks.
    """
    tell = progress or (lambda what, done, total: None)
    call = as_input_sets(inputs)[0].calls[0]
    device = resident.device
    tell("roofs", 0, 1)
    top = roofs or measured_roofs(device, roofs_folder, fresh)
    tell("roofs", 1, 1)
    groups = (
        _alone(program, _settled(backends, options or {}, resident))
        if placement is None
        else _placed(program, placement, resident)
    )
    wanted = {ref for group in groups for ref in group.region.inputs if not program.is_constant(ref)}
    source = run_on_source(program, call, wanted)
    timer = RegionTimer(resident, compiler, ProgramConstants(program), source.values)
    for group in groups:
        for way in group.ways[:1]:
            if _refused(group.region, way, resident) is None:
                compiler.start(way.backend, group.region.graph, device.info, way.options)
    rows: list[RegionProfile] = []
    unlisted = 0
    for done, group in enumerate(groups):
        tell("profiling", done, len(groups))
        row = _profiled(group, timer, source, top)
        if row is None:
            unlisted += sum(len(nodes) for nodes in group.places)
        else:
            rows.append(row)
    tell("profiling", len(groups), len(groups))
    for nodes in _left_over(program, groups):
        reason = traits.place_reason(program.by_id[nodes[0]].call) or "the placement leaves it on the source"
        rows.append(_on_source(program, nodes[:1], [(node_id,) for node_id in nodes], source, reason))
    return summarised(device.info.name, clock_of(device.info), top, rows, unlisted)


def summarised(target: str, clock: str, roofs: Roofs, rows: Sequence[RegionProfile], unlisted: int) -> ProfileResult:
    """The result with these rows, in order of headroom."""
    there = [row for row in rows if row.place == "target"]
    return ProfileResult(
        target=target,
        backend=",".join(sorted({row.backend for row in there})),
        clock=clock,
        roofs=roofs,
        target_seconds=sum(row.seconds for row in there),
        headroom_seconds=sum(row.headroom_seconds or 0.0 for row in there),
        source_seconds=sum(row.seconds for row in rows if row.place != "target"),
        operators=summed_by_operator(rows),
        regions=by_headroom(rows),
        unlisted=unlisted,
    )


def _settled(backends: Sequence[Backend], options: Mapping[str, Options], resident: Resident) -> tuple[_Way, ...]:
    for backend in backends:
        check_kind(backend, resident.device.info)
    return tuple(
        _Way(entry, entry.settled(options.get(entry.name) or entry.options()[0], resident.device)) for entry in backends
    )


def _alone(program: Program, ways: tuple[_Way, ...]) -> list[_Group]:
    """Every placeable node a region of its own. No views: they move nothing where they are compiled with others."""
    groups: dict[str, _Group] = {}
    for node_id in program.placeable:
        if traits.is_view(program.by_id[node_id].call.target):
            continue
        region = region_of(program, [node_id])
        groups.setdefault(region.key, _Group(region, ways, [])).places.append((node_id,))
    return list(groups.values())


def _placed(program: Program, placement: Placement, resident: Resident) -> list[_Group]:
    placement.check(program)
    name = resident.device.info.name
    ways: dict[str, _Way] = {}
    groups: dict[tuple[str, str], _Group] = {}
    for placed in placement.regions:
        if placed.device != name:
            raise UsageError(f"the placement names device {placed.device}; expected {name}, the one that is profiled")
        chosen = f"{placed.backend} {placed.options}"
        if chosen not in ways:
            backend = ready_backend(placed.backend)
            check_kind(backend, resident.device.info)
            ways[chosen] = _Way(backend, read_options(backend, placed.options))
        region = placed_region(program, placed.nodes)
        group = groups.setdefault((region.key, chosen), _Group(region, (ways[chosen],), []))
        group.places.append(placed.nodes)
    return list(groups.values())


def _profiled(group: _Group, timer: RegionTimer, source: SourceRun, roofs: Roofs) -> RegionProfile | None:
    """The row of a group; None when nothing is launched for it."""
    program, nodes = group.region.program, group.region.nodes
    found = _timed(group, timer)
    if isinstance(found, str):
        return _on_source(program, nodes, group.places, source, found)
    backend, timed = found
    if not timed.launches:
        return None
    work = region_work(group.region, timed.in_place)
    row = RegionProfile(
        key=group.region.key,
        ops=operators_of(program, nodes),
        place="target",
        backend=backend,
        calls=len(group.places),
        launches=timed.launches,
        nbytes=work.nbytes,
        flops=work.flops,
        sites=tuple(site_of(program, place) for place in group.places),
    )
    return against_roof(row, timed.timing, work, roofs)


def _timed(group: _Group, timer: RegionTimer) -> tuple[str, TimedRegion] | str:
    """The first backend that takes the region and what it took there; or why none does, in the order of preference."""
    reasons: list[str] = []
    for way in group.ways:
        reason = _refused(group.region, way, timer.resident)
        if reason is None:
            try:
                timed = until_connected(
                    [timer.resident.device],
                    lambda way=way: timer.time(group.region, way.backend, way.options),
                )
                return way.backend.name, timed
            except TapestryError as error:
                if isinstance(error, DeviceLostError):
                    timer.resident.device.restart()
                reason = str(error)
            except (RuntimeError, ValueError) as error:  # of a backend's preparation of constants
                reason = f"{type(error).__name__}: {error}"
        reasons.append(f"{way.backend.name}: {reason}")
    return "; ".join(reasons)


def _refused(region: Region, way: _Way, resident: Resident) -> str | None:
    """Why the backend does not take the region; its compile says so of several calls that it does not fuse."""
    if not way.backend.fuses and len(region.nodes) > 1:
        return None
    answers = (way.backend.refuses_in(region.graph, c.name, resident.device.info) for c in region.graph.calls)
    return next((reason for reason in answers if reason is not None), None)


def _on_source(
    program: Program, nodes: Sequence[str], places: Sequence[tuple[str, ...]], source: SourceRun, reason: str
) -> RegionProfile:
    region = region_of(program, nodes)
    work = region_work(region)
    each = [sum(source.seconds[node_id].median for node_id in place) for place in places]
    first = source.seconds[nodes[0]]
    mean = sum(each) / len(each)
    return RegionProfile(
        key=region.key,
        ops=operators_of(program, nodes),
        place="source",
        backend="",
        calls=len(places),
        launches=0,
        nbytes=work.nbytes,
        flops=work.flops,
        sites=tuple(site_of(program, place) for place in places),
        timing=Timing(mean, min(each), max(each), first.repeats, 1),
        reason=reason,
    )


def _left_over(program: Program, groups: Sequence[_Group]) -> list[list[str]]:
    """Nodes that run and are in no group, by key: those that cannot move, or that a placement leaves. No views."""
    known = {node_id for group in groups for place in group.places for node_id in place}
    found: dict[str, list[str]] = {}
    for node in program.nodes:
        if node.id not in known and node.id not in program.folded and not traits.is_view(node.call.target):
            found.setdefault(region_of(program, [node.id]).key, []).append(node.id)
    return list(found.values())
