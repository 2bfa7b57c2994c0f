"""One step of a migration: build a placement, run the whole program on real inputs, keep the answer.

Not here: which placements to try (engine, merging), and comparing results (check).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import msgspec
import torch
from torch.utils import _pytree as pytree

from tapestry.errors import ConnectionLostError, DeviceLostError, TapestryError
from tapestry.migration.check import CheckResult, broken, together
from tapestry.migration.choice import Choice
from tapestry.migration.coverage import forget_launches, measure_coverage
from tapestry.migration.result import Coverage, Step
from tapestry.migration.warm import Warm
from tapestry.numerics.verdict import Verdict
from tapestry.placement.build import Builder
from tapestry.placement.executable import Executable
from tapestry.placement.placement import PlacedRegion, Placement, option_values
from tapestry.program.inputs import InputSet
from tapestry.program.program import Program, tensor_digest
from tapestry.runtime.again import until_connected
from tapestry.suite.journal import Journal

#: Raised whenever the answer of the same step may change.
_CHECKING = 2
_GONE = frozenset({Verdict.CRASHED, Verdict.TIMEOUT})


class SetTurnedBad(Exception):  # noqa: N818 (not an error: what was right on other input sets is wrong on this one)
    """A step was bad while the input sets took turns: its cause is to be looked for on ``place`` alone."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class Steps:
    """Runs steps and remembers them in ``taken``.

    Steps take the input sets in turn until one is bad (SetTurnedBad); then one is ``pinned``, so that what was right
    before was right on the same values.
    """

    def __init__(
        self,
        program: Program,
        inputs: Sequence[InputSet],
        choice: Choice,
        journal: Journal | None = None,
        warm: Warm | None = None,
    ) -> None:
        warm = warm or Warm()
        self.program = program
        self.choice = choice
        self.checker = warm.checker(program, inputs)
        self._runs_before = self.checker.runs
        resident, compiler = choice.targets[0].resident, choice.targets[0].compiler
        self._device = resident.device
        backends = {target.backend.name: target.backend for target in choice.targets}
        faulty = choice.targets[0].faulty
        residents = {self._device.info.name: resident}
        self.builder = warm.builder(lambda: Builder(program, residents, compiler, backends, faulty))
        self.taken: list[Step] = []
        self.pinned: int | None = 0 if len(inputs) == 1 else None
        self._journal = journal
        self._inputs_digest = _digest_inputs(inputs)
        self._next_input = 0
        #: What the last step ran, on which input set, if it was good and is not from the journal.
        self._last: tuple[frozenset[tuple[str, ...]], int, CheckResult] | None = None
        self._region_keys: dict[tuple[str, tuple[str, ...]], str] = {}
        #: The last executable that was run: kernels and weights that the next one needs too stay on the device.
        self._held: Executable | None = None

    @property
    def program_runs(self) -> int:
        """How often the program was run: passes of one input set through all its calls."""
        return self.checker.runs - self._runs_before

    def step(
        self,
        kind: str,
        regions: Sequence[Sequence[str]],
        given: frozenset[str] = frozenset(),
        drift: bool = False,
    ) -> CheckResult:
        """Check a placement, or take the answer from the journal. SetTurnedBad when it is bad and no set is pinned.

        The source computes the nodes ``given`` for the regions that they lie in. With ``drift`` every value that leaves
        a region is read and compared, too.
        """
        place = self._next_place()
        begin = time.perf_counter()
        key = self._step_key(regions, given, place)
        kept = self._journal.get("step", key, CheckResult) if self._journal else None
        result = kept or self._run(regions, given, place, drift)
        self._last = (_cut_of(regions), place, result) if kept is None and result.good and not given else None
        if kept is None and self._journal is not None:
            self._journal.put("step", key, result)
        self.taken.append(
            Step(
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
        )
        if not result.good and self.pinned is None:
            raise SetTurnedBad(place)
        return result

    def _next_place(self) -> int:
        if self.pinned is not None:
            return self.pinned
        self._next_input += 1
        return (self._next_input - 1) % len(self.checker.inputs)

    def final(self, regions: Sequence[Sequence[str]]) -> tuple[CheckResult, Executable, Coverage | None]:
        """Check a placement on every input set; never from the journal. The executable is the caller's to close.

        An input set on which the last step ran these very regions is not run again, unless there is no other. Coverage
        is counted on the first; None where the check did not get through it.
        """
        try:
            executable = self.builder.build(self.placement(regions))
        except DeviceLostError:
            self._device.restart()
            executable = self.builder.build(self.placement(regions))
        self.release()
        known = self._last[1:] if self._last and self._last[0] == _cut_of(regions) else None
        places = [place for place in range(len(self.checker.inputs)) if known is None or place != known[0]]
        if not places:
            places, known = [0], None
        first, coverage = self._counted(executable, places[0])
        results = [*([known[1]] if known else []), first]
        if first.good and len(places) > 1:
            results.append(self._checked(executable, places[1:]))
        result = msgspec.structs.replace(together(results), failed_at=results[-1].failed_at)
        self._revive(result)
        return result, executable, coverage

    def _counted(self, executable: Executable, place: int) -> tuple[CheckResult, Coverage | None]:
        """Check one input set, and count what is launched meanwhile."""

        def count() -> tuple[CheckResult, Coverage | None]:
            forget_launches(executable)
            result = self.checker.check(executable, [place])
            if not result.good:
                return result, None
            calls = len(self.checker.inputs[place].calls)
            return result, measure_coverage(executable, calls, self.checker.transfers, self.checker.transfer_bytes)

        try:
            return until_connected([self._device], count)
        except (ConnectionLostError, DeviceLostError) as error:
            return msgspec.structs.replace(broken(error), failed_at=place), None

    def placement(self, regions: Sequence[Sequence[str]]) -> Placement:
        """A placement of these regions, each on the backend that was chosen for it."""
        placed = tuple(self._placed(region) for region in regions)
        versions = {entry.backend: self.builder.backend(entry.backend).fingerprint() for entry in placed}
        return Placement(self.program.name, self.program.graph_hash, placed, versions)

    def _placed(self, region: Sequence[str]) -> PlacedRegion:
        target = self.choice.target(region)
        nodes = tuple(sorted(region, key=self.program.position.__getitem__))
        return PlacedRegion(nodes, target.backend.name, self._device.info.name, option_values(target.options))

    def compiles(self, region: Sequence[str]) -> bool:
        """Whether the backend compiles these nodes as one region; if not, that is remembered as a step."""
        begin = time.perf_counter()
        graph = self.builder.region(region).graph
        target = self.choice.target(region)
        try:
            target.compiler.compile(target.backend, graph, self._device.info, target.options)
        except TapestryError as error:
            reason = f"does not compile as one region: {error}"
            seconds = time.perf_counter() - begin
            self.taken.append(Step("merge", len(region), 1, False, None, None, seconds, False, reason))
            return False
        return True

    def release(self) -> None:
        """Free what the last step holds on the device."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _run(self, regions: Sequence[Sequence[str]], given: frozenset[str], place: int, drift: bool) -> CheckResult:
        placement = self.placement(regions)
        try:
            executable = until_connected([self._device], lambda: self.builder.build(placement, given))
        except TapestryError as error:
            result = msgspec.structs.replace(broken(error), program_runs=0, failed_at=place)
        else:
            self.release()
            self._held = executable
            result = self._checked(executable, [place], drift)
        self._revive(result)
        return result

    def _checked(self, executable: Executable, places: Sequence[int], drift: bool = False) -> CheckResult:
        try:
            return until_connected([self._device], lambda: self.checker.check(executable, places, drift))
        except ConnectionLostError as error:
            return broken(error)

    def _revive(self, result: CheckResult) -> None:
        if result.verdict in _GONE:
            self._device.restart()

    def _step_key(self, regions: Sequence[Sequence[str]], given: frozenset[str], place: int) -> str:
        """Names everything that a check depends on: model, inputs, the cut, every compiled region, the source."""
        parts = [
            _CHECKING, self.program.content_hash, self._inputs_digest, place, torch.__version__,
            [list(region) for region in regions], sorted(given),
            [self._region_key(tuple(region)) for region in regions],
        ]  # fmt: skip
        return hashlib.sha256(msgspec.json.encode([*map(str, parts)])).hexdigest()

    def _region_key(self, region: tuple[str, ...]) -> str:
        target = self.choice.target(region)
        known = (target.backend.name, region)
        if known not in self._region_keys:
            self._region_keys[known] = target.key(self.builder.region(region).graph)
        return self._region_keys[known]


def _cut_of(regions: Sequence[Sequence[str]]) -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(region) for region in regions)


def _digest_inputs(inputs: Sequence[InputSet]) -> str:
    total = hashlib.sha256()
    for entry in inputs:
        for call in entry.calls:
            for leaf in pytree.tree_leaves((call.args, dict(call.kwargs))):
                text = tensor_digest(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)
                total.update(text.encode() + b"\n")
            total.update(b"call\n")
        total.update(b"set\n")
    return total.hexdigest()
