"""Migration: from everything on the source to everything that is right on the target, one checked step at a time.

Cases first, then growing prefixes of the program, then larger regions. Not here: the whole-program check (check),
what is reported (result), and who prints it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch.utils import _pytree as pytree

from tapestry.backends.base import Backend, Options
from tapestry.backends.compiler import Compiler
from tapestry.errors import CompileError, DeviceError, DeviceLostError, UnsupportedError
from tapestry.migration.check import Checker, CheckResult
from tapestry.migration.levels import Regions, merge_levels
from tapestry.migration.result import Finding, Step
from tapestry.numerics.verdict import Verdict
from tapestry.placement.build import Builder
from tapestry.placement.executable import Executable
from tapestry.placement.placement import Placement, place_on
from tapestry.program.inputs import InputSet
from tapestry.program.program import Program, tensor_digest
from tapestry.program.region import region_of
from tapestry.runtime.resident import Resident
from tapestry.suite.carve import nodes_by_key
from tapestry.suite.case import Suite
from tapestry.suite.journal import Journal
from tapestry.suite.replay import Target, replay_on
from tapestry.suite.verdicts import BLOCKING, CaseResult, ReplayResult

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Outcome:
    """Where a migration ended: the regions on the target, why the rest is not there, and what was tried."""

    placement: Placement
    executable: Executable
    final: CheckResult
    replayed: ReplayResult
    findings: tuple[Finding, ...]
    steps: tuple[Step, ...]
    program_runs: int


class Migration:
    """One migration of a program to a target. ``run`` may be called once.

    ``journal`` keeps verdicts and checks: with the same program, inputs, target and compilers a rerun takes them
    from there and ends the same.
    """

    def __init__(
        self,
        program: Program,
        suite: Suite,
        inputs: Sequence[InputSet],
        target: Target,
        journal: Journal | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.program = program
        self.suite = suite
        self.inputs = tuple(inputs)
        self.target = target
        self.journal = journal
        self.tell = progress or (lambda what, done, total: None)
        self.checker = Checker(program, inputs)
        name = target.resident.device.info.name
        self.builder = Builder(program, {name: target.resident}, target.compiler, {target.backend.name: target.backend})
        self.device_name = name
        self.findings: list[Finding] = []
        self.steps: list[Step] = []
        self.runs = 0
        self._inputs_digest = _digest_inputs(self.inputs)
        self._next_input = 0
        self._pinned: int | None = None
        self._blocked: set[str] = set()

    def run(self) -> Outcome:
        """Replay, offload, merge; then check the end result on every input set.

        Steps take the input sets in turn. When the end result is wrong on one that the steps did not see it with,
        offloading starts again with every step checked on that one; what is blocked stays blocked.
        """
        replayed = replay_on(self.target, self.suite, self.journal, self.tell)
        allowed = self._allowed(replayed)
        while True:
            moved = self._offload([node_id for node_id in allowed if node_id not in self._blocked])
            regions = self._merge(moved)
            placement = self._placement(regions)
            final, executable = self._final_check(placement)
            if final.good or final.failed_at in (None, self._pinned):
                break
            self._pinned = final.failed_at
            executable.close()
        return Outcome(placement, executable, final, replayed, tuple(self.findings), tuple(self.steps), self.runs)

    def _final_check(self, placement: Placement) -> tuple[CheckResult, Executable]:
        executable = self.builder.build(placement)
        self.tell("checking", 0, len(self.inputs))
        try:
            final = self.checker.check(executable, range(len(self.inputs)))
        except DeviceLostError as error:
            self.target.resident.device.restart()
            final = _broken(str(error))
        self.runs += final.program_runs
        self.tell("checking", len(self.inputs), len(self.inputs))
        return final, executable

    # -- cases

    def _allowed(self, replayed: ReplayResult) -> list[str]:
        """The nodes whose cases are all right, in order; the others become findings, one per operator key."""
        worst: dict[str, CaseResult] = {}
        for entry in replayed.results:
            if entry.verdict in BLOCKING:
                worst.setdefault(entry.key, entry)
        by_key = nodes_by_key(self.program)
        for key, entry in worst.items():
            self._find(by_key[key], str(entry.verdict), "replay", entry.reason)
        covered = {entry.key for entry in replayed.results}
        untested = {key: nodes for key, nodes in by_key.items() if key not in covered}
        for nodes in untested.values():
            self._find(nodes, str(Verdict.UNSUPPORTED), "replay", "no case: the inputs never reached this operator")
        wrong = {node_id for key in (*worst, *untested) for node_id in by_key[key]}
        return [node_id for node_id in self.program.placeable if node_id not in wrong]

    def _find(self, nodes: Sequence[str], verdict: str, cause: str, reason: str) -> None:
        found = [self.program.by_id[node_id] for node_id in nodes]
        ops = [
            self.program.origins[node.origin].op if node.origin in self.program.origins else node.op for node in found
        ]
        sources = [str(node.source) for node in found]
        self.findings.append(
            Finding(tuple(nodes), tuple(dict.fromkeys(ops)), tuple(dict.fromkeys(sources)), verdict, cause, reason)
        )

    # -- offloading

    def _offload(self, allowed: list[str]) -> list[str]:
        """Move growing prefixes of the allowed nodes, doubling the stride while the whole program stays right."""
        good: list[str] = []
        rest = list(allowed)
        stride = 1
        total = len(allowed)
        while rest:
            part = rest[:stride]
            self.tell("offloading", total - len(rest), total)
            if self._step("offload", _alone([*good, *part])).good:
                good += part
                rest = rest[stride:]
                stride *= 2
                continue
            culprit = self._first_bad(good, part)
            alike = self._block(culprit)
            good = [node_id for node_id in good if node_id not in alike]
            rest = [node_id for node_id in rest if node_id not in alike]
            stride = 1
        self.tell("offloading", total, total)
        return good

    def _first_bad(self, good: list[str], part: list[str]) -> str:
        """The node with which a prefix turns bad, by bisection: ``good`` is right, ``good + part`` is not."""
        low, high = 0, len(part)
        while high - low > 1:
            middle = (low + high) // 2
            if self._step("search", _alone([*good, *part[:middle]])).good:
                low = middle
            else:
                high = middle
        return part[low]

    def _block(self, culprit: str) -> set[str]:
        reason = self.steps[-1].reason
        for step in reversed(self.steps):
            if not step.good:
                reason = step.reason
                break
        key = region_of(self.program, [culprit]).key
        nodes = nodes_by_key(self.program)[key]
        self._find(nodes, str(Verdict.FAIL), "program", f"its cases pass, the whole program is wrong with it: {reason}")
        self._blocked |= set(nodes)
        return set(nodes)

    # -- merging

    def _merge(self, moved: list[str]) -> Regions:
        """Coarser and coarser regions, as long as the whole program stays right."""
        current: Regions = tuple(_alone(moved))
        if not moved:
            return current
        levels = merge_levels(self.program, moved)
        for done, level in enumerate(levels):
            self.tell("merging", done, len(levels))
            current = self._merge_level(current, level)
        self.tell("merging", len(levels), len(levels))
        return current

    def _merge_level(self, current: Regions, level: Regions) -> Regions:
        wanted = [region for region in level if region not in set(current)]
        wanted = [region for region in wanted if not self._parts_cross(current, region)]
        compiling = [region for region in wanted if self._compiles(region)]
        return self._accept(current, compiling) if compiling else current

    def _parts_cross(self, current: Regions, region: tuple[str, ...]) -> bool:
        """Whether a region would tear apart one that is kept from an earlier level."""
        inside = set(region)
        return any(inside & set(part) and not set(part) <= inside for part in current)

    def _accept(self, current: Regions, wanted: list[tuple[str, ...]]) -> Regions:
        """Put the wanted regions in place of their parts; halve the list where that makes the program wrong."""
        candidate = _replaced(current, wanted)
        result = self._step("merge", candidate)
        if result.good:
            return candidate
        if len(wanted) == 1:
            reason = f"right node by node, wrong when compiled together: {result.reason}"
            self._find(wanted[0], str(Verdict.FAIL), "merge", reason)
            return current
        middle = len(wanted) // 2
        current = self._accept(current, wanted[:middle])
        return self._accept(current, wanted[middle:])

    def _compiles(self, region: tuple[str, ...]) -> bool:
        graph = region_of(self.program, region).graph
        info = self.target.resident.device.info
        try:
            self.target.compiler.compile(self.target.backend, graph, info, self.target.options)
        except (UnsupportedError, CompileError) as error:
            reason = f"does not compile as one region: {error}"
            self.steps.append(Step("merge", len(region), 1, False, None, None, 0.0, False, reason))
            return False
        return True

    # -- steps

    def _placement(self, regions: Sequence[Sequence[str]]) -> Placement:
        return place_on(self.program, regions, self.target.backend, self.target.options, self.device_name)

    def _step(self, kind: str, regions: Sequence[Sequence[str]]) -> CheckResult:
        """Check a placement on the next input set, or take the answer from the journal."""
        place = self._next_input % len(self.inputs) if self._pinned is None else self._pinned
        self._next_input += 1
        begin = time.perf_counter()
        key = self._step_key(regions, place)
        kept = self.journal.get("step", key, CheckResult) if self.journal else None
        result = kept or self._run_step(regions, place)
        if kept is None:
            self.runs += result.program_runs
            if self.journal is not None:
                self.journal.put("step", key, result)
        step = Step(
            kind=kind,
            nodes=sum(len(region) for region in regions),
            regions=len(regions),
            good=result.good,
            max_rel_error=result.max_rel_error,
            bound=result.bound,
            seconds=time.perf_counter() - begin,
            resumed=kept is not None,
            reason=result.reason,
        )
        self.steps.append(step)
        return result

    def _run_step(self, regions: Sequence[Sequence[str]], place: int) -> CheckResult:
        executable: Executable | None = None
        try:
            executable = self.builder.build(self._placement(regions))
            return self.checker.check(executable, [place])
        except DeviceLostError as error:
            self.target.resident.device.restart()
            return _broken(str(error))
        except (DeviceError, UnsupportedError, CompileError, IndexError, RuntimeError) as error:
            return _broken(f"{type(error).__name__}: {error}")
        finally:
            if executable is not None:
                executable.close()

    def _step_key(self, regions: Sequence[Sequence[str]], place: int) -> str:
        """Names everything that a check depends on: model, inputs, the cut, every compiled region, the source."""
        compiled = [self.target.key(region_of(self.program, region).graph) for region in regions]
        parts = [self.program.content_hash, self._inputs_digest, place, torch.__version__, list(map(list, regions))]
        return hashlib.sha256(msgspec.json.encode([*map(str, parts), *compiled])).hexdigest()


def _broken(reason: str) -> CheckResult:
    infinite = float("inf")
    return CheckResult(False, infinite, infinite, 0.0, infinite, 0.0, 0.0, 1, reason)


def _alone(nodes: Sequence[str]) -> list[tuple[str, ...]]:
    return [(node_id,) for node_id in nodes]


def _replaced(current: Regions, wanted: Sequence[tuple[str, ...]]) -> Regions:
    taken = {node_id for region in wanted for node_id in region}
    return (*(region for region in current if region[0] not in taken), *wanted)


def _digest_inputs(inputs: Sequence[InputSet]) -> str:
    total = hashlib.sha256()
    for entry in inputs:
        for call in entry.calls:
            for leaf in pytree.tree_leaves((call.args, dict(call.kwargs))):
                text = tensor_digest(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)
                total.update(text.encode() + b"\n")
            total.update(b"call\n")
    return total.hexdigest()


def make_target(resident: Resident, backend: Backend, compiler: Compiler, options: Options | None = None) -> Target:
    """A target with the backend's reference options unless others are given."""
    return Target(resident, backend, options or backend.options()[0], compiler)
