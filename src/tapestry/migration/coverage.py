"""How much of a program runs on the target, counted from what the driver says it launched.

Not here: deciding what should run there.
"""

from __future__ import annotations

from collections.abc import Iterable

from tapestry.migration.result import Coverage
from tapestry.placement.executable import Executable
from tapestry.placement.plan import HostStep
from tapestry.program.work import work_of
from tapestry.runtime.module import Artifact


def forget_launches(executable: Executable) -> None:
    """Begin to count: what was launched before does not."""
    for device in executable.layout.devices:
        device.sync()
        device.launch_log(clear=True)


def measure_coverage(executable: Executable, calls: int, transfers: int, transfer_bytes: int) -> Coverage:
    """Coverage from what was launched since ``forget_launches`` in so many calls; the last took so many transfers.

    A region whose launches the log does not show does not count as run.
    """
    counts: dict[str, int] = {}
    for device in executable.layout.devices:
        device.sync()
        for entry in device.launch_log(clear=True):
            counts[entry.tag] = counts.get(entry.tag, 0) + entry.count
    ran = set(_ran(executable, counts))
    program = executable.program
    countable = [node.id for node in program.nodes if node.id not in program.folded]
    compute = [node_id for node_id in countable if node_id in program.compute]
    work = {node_id: work_of(program, node_id) for node_id in compute}
    return Coverage(
        nodes=_share(len(ran), len(countable)),
        compute_nodes=_share(sum(node_id in ran for node_id in compute), len(compute)),
        flops=_share(
            sum(work[node_id].flops for node_id in compute if node_id in ran),
            sum(entry.flops for entry in work.values()),
        ),
        bytes=_share(
            sum(work[node_id].nbytes for node_id in compute if node_id in ran),
            sum(entry.nbytes for entry in work.values()),
        ),
        transfers=transfers,
        transfer_bytes=transfer_bytes,
        launches=sum(counts.values()) // calls,
        compute_total=len(compute),
        compute_on_target=sum(node_id in ran for node_id in compute),
    )


def _ran(executable: Executable, counts: dict[str, int]) -> Iterable[str]:
    """Nodes of regions that were launched, and of those without anything to launch: views, tensors of no elements.

    Those that an injected fault computed count as on the device.
    """
    for entry in executable.layout.steps:
        if isinstance(entry, HostStep):
            yield from entry.nodes
    for entry in executable.layout.bound_steps:
        compiled = entry.bound.compiled
        to_launch = isinstance(compiled.module, Artifact) or compiled.launches
        if counts.get(entry.step.tag, 0) or not to_launch:
            yield from entry.step.region.nodes


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
