"""Migrating a model with one call: capture, carve, replay, move, and say what happened.

Not here: the steps themselves (engine).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from tapestry.backends.base import Options
from tapestry.errors import UsageError
from tapestry.migration.engine import Migration, Outcome, Progress
from tapestry.migration.history import attempts_by_node
from tapestry.migration.missing import weigh
from tapestry.migration.repros import with_repros
from tapestry.migration.result import (
    Attempt,
    Blocked,
    Check,
    Coverage,
    Latent,
    MigrationResult,
    NodeRecord,
    ProgramSummary,
    SuiteSummary,
)
from tapestry.migration.warm import Warm
from tapestry.migration.workbench import Workbench, workbench
from tapestry.placement.executable import Executable
from tapestry.placement.layout import SourceCalls
from tapestry.placement.placement import Placement
from tapestry.placement.plan import HostStep
from tapestry.program import traits
from tapestry.program.capture import capture
from tapestry.program.graph import operands
from tapestry.program.inputs import InputSet, as_input_sets
from tapestry.program.program import Program
from tapestry.suite.audit.faults import FaultFile
from tapestry.suite.carve import carve
from tapestry.suite.case import Suite
from tapestry.suite.derived import SAME_KEY, admitting, with_variants
from tapestry.suite.injection.platform import Platform
from tapestry.suite.journal import Journal
from tapestry.suite.replay import Target
from tapestry.suite.variants.derive import Budget
from tapestry.suite.verdicts import CaseResult, ReplayResult, by_operator

#: Variants of each operator key that decide, besides the carved cases, whether its nodes move.
VARIANTS = 16


@dataclass(frozen=True)
class Migrated:
    """A migrated model: call ``executable`` as the model; ``close`` (or leave the with block) frees what it opened.

    ``replayed`` are the verdicts of the cases. ``fresh`` counts what the journal could not answer, by ``case`` and
    ``step``; empty without a journal. ``notes`` is what a user should be told about the run.
    """

    executable: Executable
    placement: Placement
    result: MigrationResult
    _closing: ExitStack
    replayed: ReplayResult
    fresh: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def close(self) -> None:
        """Free the executable and close the device."""
        self._closing.close()

    def __enter__(self) -> Migrated:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def migrate(
    model: torch.nn.Module | Callable[..., object] | Program,
    to: str = "opencl:0",
    inputs: Sequence[object] = (),
    backend: str = "",
    suite: Suite | None = None,
    journal: Path | str | None = None,
    progress: Progress | None = None,
    eager: Callable[..., object] | None = None,
    variants: int = VARIANTS,
    nonfinite: bool = False,
    repros: Path | None = None,
    options: Mapping[str, Options] | None = None,
    inject: Sequence[FaultFile] = (),
    bench: Workbench | None = None,
    warm: Warm | None = None,
) -> Migrated:
    """Move a model to a device, operator by operator, with the whole model checked at every step.

    ``inputs`` is what as_input_sets takes; a model that is not a Program yet is captured with its first call.
    ``backend`` names a backend, or several in order of preference (``kernels,tvm``); it defaults to those for the
    device's kind. ``suite`` is carved from the inputs unless given. Every operator is also tried on up to ``variants``
    other values of the same shapes; with ``nonfinite``, NaN and infinities among them count although the model was
    never seen to have them.
    ``repros`` is a folder: each finding that a case shows gets a repro bundle there.
    ``options`` are used by backend, or else the reference options. ``inject`` makes the target a platform with these
    faults (suite.audit.faults.read_faults): what they are about is computed by them and counts as on the target.
    ``bench`` is a device that is open already, in place of ``to`` and ``backend``; it stays open after ``close``.
    ``warm`` keeps what does not change from one migration of the same program, inputs and ``bench`` to the next.
    ``journal`` is a folder: a rerun after an interruption goes on from there. ``eager`` is the model that a Program
    was captured from, timed for comparison. Raises EnvironmentProblem when the
    device or the backend is missing, CaptureError or UsageError when model, inputs or journal are unfit; whatever
    is wrong on the target is in the result.
    """
    sets = as_input_sets(inputs)
    with ExitStack() as stack:
        at = bench or stack.enter_context(workbench(to, backend))
        program = model if isinstance(model, Program) else _captured(model, sets[0])
        warm = warm or Warm()

        def all_cases() -> Suite:
            found = suite or carve(program, sets, eager=eager, progress=progress)
            _check_suite(found, program)
            if variants and not any(case.base for case in found.cases):
                found = with_variants(found, Budget(cases=variants), SAME_KEY, progress)
            return admitting(found, nonfinite)

        found = warm.suite(all_cases)
        targets = at.targets(options, _with_faults(program, inject))
        with Journal(Path(journal), journal_subject(program, targets)) if journal else nullcontext() as log:
            outcome = Migration(program, found, sets, targets, log, progress, warm).run()
        stack.callback(outcome.executable.close)
        result = summarise(program, found, outcome, targets)
        result = _weighed(result, program, sets[0], outcome, targets[0], progress)
        if repros is not None:
            findings = with_repros(result.findings, found, at.to, repros, progress=progress)
            result = msgspec.structs.replace(result, findings=findings)
        outcome.executable.reset()  # the counting run has moved the state on
        notes = (log.damage,) if log is not None and log.damage else ()
        fresh = dict(log.put_count) if log is not None else {}
        return Migrated(outcome.executable, outcome.placement, result, stack.pop_all(), outcome.replayed, fresh, notes)


def _weighed(
    result: MigrationResult,
    program: Program,
    inputs: InputSet,
    outcome: Outcome,
    target: Target,
    progress: Progress | None,
) -> MigrationResult:
    """The result with what its mixture of source and target costs, where the whole program is right."""
    if not outcome.final.good:
        return result
    reasons = {entry.node: entry.reason for entry in result.blocked}
    mixed, missing = weigh(
        program, inputs.calls[0], outcome.executable, target.resident, target.compiler, reasons, progress=progress
    )
    return msgspec.structs.replace(result, mixed=mixed, missing=missing)


def _with_faults(program: Program, files: Sequence[FaultFile]) -> Platform | None:
    faults = [fault for file in files for fault in file.faults]
    if not faults:
        return None
    digest = hashlib.sha256(repr([(file.digest, [fault.name for fault in file.faults]) for file in files]).encode())
    return Platform(program, faults, digest.hexdigest())


def journal_subject(program: Program, targets: Sequence[Target]) -> str:
    """What a migration's journal is about: the model by its name, the device and its backends.

    Not the graph: the keys of answers name what they depend on, so that what a changed model shares with the old one
    need not be worked out again.
    """
    backends = ",".join(target.backend.name for target in targets)
    return f"migrate {program.name} to {targets[0].resident.device.info.name} {backends}"


def _captured(model: torch.nn.Module | Callable[..., object], first: InputSet) -> Program:
    call = first.calls[0]
    return capture(model, call.args, call.kwargs)


def _check_suite(suite: Suite, program: Program) -> None:
    if suite.info.graph_hash != program.graph_hash:
        raise UsageError(
            f"the suite was carved from another graph: expected {program.graph_hash[:12]}… ({program.name}), "
            f"got {suite.info.graph_hash[:12]}… ({suite.info.program}); carve it again"
        )


def summarise(program: Program, suite: Suite, outcome: Outcome, targets: Sequence[Target]) -> MigrationResult:
    """The result of a migration as plain data."""
    final = outcome.final
    coverage = (outcome.coverage if final.good else None) or _no_coverage(program)
    check = Check(
        final.max_rel_error, final.max_abs_error, final.cosine, final.against_source, final.source_error, final.bound,
        final.good,
    )  # fmt: skip
    info = suite.info
    return MigrationResult(
        target=targets[0].resident.device.info.name,
        backend=",".join(_used(outcome) or [targets[-1].backend.name]),
        program=ProgramSummary(len(program.nodes), len(program.compute), len(program.state)),
        suite=SuiteSummary(
            len(suite.cases), sum(bool(case.variant) for case in suite.cases), suite.nbytes, info.dump_bytes
        ),
        coverage=coverage,
        check=check,
        findings=outcome.findings,
        blocked=_blocked(program, outcome),
        steps=outcome.steps,
        program_runs=outcome.program_runs,
        runs_allowed=runs_allowed(len(outcome.findings), len(program.nodes)),
        operators=by_operator(entry for entry in outcome.replayed.results if not entry.latent),
        nodes=_records(program, outcome),
        latent=tuple(_latent(entry) for entry in outcome.replayed.latent),
        drift=outcome.drift,
    )


def runs_allowed(causes: int, nodes: int) -> int:
    """How many program runs finding so many causes among so many nodes may take: 3 k log2(n) + 10, and 2 log2(n) + 10
    where there is none.
    """
    return math.floor((3 * causes or 2) * math.log2(max(nodes, 2)) + 10)


def _latent(entry: CaseResult) -> Latent:
    return Latent(entry.op, entry.variant, str(entry.verdict), entry.reason, entry.case)


def _no_coverage(program: Program) -> Coverage:
    return Coverage(0.0, 0.0, 0.0, 0.0, 0, 0, len(program.compute), 0)


def _used(outcome: Outcome) -> list[str]:
    """The backends that regions ended on."""
    return sorted({region.backend for region in outcome.placement.regions})


def _moved(outcome: Outcome) -> dict[str, str]:
    """Node on the target → the tag of its region."""
    return {
        node_id: entry.tag if isinstance(entry, HostStep) else entry.step.tag
        for entry in outcome.executable.layout.steps
        if not isinstance(entry, SourceCalls)
        for node_id in (entry.nodes if isinstance(entry, HostStep) else entry.step.region.nodes)
    }


def _blocked(program: Program, outcome: Outcome) -> tuple[Blocked, ...]:
    moved = _moved(outcome)
    reasons = {
        node_id: f"{finding.verdict}: {finding.reason}"
        for finding in outcome.findings
        if finding.cause not in ("merge", "kernel")
        for node_id in finding.nodes
    }
    found: list[Blocked] = []
    for node in program.nodes:
        if node.id in moved or node.id in program.folded:
            continue
        reason = traits.place_reason(node.call) or reasons.get(node.id, "not moved")
        found.append(Blocked(node.id, node.op, str(node.source), reason))
    return tuple(found)


def _records(program: Program, outcome: Outcome) -> tuple[NodeRecord, ...]:
    moved = _moved(outcome)
    tried = attempts_by_node(program, outcome.replayed, outcome.findings)
    why = {entry.node: entry.reason for entry in _blocked(program, outcome)}

    def decided(node_id: str) -> Attempt | None:
        """By the backend that its cases ended with."""
        return next((entry for entry in reversed(tried.get(node_id, ())) if entry.how == "cases"), None)

    return tuple(
        NodeRecord(
            node=node.id,
            op=node.op,
            module=node.source.module,
            source=str(node.source),
            place="folded" if node.id in program.folded else "target" if node.id in moved else "source",
            region=moved.get(node.id, ""),
            compute=node.id in program.compute,
            verdict=last.verdict if last else "",
            max_rel=last.max_rel if last else None,
            reads=tuple(dict.fromkeys(ref.name for ref in operands(node.call))),
            tried=tried.get(node.id, ()),
            why=why.get(node.id, ""),
        )
        for node, last in ((node, decided(node.id)) for node in program.nodes)
    )
