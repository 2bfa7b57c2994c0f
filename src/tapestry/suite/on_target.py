"""Running cases on one backend of a device: each judged here, whatever happens to the device.

Not here: judging (numerics), and choosing among several backends (replay).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch

from tapestry.backends.base import Backend, Options
from tapestry.backends.compiler import Compiler
from tapestry.backends.region_constants import RegionConstants
from tapestry.backends.registry import check_kind
from tapestry.backends.transfer import from_storage, to_storage
from tapestry.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    InputError,
    TapestryError,
    UnsupportedError,
)
from tapestry.numerics.judgement import Judgement, Metrics
from tapestry.numerics.judging import judge
from tapestry.numerics.verdict import Verdict
from tapestry.program.graph import Graph, Ref
from tapestry.program.program import tensor_digest
from tapestry.runtime.again import until_connected
from tapestry.runtime.bind import BoundRegion
from tapestry.runtime.device import Buffer
from tapestry.runtime.module import Compiled, KernelModule
from tapestry.runtime.resident import Resident
from tapestry.suite.case import Case, Suite
from tapestry.suite.composition.judging import judge_graph
from tapestry.suite.expected import all_finite
from tapestry.suite.guards import Exact, Guards
from tapestry.suite.injection.platform import Part, Platform
from tapestry.suite.journal import Journal
from tapestry.suite.one_call import call_of
from tapestry.suite.variants.call import Kind
from tapestry.suite.verdicts import CaseResult, ReplayResult

#: Raised whenever a verdict of the same results may change.
_JUDGING = 4

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Target:
    """Where cases and regions run: a backend with its options on an open device."""

    resident: Resident
    backend: Backend
    options: Options
    compiler: Compiler
    faulty: Platform | None = None

    @staticmethod
    def of(
        resident: Resident,
        backend: Backend,
        compiler: Compiler,
        options: Options | None = None,
        faulty: Platform | None = None,
    ) -> Target:
        """A target with the reference options unless others are given, settled for the device."""
        chosen = backend.settled(options or backend.options()[0], resident.device)
        return Target(resident, backend, chosen, compiler, faulty)

    def key(self, graph: Graph) -> str:
        """Names everything that a result of this graph on this target depends on, values left out."""
        key = self.compiler.key(self.backend, graph, self.resident.device.info, self.options)
        return f"{key} {self.faulty.digest}" if self.faulty else key


def replay_on(
    target: Target,
    suite: Suite,
    journal: Journal | None = None,
    progress: Progress | None = None,
    cases: Sequence[Case] | None = None,
) -> ReplayResult:
    """Replay a suite, or some of its cases, on an open target. Cases answered in the journal are not run again."""
    check_kind(target.backend, target.resident.device.info)
    tell = progress or (lambda what, done, total: None)
    wanted = suite.cases if cases is None else tuple(cases)
    keys = _case_keys(target, suite, wanted) if journal is not None else {}
    found = _from_journal(wanted, keys, journal)
    groups: dict[str, list[Case]] = {}
    for case in wanted:
        if case.id not in found:
            groups.setdefault(case.graph, []).append(case)
    for group in groups.values():
        _prefetch(target, group[0])
    for group in groups.values():
        for case, bare in _replay_group(target, suite, group):
            result = msgspec.structs.replace(bare, backend=target.backend.name)
            found[case.id] = result
            if journal is not None:
                journal.put("case", keys[case.id], result)
            tell("replaying", len(found), len(wanted))
    tell("replaying", len(wanted), len(wanted))
    name = target.resident.device.info.name
    return ReplayResult(name, target.backend.name, tuple(found[case.id] for case in wanted))


def case_key(target: Target, suite: Suite, case: Case) -> str:
    """Names everything that the verdict of a case on a target depends on."""
    return _case_key(target.key(case.load_graph()), suite, case)


def _case_keys(target: Target, suite: Suite, cases: Sequence[Case]) -> dict[str, str]:
    """The keys of cases by their ids; what a target makes of a graph is asked once, for all cases of it."""
    of_graph = {case.graph: case for case in cases}
    keys = {graph: target.key(case.load_graph()) for graph, case in of_graph.items()}
    return {case.id: _case_key(keys[case.graph], suite, case) for case in cases}


def _case_key(key: str, suite: Suite, case: Case) -> str:
    stored = suite.by_id[case.base] if case.base else case
    derived = [case.variant, case.blocking, suite.info.generation, suite.info.torch_version] if case.base else []
    content = msgspec.json.encode([case.graph, stored.inputs, stored.source, stored.oracle, stored.no_oracle, derived])
    return hashlib.sha256(f"{_JUDGING} {key}".encode() + content).hexdigest()


def _from_journal(cases: Sequence[Case], keys: Mapping[str, str], journal: Journal | None) -> dict[str, CaseResult]:
    """The verdicts that the journal knows, by case."""
    if journal is None:
        return {}
    kept = {case.id: journal.get("case", keys[case.id], CaseResult) for case in cases}
    # Which case it is does not change its verdict, so it is not in the key.
    return {
        case.id: msgspec.structs.replace(entry, case=case.id, key=case.key, variant=case.variant, kind=case.kind)
        for case in cases
        if (entry := kept[case.id]) is not None
    }


def _prefetch(target: Target, case: Case) -> None:
    graph = case.load_graph()
    info = target.resident.device.info
    if not any(target.backend.refuses_in(graph, call.name, info) for call in graph.calls):
        target.compiler.start(target.backend, graph, info, target.options)


def _replay_group(target: Target, suite: Suite, cases: Sequence[Case]) -> Iterator[tuple[Case, CaseResult]]:
    """Cases of one graph: compiled once, run one after the other."""
    graph = cases[0].load_graph()
    info = target.resident.device.info
    answers = (target.backend.refuses_in(graph, call.name, info) for call in graph.calls)
    refused = next((reason for reason in answers if reason is not None), None)
    if refused is not None:
        yield from ((case, _ended(case, Verdict.UNSUPPORTED, refused)) for case in cases)
        return
    part = target.faulty.part_of(cases[0].key) if target.faulty else None
    if part is not None:
        yield from ((case, _replay_with_fault(suite, case, graph, part)) for case in cases)
        return
    try:
        compiled = target.compiler.compile(target.backend, graph, info, target.options)
        until_connected([target.resident.device], lambda: target.resident.module(compiled.module))
    except TapestryError as error:
        revive(target, error)
        yield from ((case, _failed(case, error)) for case in cases)
        return
    try:
        for case in cases:
            yield case, _replay_case(target, suite, case, graph, compiled)
    finally:
        target.resident.release_module(compiled.module.digest)


def revive(target: Target, error: Exception) -> None:
    """Start the device again where the error says that it is lost."""
    if isinstance(error, DeviceLostError):
        target.resident.device.restart()


def _failed(case: Case, error: Exception) -> CaseResult:
    """The verdict of a case that gave no result."""
    known = isinstance(error, TapestryError)
    return _ended(case, verdict_of(error), str(error) if known else f"{type(error).__name__}: {error}")


def verdict_of(error: Exception) -> Verdict:
    """What the error that ended a case makes of it."""
    if isinstance(error, DeviceLostError):
        return Verdict.TIMEOUT if isinstance(error, DeviceTimeoutError) else Verdict.CRASHED
    if isinstance(error, UnsupportedError | InputError):
        return Verdict.UNSUPPORTED
    return Verdict.ERROR


def _ended(case: Case, verdict: Verdict, reason: str, seconds: float = 0.0) -> CaseResult:
    # A derived case that the target refuses (integers beyond its range) is refused in the model, too, not computed.
    latent = not case.blocking or (bool(case.base) and verdict == Verdict.UNSUPPORTED)
    return CaseResult(
        case.id, case.key, case.op, case.variant, verdict, False, reason, Metrics(), "", seconds,
        latent=latent, kind=case.kind,
    )  # fmt: skip


def _replay_case(target: Target, suite: Suite, case: Case, graph: Graph, compiled: Compiled) -> CaseResult:
    begin = time.perf_counter()
    try:
        inputs = suite.inputs(case)
        got = until_connected([target.resident.device], lambda: run_once(target.resident, graph, compiled, inputs))
    except (TapestryError, RuntimeError, ValueError) as error:  # the latter two from a backend's preparation graph
        revive(target, error)
        return _failed(case, error)
    return _judged(suite, case, graph, inputs, got, time.perf_counter() - begin)


def _replay_with_fault(suite: Suite, case: Case, graph: Graph, part: Part) -> CaseResult:
    begin = time.perf_counter()
    inputs = suite.inputs(case)
    try:
        got = part.run_graph(inputs)
    except Exception as error:  # whatever the fault raises
        return _failed(case, error)
    return _judged(suite, case, graph, inputs, got, time.perf_counter() - begin)


def _judged(
    suite: Suite,
    case: Case,
    graph: Graph,
    inputs: Sequence[torch.Tensor],
    got: Sequence[torch.Tensor],
    seconds: float,
) -> CaseResult:
    judgement = judge_case(suite, case, graph, inputs, got)
    # Finite inputs whose right result overflows are not what a finite model meets.
    overflows = case.kind == Kind.VALUES and not all_finite(suite.source(case), suite.oracle(case))
    latent = not case.blocking or overflows
    return CaseResult(
        case.id, case.key, case.op, case.variant, judgement.verdict, judgement.imprecise, judgement.reason,
        judgement.metrics, judgement.judged_by, seconds, latent=latent, kind=case.kind,
    )  # fmt: skip


def judge_case(
    suite: Suite, case: Case, graph: Graph, inputs: Sequence[torch.Tensor], got: Sequence[torch.Tensor]
) -> Judgement:
    """Judge what a device gave for a case; that of several calls by the running error bound of its graph."""
    if len(graph.calls) != 1:
        return judge_graph(graph, inputs, got, suite.source(case), suite.oracle(case))
    call = call_of(graph, inputs)
    # A region hands out only the results that something reads; the others are neither computed nor judged.
    results: list[torch.Tensor | None] = [None] * len(graph.calls[0].outputs)
    for ref, tensor in zip(graph.outputs, got, strict=True):
        results[ref.item] = tensor
    read = {ref.item for ref in graph.outputs}
    source = [tensor if item in read else None for item, tensor in enumerate(suite.source(case))]
    oracle = suite.oracle(case)
    want = None if oracle is None else [tensor if item in read else None for item, tensor in enumerate(oracle)]
    return judge(call.target, call.args, call.kwargs, results, source, want)


@dataclass(frozen=True)
class _CaseConstants:
    """A ConstantSource over the inputs of one case."""

    graph: Graph
    inputs: Sequence[torch.Tensor]

    def is_constant(self, ref: Ref) -> bool:
        return self.graph.inputs[int(ref.name.removeprefix("i"))].constant

    def tensor(self, ref: Ref) -> torch.Tensor:
        return self.inputs[int(ref.name.removeprefix("i"))]

    def digest(self, ref: Ref) -> str:
        return tensor_digest(self.tensor(ref))


def run_once(
    resident: Resident, graph: Graph, compiled: Compiled, inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Run a compiled graph once on the device and bring its outputs back.

    ``inputs`` are in graph order, constants included. Nothing stays on the device but what others hold there.
    """
    device = resident.device
    constants = RegionConstants(_CaseConstants(graph, inputs), [Ref(entry.name) for entry in graph.inputs], compiled)
    bound = BoundRegion(compiled, resident, constants.bytes_of)
    generation = device.generation
    guarded = isinstance(compiled.module, KernelModule)
    held: Guards | Exact = Guards(device) if guarded else Exact(device)
    try:
        given = [
            None
            if entry.constant or index < 0
            else held.given(f"input {place}", to_storage(tensor, decl, entry.name), decl.nbytes)
            for place, (entry, tensor, index) in enumerate(zip(graph.inputs, inputs, compiled.inputs, strict=True))
            for decl in [compiled.tensors[index]]
        ]
        results = [
            held.empty(f"result {place}", compiled.tensors[index].nbytes)
            for place, index in enumerate(compiled.outputs)
        ]
        device.submit(bound.commands(given, results, "case"))
        found = [
            from_storage(device.read(buffer, compiled.tensors[index].nbytes), compiled.tensors[index], graph.spec(ref))
            for buffer, index, ref in zip(results, compiled.outputs, graph.outputs, strict=True)
        ]
        held.check()
        return found
    finally:
        if device.generation == generation:
            _give_back(resident, bound, held.buffers)


def _give_back(resident: Resident, bound: BoundRegion, buffers: Sequence[Buffer]) -> None:
    try:
        for buffer in buffers:
            resident.device.free(buffer)
        bound.close()
    except DeviceLostError:
        return  # what was lost needs no freeing; the caller restarts the device
