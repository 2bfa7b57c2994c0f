"""What a mixed placement costs, and what each operator that stays on the source would gain on the target.

Measured: the source's calls, the transfers, the regions on the target, the device's roofs. Estimated from these: what
an operator would take on the target (docs/migration.md has the formula). Not here: why a node stays (migrate).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tapestry.backends.compiler import Compiler
from tapestry.errors import DeviceLostError, TapestryError
from tapestry.migration.result import MissingOperator, MissingReason, Mixed
from tapestry.placement.executable import Executable
from tapestry.profiling.regions import RegionTimer
from tapestry.profiling.result import Roofs, Timing
from tapestry.profiling.roofs import measured_roofs
from tapestry.profiling.rows import operator_of
from tapestry.profiling.source import SourceRun, run_on_source
from tapestry.profiling.timing import time_transfers
from tapestry.profiling.transfers import Transfer, transfers_of
from tapestry.profiling.work import region_work
from tapestry.program import traits
from tapestry.program.graph import Ref
from tapestry.program.inputs import CallArgs
from tapestry.program.program import Program
from tapestry.program.work import Work, work_of
from tapestry.runtime.resident import Resident

#: Seconds that timing one region on the target may take, about.
_BUDGET = 0.2

MEASURED = {
    "transfer_seconds": "a write or read of as many bytes on this device, for each value that travels",
    "source_seconds": "each call timed in runs of the whole program on the source, median",
    "target_seconds": "each region on the target timed on the values of the model, median",
    "roofs": "a copy and multiply-adds on this device",
}
ESTIMATED = {
    "operators.roof_seconds": "sum over nodes of max(flops / roofs.flops_per_second, bytes / roofs.bytes_per_second)",
    "operators.target_seconds": "operators.roof_seconds / roof_share, roof_share being that of what runs on the target",
    "operators.gain_seconds": "operators.source_seconds + operators.transfer_seconds - operators.roof_seconds",
    "operators.likely_gain_seconds": "the same with operators.target_seconds in place of operators.roof_seconds",
}


@dataclass(frozen=True)
class _There:
    """What runs on the target now: seconds of a run, and those at the roof."""

    seconds: float
    least: float


def weigh(
    program: Program,
    call: CallArgs,
    executable: Executable,
    resident: Resident,
    compiler: Compiler,
    reasons: Mapping[str, str],
    roofs: Roofs | None = None,
    roofs_folder: Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Mixed, tuple[MissingOperator, ...]]:
    """What the executable's mixture of source and target costs a run, and the operators that are missing on the target.

    ``reasons`` says of each node on the source why it is there. The executable's placement is on the device of
    ``resident``; its state is left alone. The operators come with the largest gain first; those that can never move
    come last, without a gain. Where the device fails while it is measured, what depends on that is left out, and
    ``Mixed.note`` says so.
    """
    tell = progress or (lambda what, done, total: None)
    there = frozenset(executable.program.by_id) - frozenset(reasons) - program.folded
    sizes = {ref: decl.nbytes for (ref, _), decl in executable.layout.decls.items()}
    now = transfers_of(program, there, sizes)
    groups = _grouped(program, reasons)
    after = {
        (op, movable): transfers_of(program, there | set(nodes), sizes)
        for (op, movable), nodes in groups.items()
        if movable
    }
    tell("weighing", 0, 3)
    source = run_on_source(program, call, _read_there(executable)) if reasons else SourceRun({}, {})
    notes: list[str] = []
    taken: Mapping[tuple[bool, int], float] = {}
    try:
        taken = time_transfers(resident.device, [entry.size for moves in (now, *after.values()) for entry in moves])
    except TapestryError as error:
        notes.append(f"transfers could not be timed: {_revived(resident, error)}")
    tell("weighing", 1, 3)
    top = roofs if reasons else None
    if reasons and top is None:
        try:
            top = measured_roofs(resident.device, roofs_folder)
        except TapestryError as error:
            notes.append(f"the roofs could not be measured: {_revived(resident, error)}")
    tell("weighing", 2, 3)
    running: _There | None = None
    if reasons and top is not None:
        try:
            timer = RegionTimer(resident, compiler, executable.constants, source.values, _BUDGET)
            running = _time_there(executable, timer, top)
        except TapestryError as error:
            notes.append(f"the regions on the target could not be timed: {_revived(resident, error)}")
    tell("weighing", 3, 3)
    share = running.least / running.seconds if running and running.seconds and running.least else None
    mixed = Mixed(
        transfers=len(now),
        transfer_bytes=sum(entry.nbytes for entry in now),
        transfer_seconds=_seconds(now, taken),
        source_nodes=len(reasons),
        source_seconds=sum(source.seconds[node_id].median for node_id in reasons),
        target_seconds=running.seconds if running else None,
        roof_share=share,
        roofs=top,
        measured=MEASURED,
        estimated=ESTIMATED,
        note="; ".join(notes),
    )
    work = {node_id: work_of(program, node_id) for node_id in program.compute}
    found = [
        _missing(program, key[0], nodes, reasons, source.seconds, (now, after.get(key)), taken, work, top, share)
        for key, nodes in groups.items()
    ]
    return mixed, tuple(sorted(found, key=_rank))


def _rank(entry: MissingOperator) -> tuple[bool, float, float]:
    gain = entry.gain_seconds
    return gain is None, -(gain or 0.0), -entry.source_seconds


def _grouped(program: Program, reasons: Mapping[str, str]) -> dict[tuple[str, bool], list[str]]:
    """Operator as the user wrote it, and whether such nodes can move → its nodes on the source, in program order."""
    found: dict[tuple[str, bool], list[str]] = {}
    for node in program.nodes:
        if node.id in reasons:
            key = operator_of(program, node.id), not traits.keeps_its_place(node.call)
            found.setdefault(key, []).append(node.id)
    return found


def _read_there(executable: Executable) -> set[Ref]:
    """What the regions on the target read that varies from run to run."""
    return {ref for entry in executable.layout.bound_steps for ref in entry.step.reads}


def _revived(resident: Resident, error: TapestryError) -> str:
    if isinstance(error, DeviceLostError):
        resident.device.restart()
    return str(error)


def _time_there(executable: Executable, timer: RegionTimer, roofs: Roofs) -> _There:
    """The regions on the target, those with equal keys timed once."""
    seconds: dict[str, tuple[float, float]] = {}
    total = least = 0.0
    for entry in executable.layout.bound_steps:
        region = entry.step.region
        key = f"{region.key} {entry.bound.compiled.backend} {entry.step.placed.options}"
        if key not in seconds:
            timed = timer.time_bound(region, entry.bound)
            work = region_work(region, timed.in_place)
            taken = timed.timing.median, roofs.seconds(work.flops, work.nbytes)
            seconds[key] = taken if timed.launches else (0.0, 0.0)
        total += seconds[key][0]
        least += seconds[key][1]
    return _There(total, least)


def _seconds(moves: Sequence[Transfer], taken: Mapping[tuple[bool, int], float]) -> float | None:
    if not all(entry.size in taken for entry in moves):
        return None
    return sum(taken[entry.size] for entry in moves)


def _missing(
    program: Program,
    op: str,
    nodes: Sequence[str],
    reasons: Mapping[str, str],
    seconds: Mapping[str, Timing],
    moves: tuple[Sequence[Transfer], Sequence[Transfer] | None],
    taken: Mapping[tuple[bool, int], float],
    work: Mapping[str, Work],
    roofs: Roofs | None,
    share: float | None,
) -> MissingOperator:
    now, after = moves
    counted = Counter(reasons[node_id] for node_id in nodes)
    on_source = sum(seconds[node_id].median for node_id in nodes)
    computing = [node_id for node_id in nodes if node_id in program.compute]
    flops = sum(work[node_id].flops for node_id in computing)
    least = _least(program, nodes, roofs)
    before_moving = _seconds(now, taken)
    after_moving = _seconds(after, taken) if after is not None else None
    saved = None if before_moving is None or after_moving is None else before_moving - after_moving
    near = least / share if least is not None and share else None
    return MissingOperator(
        op=op,
        nodes=tuple(nodes),
        sources=tuple(dict.fromkeys(str(program.by_id[node_id].source) for node_id in nodes)),
        reasons=tuple(MissingReason(reason, count) for reason, count in counted.most_common()),
        movable=after is not None,
        compute_nodes=len(computing),
        compute_share=_share(len(computing), len(program.compute)),
        flops=flops,
        flops_share=_share(flops, sum(entry.flops for entry in work.values())),
        source_seconds=on_source,
        transfers=len(now) - len(after) if after is not None else 0,
        transfer_bytes=_bytes(now) - _bytes(after) if after is not None else 0,
        transfer_seconds=saved,
        roof_seconds=least if after is not None else None,
        target_seconds=near if after is not None else None,
        gain_seconds=on_source + saved - least if saved is not None and least is not None else None,
        likely_gain_seconds=on_source + saved - near if saved is not None and near is not None else None,
    )


def _least(program: Program, nodes: Sequence[str], roofs: Roofs | None) -> float | None:
    if roofs is None:
        return None
    works = [work_of(program, node_id) for node_id in nodes]
    return sum(roofs.seconds(entry.flops, entry.nbytes) for entry in works)


def _bytes(moves: Sequence[Transfer]) -> int:
    return sum(entry.nbytes for entry in moves)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
