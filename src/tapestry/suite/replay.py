"""Replaying a suite on a device: on one backend, or on several in order of preference.

A hand-written kernel comes before the compiler where there is one, and the compiler takes over where it is wrong.
Not here: running and judging the cases on one of them (on_target).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tapestry.backends.base import Options
from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import default_backend, ready_backends
from tapestry.errors import UsageError
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.case import Case, Suite
from tapestry.suite.journal import Journal
from tapestry.suite.on_target import Target, case_key, judge_case, replay_on, run_once
from tapestry.suite.verdicts import CaseResult, ReplayResult

Progress = Callable[[str, int, int], None]

__all__ = [
    "Preferred", "Target", "case_key", "judge_case", "replay", "replay_on", "replay_preferring", "run_once", "takes",
]  # fmt: skip


def replay(
    suite: Suite,
    device: str = "opencl:0",
    backend: str = "",
    journal: Journal | None = None,
    progress: Progress | None = None,
    options: Mapping[str, Options] | None = None,
) -> ReplayResult:
    """Replay a suite on a device opened for it, with ``options`` by backend or else each backend's reference options.

    ``backend`` names one, or several in order of preference (``kernels,tvm``); it defaults to those for the device's
    kind. Raises EnvironmentProblem when device or backend is missing; what happens to single cases becomes their
    verdict.
    """
    # Before the device is opened: its worker loads only what backends known by then may load.
    named = ready_backends(backend) if backend else ()
    resident = Resident(open_device(device))
    try:
        chosen = named or ready_backends(default_backend(resident.device.info.kind))
        with Compiler() as compiler:
            given = options or {}
            targets = [Target.of(resident, entry, compiler, given.get(entry.name)) for entry in chosen]
            return replay_preferring(targets, suite, journal, progress).result
    finally:
        resident.device.close()


@dataclass(frozen=True)
class Preferred:
    """``result`` holds for every case what the backend that decides on it gave. ``by_key`` names, for operator keys
    whose cases are all right, the target that takes them. ``overruled`` are bad cases of a backend whose operator
    the next one is asked for.
    """

    result: ReplayResult
    by_key: dict[str, Target]
    overruled: tuple[CaseResult, ...]


def replay_preferring(
    targets: Sequence[Target],
    suite: Suite,
    journal: Journal | None = None,
    progress: Progress | None = None,
    cases: Sequence[Case] | None = None,
) -> Preferred:
    """Replay every case, or those given, on the first target whose backend takes it, and on the next where it is wrong.

    The targets are backends of one device. Cases that no backend takes end as the last one says.
    """
    if len({target.resident.device.info.name for target in targets}) != 1:
        raise UsageError("expected backends of one device")
    wanted = suite.cases if cases is None else tuple(cases)
    pending = list(wanted)
    by_key: dict[str, Target] = {}
    decided: dict[str, CaseResult] = {}
    bad: list[CaseResult] = []
    for place, target in enumerate(targets):
        last = place == len(targets) - 1
        taken = pending if last else _taken(target, pending)
        if not taken and not last:
            continue
        found = replay_on(target, suite, journal, progress, taken)
        wrong = {entry.key for entry in found.results if entry.blocks}
        by_key.update({entry.key: target for entry in found.results if entry.key not in wrong})
        for entry in found.results:
            if entry.key not in wrong or last:
                decided[entry.case] = entry
            elif entry.blocks:
                bad.append(entry)
        pending = [case for case in pending if case.id not in decided]
    device = targets[0].resident.device.info.name
    used = _used(targets, decided.values())
    result = ReplayResult(device, used, tuple(decided[case.id] for case in wanted), tuple(bad))
    return Preferred(result, by_key, tuple(bad))


def _taken(target: Target, cases: Sequence[Case]) -> list[Case]:
    """The cases that a target takes; it is asked once for all cases of one graph."""
    answers = {graph: takes(target, case) for graph, case in {case.graph: case for case in cases}.items()}
    return [case for case in cases if answers[case.graph]]


def takes(target: Target, case: Case) -> bool:
    """Whether the target's backend takes a case's calls as one region, as its rules say."""
    graph = case.load_graph()
    if len(graph.calls) > 1 and not target.backend.fuses:
        return False
    info = target.resident.device.info
    return all(target.backend.refuses_in(graph, call.name, info) is None for call in graph.calls)


def _used(targets: Sequence[Target], decided: Iterable[CaseResult]) -> str:
    names = {entry.backend for entry in decided}
    used = [target.backend.name for target in targets if target.backend.name in names]
    return ",".join(used or [targets[-1].backend.name])
