"""Costs by measurement: regions compiled, run on the program's own values and timed, on devices in workers.

A candidate that hangs, crashes, is wrong, gives another result the second time or leaves memory behind is refused, with
the reason. All answers are kept in a store. Not here: which candidates there are, and choosing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeVar, cast

import torch
from torch.utils import _pytree as pytree

from tapestry.backends.compiler import Compiler
from tapestry.backends.host.threads import thread_budget
from tapestry.backends.region_constants import RegionConstants
from tapestry.backends.transfer import to_storage
from tapestry.errors import (
    ConnectionLostError,
    DeviceLostError,
    EnvironmentProblem,
    TapestryError,
)
from tapestry.numerics import program_bound, program_error
from tapestry.numerics.verdict import Verdict
from tapestry.numerics.whole import PROGRAM_FLOOR
from tapestry.placement.constants import ProgramConstants
from tapestry.placement.reference import reference_for, widened_tensors
from tapestry.placement.search.boundary import SIZES, Line, time_transfers
from tapestry.placement.search.candidates import SOURCE, Candidate, Candidates, Kind, Way
from tapestry.placement.search.costs import RefusedError
from tapestry.placement.search.source_run import SourceRun
from tapestry.placement.search.store import Answer, CostKey, CostStore
from tapestry.program.inputs import InputSet
from tapestry.program.program import tensor_digest
from tapestry.program.region import Region, region_of
from tapestry.runtime.bind import BoundRegion
from tapestry.runtime.device import Buffer, Command, Device
from tapestry.runtime.module import Compiled
from tapestry.runtime.resident import Resident
from tapestry.suite.composition.judging import judge_graph
from tapestry.suite.on_target import run_once

#: Repeats of a timed region, and the seconds that they may take together.
_REPEATS, _SECONDS = 9, 0.5
#: Regions of reference precision of up to so many calls are judged by the error bound of each of their results;
#: larger ones by their effect on the program's outputs alone, since following a bound costs more than the region.
_JUDGED_CALLS = 16

T = TypeVar("T")
Measure = Callable[[], Answer]


@dataclass(frozen=True)
class MeasuredOn:
    """A device that regions are measured on (in a worker), and one that transfers are timed on.

    The second is in this process where that can be: the protocol of a worker is no part of a transfer.
    """

    resident: Resident
    transfers: Device


class MeasuredCosts:
    """A CostModel that measures. ``devices`` are by name; ``inputs`` the sets that a search may look at.

    Errors that say nothing of a candidate are raised: ConnectionLostError, EnvironmentProblem.
    """

    def __init__(
        self,
        candidates: Candidates,
        inputs: Sequence[InputSet],
        devices: Mapping[str, MeasuredOn],
        compiler: Compiler,
        store: CostStore,
    ) -> None:
        self.program = candidates.program
        self.candidates = candidates
        self.devices = dict(devices)
        self.compiler = compiler
        self.store = store
        self.constants = ProgramConstants(self.program)
        #: How often something was run, not found in the store.
        self.measured = 0
        self._inputs = tuple(inputs)
        self._runs: list[SourceRun] | None = None
        self._regions: dict[tuple[str, ...], Region] = {}
        self._lines: dict[tuple[str, bool], Line] = {}
        self._bound: float | None = None
        self._data = hashlib.sha256(
            "\n".join([self.program.graph_hash, tensors_digest(self.program.tensors), inputs_digest(inputs)]).encode()
        ).hexdigest()

    @property
    def runs(self) -> list[SourceRun]:
        """The first call of each input set on the source."""
        if self._runs is None:
            self._runs = [SourceRun(self.program, entry.calls[0]) for entry in self._inputs]
        return self._runs

    # ---------------------------------------------------------------------------------------------------- the protocol

    def region(self, candidate: Candidate) -> float:
        """Seconds of one run: of the values that the first input set gives."""
        if candidate.on_source:
            key = CostKey("latency", candidate.nodes[0], _source_version(), "", "", thread_budget(), self._data)
            return self._kept(key, lambda: Answer(self.runs[0].seconds[candidate.nodes[0]]))
        way = self.candidates.way(candidate)
        region = self._region(candidate)
        return self._kept(self._key("latency", way, region, region.key), lambda: self._timed(way, region))

    def error(self, candidate: Candidate) -> float:
        """The largest effect on the program's outputs over the input sets, against the source's."""
        if candidate.on_source:
            return 0.0
        way = self.candidates.way(candidate)
        region = self._region(candidate)
        place = hashlib.sha256(f"{region.key} {' '.join(candidate.nodes)}".encode()).hexdigest()
        return self._kept(self._key("error", way, region, place, self._data), lambda: self._in_place(way, region))

    def boundary(self, producer: Kind, consumer: Kind, nbytes: int) -> float:
        """From the source to a device and back, between devices by way of the source; on one device nothing moves."""
        if producer.device == consumer.device:
            return 0.0
        down = 0.0 if producer == SOURCE else self._line(producer.device, up=False).at(nbytes)
        return down + (0.0 if consumer == SOURCE else self._line(consumer.device, up=True).at(nbytes))

    # ------------------------------------------------------------------------------------------------------------- keys

    def _region(self, candidate: Candidate) -> Region:
        if candidate.nodes not in self._regions:
            self._regions[candidate.nodes] = region_of(self.program, candidate.nodes)
        return self._regions[candidate.nodes]

    def _key(
        self, quantity: Literal["latency", "error"], way: Way, region: Region, name: str, data: str = ""
    ) -> CostKey:
        backend = f"{way.backend.name} {way.backend.fingerprint_for(region.graph, way.info, way.options)}"
        # The reference options are held to more than the others.
        options = f"{way.options} reference" if quantity == "error" and _is_reference(way) else str(way.options)
        device = f"{way.info.kind} {way.info.fingerprint}"
        return CostKey(quantity, name, backend, options, device, thread_budget(), data)

    def _kept(self, key: CostKey, measure: Measure) -> float:
        answer = self.store.get(key)
        if answer is None:
            self.measured += 1
            try:
                answer = measure()
            except RefusedError as refusal:
                answer = Answer(refused=str(refusal))
            self.store.put(key, answer)
        if answer.refused:
            raise RefusedError(answer.refused)
        return answer.number

    # ------------------------------------------------------------------------------------------------------------- time

    def _timed(self, way: Way, region: Region) -> Answer:
        resident = self.devices[way.info.name].resident
        before = resident.device.stats()
        seconds = self._guarded(resident, lambda: self._time(way, region, resident))
        after = resident.device.stats()
        if (after.buffers, after.modules) != (before.buffers, before.modules):
            raise RefusedError(
                f"expected nothing to be left on {way.info.name}, got {after.buffers - before.buffers} buffers and "
                f"{after.modules - before.modules} modules"
            )
        return Answer(seconds)

    def _compiled(self, way: Way, region: Region) -> Compiled:
        for call in region.graph.calls if way.backend.fuses else ():
            reason = way.backend.refuses_in(region.graph, call.name, way.info)
            if reason is not None:
                raise RefusedError(reason)
        return self.compiler.compile(way.backend, region.graph, way.info, way.options)

    def _time(self, way: Way, region: Region, resident: Resident) -> float:
        compiled = self._compiled(way, region)
        constants = RegionConstants(self.constants, region.inputs, compiled)
        device, generation = resident.device, resident.device.generation
        bound = BoundRegion(compiled, resident, constants.bytes_of)
        buffers: list[Buffer] = []
        try:
            return _median_time(device, self._commands(region, bound, device, buffers))
        finally:
            # What was lost needs no freeing, and must not hide why: a crash, or Ctrl-C, which refuses nobody.
            with suppress(DeviceLostError):
                if device.generation == generation:
                    for buffer in buffers:
                        device.free(buffer)
                    bound.close()

    def _commands(self, region: Region, bound: BoundRegion, device: Device, buffers: list[Buffer]) -> Sequence[Command]:
        compiled = bound.compiled
        inputs: list[Buffer | None] = []
        for ref, tensor in zip(region.inputs, compiled.inputs, strict=True):
            if tensor < 0 or self.constants.is_constant(ref):
                inputs.append(None)
                continue
            decl = compiled.tensors[tensor]
            buffers.append(device.alloc(decl.nbytes))
            device.write(buffers[-1], to_storage(self.runs[0].tensor(ref), decl, ref.name))
            inputs.append(buffers[-1])
        outputs: list[Buffer] = []
        changed = {
            output: given for output, given in compiled.updates if region.inputs[given].name in self.program.state_names
        }
        for output, tensor in enumerate(compiled.outputs):
            own = inputs[changed[output]] if output in changed else None
            if own is None:
                own = device.alloc(compiled.tensors[tensor].nbytes)
                buffers.append(own)
            outputs.append(own)
        return bound.commands(inputs, outputs, "search")

    # ----------------------------------------------------------------------------------------------------------- values

    def _in_place(self, way: Way, region: Region) -> Answer:
        resident = self.devices[way.info.name].resident
        compiled = self._guarded(resident, lambda: self._compiled(way, region))
        worst = 0.0
        for run in self.runs:
            worst = max(worst, self._effect_of(way, region, compiled, run))
        if _is_reference(way) and worst > self._program_bound():
            raise RefusedError(
                f"expected an effect of at most {self._program_bound():.2g} on the program's outputs at reference "
                f"precision, got {worst:.2g}"
            )
        return Answer(worst)

    def _effect_of(self, way: Way, region: Region, compiled: Compiled, run: SourceRun) -> float:
        resident = self.devices[way.info.name].resident
        inputs = [
            self.constants.tensor(ref) if self.constants.is_constant(ref) else run.tensor(ref) for ref in region.inputs
        ]
        # One load for both runs: what it remembers shows in the second.
        generation = resident.device.generation
        self._guarded(resident, lambda: resident.module(compiled.module))
        try:
            got = self._results(resident, region, compiled, inputs)
            again = self._results(resident, region, compiled, inputs)
        finally:
            with suppress(DeviceLostError):
                if resident.device.generation == generation:
                    resident.release_module(compiled.module.digest)
        self._check(region, inputs, got, run, _is_reference(way))
        difference = program_error(again, got).max_rel_error
        own = program_error(got, [run.tensor(ref) for ref in region.outputs]).max_rel_error
        # Sums in another order may differ, but by no more than the region's own error.
        if difference > max(PROGRAM_FLOOR, own):
            raise RefusedError(
                f"gives another result when it is run again on the same values: they differ by {difference:.2g}"
            )
        return self._effect(run, region, got)

    def _results(
        self, resident: Resident, region: Region, compiled: Compiled, inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        return self._guarded(resident, lambda: run_once(resident, region.graph, compiled, inputs))

    def _check(
        self,
        region: Region,
        inputs: Sequence[torch.Tensor],
        got: Sequence[torch.Tensor],
        run: SourceRun,
        reference: bool,
    ) -> None:
        """RefusedError where the results are wrong whatever the budget is."""
        want = [run.tensor(ref) for ref in region.outputs]
        for ref, actual, expected in zip(region.outputs, got, want, strict=True):
            if program_error([actual], [expected]).max_rel_error == float("inf"):
                raise RefusedError(
                    f"{ref.name}: shapes, exact results or the places of NaN and infinities differ from the source's"
                )
        if reference and len(region.nodes) <= _JUDGED_CALLS:
            judgement = judge_graph(region.graph, inputs, got, want)
            if judgement.verdict not in (Verdict.PASS, Verdict.UNDEFINED):
                raise RefusedError(f"is wrong on the model's values: {judgement.reason}")

    def _effect(self, run: SourceRun, region: Region, got: Sequence[torch.Tensor]) -> float:
        try:
            error = run.effect(region, got)
        except (RuntimeError, IndexError, ValueError) as failure:
            raise RefusedError(f"what follows fails on its results: {failure}") from failure
        if error == float("inf"):
            raise RefusedError("exact results or the places of NaN and infinities in the program's outputs change")
        return error

    def _program_bound(self) -> float:
        if self._bound is None:
            first = InputSet(self._inputs[0].calls[:1])
            (reference,) = reference_for(self.program, first, widened_tensors(self.program))
            self._bound = program_bound(reference.source_error.max_rel_error)
        return self._bound

    # ---------------------------------------------------------------------------------------------------------- others

    def _guarded(self, resident: Resident, action: Callable[[], T]) -> T:
        """What an action gives. RefusedError where it fails; a lost device is started again."""
        try:
            return action()
        except (RefusedError, ConnectionLostError, EnvironmentProblem):
            raise
        except DeviceLostError as error:
            resident.device.restart()
            raise RefusedError(str(error)) from error
        except (TapestryError, RuntimeError, ValueError) as error:  # the latter two from a preparation graph
            raise RefusedError(str(error)) from error

    def _line(self, name: str, up: bool) -> Line:
        if (name, up) not in self._lines:
            device = self.devices[name].transfers
            points: list[tuple[int, float]] = []
            keys = [
                CostKey(
                    "boundary", f"{'to' if up else 'from'} {size}", "", "", device.info.fingerprint, thread_budget()
                )
                for size in SIZES
            ]
            kept = [self.store.get(key) for key in keys]
            if None in kept:
                points = list(time_transfers(device, up))
                for key, (_, seconds) in zip(keys, points, strict=True):
                    self.store.put(key, Answer(seconds))
            else:
                points = [(size, cast("Answer", entry).number) for size, entry in zip(SIZES, kept, strict=True)]
            self._lines[name, up] = Line.through(points)
        return self._lines[name, up]


def _median_time(device: Device, commands: Sequence[Command]) -> float:
    if not commands:
        return 0.0
    once = device.time(commands, 1)[0]
    repeats = max(1, min(_REPEATS, int(_SECONDS / max(once, 1e-9))))
    return median(device.time(commands, repeats)) if repeats > 1 else once


def _is_reference(way: Way) -> bool:
    return way.options == way.backend.options()[0]


def _source_version() -> str:
    return f"source torch {torch.__version__}"


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """A hash of named tensors' contents."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor_digest(tensor)}\n".encode())
    return total.hexdigest()


def inputs_digest(inputs: Sequence[InputSet]) -> str:
    """A hash of all arguments of all calls."""
    total = hashlib.sha256()
    for entry in inputs:
        for call in entry.calls:
            leaves, spec = pytree.tree_flatten((call.args, dict(call.kwargs)))
            total.update(str(spec).encode())
            for leaf in leaves:
                text = tensor_digest(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)
                total.update(f"{text}\n".encode())
        total.update(b"end\n")
    return total.hexdigest()
