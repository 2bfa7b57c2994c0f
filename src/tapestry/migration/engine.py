"""Migration: from everything on the source to everything that is right on the target, one checked step at a time.

Cases first, then growing prefixes of the program, then larger regions (merging). Not here: running a step (steps),
the whole-program check (check), what is reported (result), and who prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tapestry.migration.check import CheckResult
from tapestry.migration.choice import Choice
from tapestry.migration.levels import Regions
from tapestry.migration.merging import Merging, Together, alone, last_good, replaced
from tapestry.migration.result import Coverage, DriftPoint, Finding, Step
from tapestry.migration.steps import SetTurnedBad, Steps
from tapestry.migration.warm import Warm
from tapestry.numerics.verdict import Verdict
from tapestry.placement.executable import Executable
from tapestry.placement.placement import Placement
from tapestry.program.inputs import InputSet
from tapestry.program.program import Program
from tapestry.program.region import region_of
from tapestry.suite.carve import nodes_by_key
from tapestry.suite.case import Suite
from tapestry.suite.journal import Journal
from tapestry.suite.on_target import Target
from tapestry.suite.replay import Preferred, replay_preferring
from tapestry.suite.verdicts import CaseResult, ReplayResult

Progress = Callable[[str, int, int], None]

#: How much longer the next stride is: few steps where all is right, and within one log2(n) finds who is not.
_GROWTH = 4


@dataclass(frozen=True)
class Outcome:
    """Where a migration ended: the regions on the target, why the rest is not there, and what was tried.

    ``program_runs`` counts this run's passes of one input set through all its calls; what the journal answered
    is not among them.
    """

    placement: Placement
    executable: Executable
    final: CheckResult
    coverage: Coverage | None
    replayed: ReplayResult
    findings: tuple[Finding, ...]
    steps: tuple[Step, ...]
    program_runs: int
    drift: tuple[DriftPoint, ...] = ()


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
        targets: Sequence[Target],
        journal: Journal | None = None,
        progress: Progress | None = None,
        warm: Warm | None = None,
    ) -> None:
        self.program = program
        self.suite = suite
        self.targets = tuple(targets)
        self.journal = journal
        self.tell = progress or (lambda what, done, total: None)
        self.choice = Choice(program, self.targets)
        self._warm = warm or Warm()
        self.steps = Steps(program, inputs, self.choice, journal, self._warm)
        self.findings: list[Finding] = []
        self._merging = Merging(self.steps, self._found_together)
        self._by_key = nodes_by_key(program)
        self._blocked: set[str] = set()
        #: Input sets that were pinned since the last finding.
        self._seen: set[int] = set()
        self._grows = True
        self._drift: tuple[DriftPoint, ...] = ()

    def run(self) -> Outcome:
        """Replay, offload, merge; then check the end result on every input set.

        Steps take the input sets in turn. When a step or the end result is wrong on one, offloading starts again with
        every step checked on that one; what is blocked or kept apart stays so.
        """
        preferred = replay_preferring(self.targets, self.suite, self.journal, self.tell)
        replayed = preferred.result
        self._warm.when_replayed(replayed)
        allowed = self._allowed(preferred)
        while True:
            count = len(self.findings)
            try:
                regions = self._merge(self._offload([node_id for node_id in allowed if node_id not in self._blocked]))
            except SetTurnedBad as turned:
                self._pin(turned.place)
                continue
            final, executable, coverage = self._final_check(regions)
            if len(self.findings) > count:
                self._seen.clear()
            # A set that was pinned since the last finding is not tried again: what is wrong there does not repeat.
            if final.good or final.failed_at is None or final.failed_at in self._seen:
                break
            self._pin(final.failed_at)
            executable.close()
        return Outcome(
            executable.placement, executable, final, coverage, replayed, tuple(self.findings),
            tuple(self.steps.taken), self.steps.program_runs, self._drift,
        )  # fmt: skip

    def _pin(self, place: int) -> None:
        self._seen.add(place)
        self.steps.pinned = place

    def _final_check(self, regions: Regions) -> tuple[CheckResult, Executable, Coverage | None]:
        total = len(self.steps.checker.inputs)
        self.tell("checking", 0, total)
        found = self.steps.final(regions)
        self.tell("checking", total, total)
        return found

    # -- cases

    def _allowed(self, preferred: Preferred) -> list[str]:
        """The nodes whose cases are all right, in order; the others become findings, one per operator key."""
        by_key = self._by_key
        for key, target in preferred.by_key.items():
            self.choice.assign(by_key[key], target)
        for entry in _worst(preferred.overruled).values():
            self._find(by_key[entry.key], str(entry.verdict), "kernel", f"{entry.backend}: {entry.reason}", entry)
        worst = _worst(preferred.result.results)
        for key, entry in worst.items():
            self._find(by_key[key], str(entry.verdict), "replay", entry.reason, entry)
        covered = {entry.key for entry in preferred.result.results}
        untested = {key: nodes for key, nodes in by_key.items() if key not in covered}
        for nodes in untested.values():
            self._find(nodes, str(Verdict.UNSUPPORTED), "replay", "no case: the inputs never reached this operator")
        wrong = {node_id for key in (*worst, *untested) for node_id in by_key[key]}
        return [node_id for node_id in self.program.placeable if node_id not in wrong]

    def _find(
        self, nodes: Sequence[str], verdict: str, cause: str, reason: str, shown_by: CaseResult | None = None
    ) -> None:
        found = [self.program.by_id[node_id] for node_id in nodes]
        ops = [
            self.program.origins[node.origin].op if node.origin in self.program.origins else node.op for node in found
        ]
        sources = [str(node.source) for node in found]
        case, backend = (shown_by.case, shown_by.backend) if shown_by is not None else ("", "")
        self.findings.append(
            Finding(
                tuple(nodes), tuple(dict.fromkeys(ops)), tuple(dict.fromkeys(sources)), verdict, cause, reason,
                case=case, backend=backend,
            )
        )  # fmt: skip

    # -- offloading

    def _offload(self, allowed: list[str]) -> list[str]:
        """Move growing prefixes of the allowed nodes, with longer strides while the whole program stays right.

        When offloading starts again, all of them are tried at once: they were right on other input sets.
        """
        good: list[str] = []
        rest = list(allowed)
        stride = 1 if self._grows else max(1, len(rest))
        self._grows = False
        total = len(allowed)
        while rest:
            part = rest[:stride]
            self.tell("offloading", total - len(rest), total)
            # The last stride: everything that moves is on the target, each operator by itself.
            result = self.steps.step("offload", alone([*good, *part]), drift=len(part) == len(rest))
            self._drift = result.drift or self._drift
            if result.good:
                good += part
                rest = rest[stride:]
                stride *= _GROWTH
                continue
            alike = self._block(*self._first_bad(good, part, result))
            good = [node_id for node_id in good if node_id not in alike]
            rest = [node_id for node_id in rest if node_id not in alike]
        self.tell("offloading", total, total)
        return good

    def _first_bad(self, good: list[str], part: list[str], bad: CheckResult) -> tuple[str, CheckResult]:
        """The node with which a prefix turns bad, by bisection: ``good`` is right, ``good + part`` is ``bad``."""
        results = [bad]

        def right(count: int) -> bool:
            result = self.steps.step("search", alone([*good, *part[:count]]))
            if not result.good:
                results.append(result)
            return result.good

        return part[last_good(0, len(part), right)], results[-1]

    def _block(self, culprit: str, bad: CheckResult) -> set[str]:
        """Keep every node with the culprit's key on the source."""
        nodes = self._by_key[region_of(self.program, [culprit]).key]
        self._find(nodes, bad.verdict, "program", f"its cases pass, the whole program does not with it: {bad.reason}")
        self._blocked |= set(nodes)
        return set(nodes)

    # -- merging

    def _merge(self, moved: list[str]) -> Regions:
        if not moved:
            return ()
        return self._merging.run(moved, self._claim(moved), self.tell)

    def _claim(self, moved: list[str]) -> Regions:
        """Give hand-written kernels the places of several operators that they match, where the whole stays right.

        All places at once, and by halves where that is wrong.
        """
        regions = alone(moved)
        waiting = [[match for match in self.choice.matches(moved) if self._compiles(*match)]]
        while waiting:
            matches = waiting.pop()
            if not matches:
                continue
            before = self.choice.copy()
            for target, nodes in matches:
                self.choice.claim(nodes, target)
            wanted = replaced(regions, [nodes for _, nodes in matches])
            result = self.steps.step("kernel", wanted)
            if result.good:
                regions = wanted
                continue
            self.choice.restore(before)
            if len(matches) > 1:
                half = len(matches) // 2
                waiting += [matches[half:], matches[:half]]
                continue
            ((target, nodes),) = matches
            self._find(nodes, result.verdict, "kernel", f"{target.backend.name}: {result.reason}")
        return regions

    def _compiles(self, target: Target, nodes: tuple[str, ...]) -> bool:
        before = self.choice.copy()
        self.choice.claim(nodes, target)
        compiles = self.steps.compiles(nodes)
        self.choice.restore(before)
        return compiles

    def _found_together(self, found: Together) -> None:
        nodes = dict.fromkeys(node_id for place in found.places for node_id in place)
        reason = f"right node by node, not when compiled together: {found.result.reason}"
        self._find(tuple(nodes), found.result.verdict, "merge", reason)


def _worst(results: Sequence[CaseResult]) -> dict[str, CaseResult]:
    """Of each operator key that has a bad case, the first one."""
    found: dict[str, CaseResult] = {}
    for entry in results:
        if entry.blocks:
            found.setdefault(entry.key, entry)
    return found
