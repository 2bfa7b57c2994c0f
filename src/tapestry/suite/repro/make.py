"""Making a repro bundle of a failing case: run, reduce, run again, write.

Not here: the command (cli.commands.repro), and which cases failed (replay).
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy
import torch

from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import check_kind, default_backend, ready_backends
from tapestry.errors import UsageError
from tapestry.numerics.judgement import Judgement
from tapestry.numerics.verdict import Verdict
from tapestry.program.graph import GraphInput
from tapestry.program.serial import dtype_name, overload_name
from tapestry.runtime.names import parse_device_name
from tapestry.runtime.open import open_device
from tapestry.runtime.protocol.client import ProtocolDevice
from tapestry.runtime.resident import Resident
from tapestry.suite.case import Case, Suite, with_strides
from tapestry.suite.on_target import Target
from tapestry.suite.replay import replay_preferring
from tapestry.suite.repro.attempt import Attempt, expected
from tapestry.suite.repro.bundle import check_folder, write_bundle
from tapestry.suite.repro.clean import cleaned
from tapestry.suite.repro.on_device import OnDevice
from tapestry.suite.repro.readme import readme_text
from tapestry.suite.repro.record import DeviceRecord, Errors, ReproRecord, Size
from tapestry.suite.repro.reduce import Reduction, reduce_case
from tapestry.suite.repro.script import call_text, script_text
from tapestry.suite.repro.search import Limits
from tapestry.suite.repro.single import suite_of
from tapestry.suite.repro.subject import Subject
from tapestry.suite.verdicts import BLOCKING, CaseResult

#: Seconds that a request to the device may take while a hanging case is reduced; the result is run with all of them.
PATIENCE = 5.0


@dataclass(frozen=True)
class Repro:
    """A case that was looked at. ``folder`` is None where it does not fail, and ``reason`` says what it does.

    ``before`` and ``after`` are the elements of all inputs; ``runs`` counts runs on the device.
    """

    case: str
    op: str
    folder: Path | None
    verdict: Verdict
    reason: str
    backend: str
    runs: int
    before: int
    after: int

    @property
    def failed(self) -> bool:
        """Whether there is a bundle."""
        return self.folder is not None


Progress = Callable[[str, int, int], None]


def make_repro(
    suite: Suite,
    case_id: str,
    targets: Sequence[Target],
    folder: Path,
    limits: Limits | None = None,
) -> Repro:
    """Replay a case on the targets (backends of one open device, in order of preference); where it fails, write a
    bundle of it, reduced, to ``folder``.

    Raises UsageError for a case that the suite lacks and for a folder that holds something else.
    """
    case = case_of(suite, case_id)
    check_folder(folder)
    begin = time.perf_counter()
    found, target = _failing(suite, case, targets)
    if target is None:
        return Repro(case.id, case.op, None, found.verdict, found.reason, found.backend, 1, 0, 0)
    subject = _subject(suite, case)
    reduced = _reduced(subject, target, found, limits or Limits())
    if not reduced.attempt.failed:
        # It failed once and not again: the bundle holds it as it is, with what was seen.
        reduced = replace(reduced, attempt=_as_seen(found))
    record = _record(case, target, subject, reduced, time.perf_counter() - begin)
    _write(folder, record, reduced, case)
    return Repro(
        case.id, case.op, folder, Verdict(record.verdict), record.reason, record.backend, reduced.runs + 1,
        record.before.elements, record.after.elements,
    )  # fmt: skip


def make_repros(
    suite: Suite,
    folders: dict[str, Path],
    device: str,
    backend: str = "",
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> list[Repro]:
    """``make_repro`` for several cases (id → folder) on a device opened for them.

    ``backend`` as for replay. Raises EnvironmentProblem when device or backend is missing, UsageError as make_repro.
    """
    tell = progress or (lambda what, done, total: None)
    for case_id, folder in folders.items():
        case_of(suite, case_id)
        check_folder(folder)
    named = ready_backends(backend) if backend else ()
    found: list[Repro] = []
    with ExitStack() as stack:
        resident = Resident(open_device(device))
        stack.callback(resident.device.close)
        chosen = named or ready_backends(default_backend(resident.device.info.kind))
        compiler = stack.enter_context(Compiler())
        for entry in chosen:
            check_kind(entry, resident.device.info)
        targets = [Target.of(resident, entry, compiler) for entry in chosen]
        for done, (case_id, folder) in enumerate(folders.items()):
            tell("reducing", done, len(folders))
            found.append(make_repro(suite, case_id, targets, folder, limits))
        tell("reducing", len(folders), len(folders))
    return found


def case_of(suite: Suite, text: str) -> Case:
    """The case with this id, or the only one whose id contains the text; of a carved case and those derived from it,
    whose ids begin with its own, the carved one. UsageError for none and for several.
    """
    if text in suite.by_id:
        return suite.by_id[text]
    found = [case for case in suite.cases if text in case.id]
    if len(found) == 1:
        return found[0]
    carved = [case for case in found if not case.base]
    if carved and {case.base or case.id for case in found} == {carved[0].id}:
        return carved[0]
    if not found:
        raise UsageError(f"the suite has no case {text!r}; `tapestry replay` shows their names")
    names = ", ".join(case.id for case in found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    raise UsageError(f"expected a part of one case's name, {text!r} is part of {len(found)}: {names}")


def folder_name(case_id: str) -> str:
    """The name of a folder for a case's bundle beside those of other cases."""
    return re.sub(r"[^\w.+=~-]", "-", case_id)


def _failing(suite: Suite, case: Case, targets: Sequence[Target]) -> tuple[CaseResult, Target | None]:
    """How the case ends, and the target on which it fails; None where it fails on none that takes it.

    A wrong hand-written kernel fails although another backend takes its place.
    """
    preferred = replay_preferring(targets, suite, cases=[case])
    (decided,) = preferred.result.results
    for entry in (*preferred.overruled, decided):
        if entry.verdict in BLOCKING:
            return entry, next(target for target in targets if target.backend.name == entry.backend)
    return decided, None


def _reduced(subject: Subject, target: Target, found: CaseResult, limits: Limits) -> Reduction:
    run = OnDevice(target)
    device = target.resident.device
    if found.verdict is not Verdict.TIMEOUT or not isinstance(device, ProtocolDevice):
        return reduce_case(run, subject, limits)
    # Each run of a hanging case takes all of the device's patience: less of it while reducing, then all once more.
    patience, device.timeout = device.timeout, min(device.timeout, PATIENCE)
    try:
        reduced = reduce_case(run, subject, limits)
    finally:
        device.timeout = patience
    last = run(reduced.subject)
    if last.way == reduced.attempt.way:
        return replace(reduced, attempt=last, runs=reduced.runs + 1)
    return Reduction(subject, run(subject), reduced.runs + 2, {}, False)


def _as_seen(found: CaseResult) -> Attempt:
    """What replaying saw, where running the case again showed something else."""
    judgement = Judgement(found.verdict, found.imprecise, found.reason, found.metrics, found.judged_by)
    return Attempt(judgement, "not each time")


def _subject(suite: Suite, case: Case) -> Subject:
    """A case as a subject, its tensors as a stored suite gives them back: with their strides, without an offset."""
    graph = case.load_graph()
    inputs = tuple(
        with_strides(tensor.clone(memory_format=torch.contiguous_format), entry.spec.stride)
        for entry, tensor in zip(graph.inputs, suite.inputs(case), strict=True)
    )
    return Subject(graph, inputs)


def _size(subject: Subject) -> Size:
    return Size(subject.elements, subject.constant_elements, len(subject.graph.calls))


def _record(case: Case, target: Target, subject: Subject, reduced: Reduction, seconds: float) -> ReproRecord:
    info, judgement = target.resident.device.info, reduced.attempt.judgement
    return ReproRecord(
        op=_op(reduced.subject, case),
        case=case.id,
        variant=case.variant,
        source=cleaned(case.source_line),
        device=DeviceRecord(
            str(parse_device_name(info.name)), info.kind, cleaned(info.description), cleaned(info.fingerprint)
        ),
        backend=target.backend.name,
        options=cleaned(str(target.options)),
        fingerprint=cleaned(target.backend.fingerprint()),
        verdict=str(judgement.verdict),
        way=cleaned(reduced.attempt.way),
        reason=cleaned(judgement.reason),
        errors=Errors.of(judgement.metrics),
        judged_by=judgement.judged_by,
        before=_size(subject),
        after=_size(reduced.subject),
        runs=reduced.runs,
        seconds=round(seconds, 3),
        steady=reduced.steady,
        reductions=dict(reduced.done),
        versions=_versions(),
    )


def _op(subject: Subject, case: Case) -> str:
    """What fails: the only call that is left, or what the case is of."""
    return overload_name(subject.graph.calls[0].target) if subject.single else case.op


def _versions() -> dict[str, str]:
    try:
        own = version("tapestry-ml")
    except PackageNotFoundError:
        own = "unknown"
    return {
        "tapestry": own,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _write(folder: Path, record: ReproRecord, reduced: Reduction, case: Case) -> None:
    want = expected(reduced.subject)
    script, blobs = script_text(reduced.subject, want, reduced.attempt, record)
    graph = reduced.subject.graph
    calls = [
        *(f"{entry.name}  # {_shown(entry)}" for entry in graph.inputs),
        *(f"{call.name} = {call_text(graph, call)}" for call in graph.calls),
    ]
    files = {
        "README.md": readme_text(record, tuple(blobs), calls).encode(),
        "repro.py": script.encode(),
        **blobs,
    }
    write_bundle(folder, record, files, suite_of(reduced.subject, want, case))


def _shown(entry: GraphInput) -> str:
    spec = entry.spec
    constant = ", a constant of the model" if entry.constant else ""
    return f"{dtype_name(spec.dtype)} {list(spec.shape)}{constant}"
