"""Carving: run a program on the source with real inputs and keep the operator calls whose values differ.

Not here: storing a suite (store) and running it elsewhere (replay).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from tapestry.errors import UsageError
from tapestry.numerics.float64 import oracle
from tapestry.numerics.no_oracle import NoOracle
from tapestry.program import traits
from tapestry.program.graph import Call, Ref, operands
from tapestry.program.inputs import InputSet, as_input_sets
from tapestry.program.interpret import Values, resolve, run_program, start_values
from tapestry.program.program import Node, Program, tensor_digest
from tapestry.program.region import Region, region_of
from tapestry.program.serial import dumps
from tapestry.suite.case import SAME_AS_SOURCE, Case, LeftOut, Suite, SuiteInfo
from tapestry.suite.features import Features, features_of
from tapestry.suite.sampler import Sample, Samples

#: Samples kept for an operator that computes, and for one that only copies or views.
SAMPLES = 5
SAMPLES_OF_VIEWS = 1
#: Bytes of activations (inputs, results and oracle results, parameters not counted) that a suite may hold.
BUDGET_BYTES = 512 << 20

#: Told how far the carving is: what is being done, done so far, of how many.
Progress = Callable[[str, int, int], None]


def carve(
    program: Program,
    inputs: Sequence[object],
    budget_bytes: int = BUDGET_BYTES,
    eager: Callable[..., object] | None = None,
    progress: Progress | None = None,
) -> Suite:
    """Carve a suite from real runs.

    ``inputs`` is what as_input_sets takes. ``eager`` is the model itself, timed for comparison; without it the
    program is timed. ``budget_bytes`` bounds what the cases' activations may take, except that one sample of every
    operator key is always kept; what falls out is listed.
    Raises UsageError when the inputs do not fit the program.
    """
    sets = as_input_sets(inputs)
    for entry in sets:
        for call in entry.calls:
            program.bind(call.args, call.kwargs)
    carver = _Carver(program)
    tell = progress or (lambda what, done, total: None)
    _warm_up(program, sets[0])
    eager_seconds = carve_seconds = 0.0
    for place, entry in enumerate(sets):
        tell("carving", place, len(sets))
        eager_seconds += _time_eager(program, entry, eager)
        begin = time.perf_counter()
        carver.run(entry, place)
        carve_seconds += time.perf_counter() - begin
    tell("carving", len(sets), len(sets))
    begin = time.perf_counter()
    cases, tensors, left_out = _Finisher(program, budget_bytes).finish(carver.samples, tell)
    info = SuiteInfo(
        program.name,
        program.graph_hash,
        program.content_hash,
        str(torch.__version__),
        carver.dump_bytes,
        carver.dump_bytes_activations,
        eager_seconds,
        carve_seconds,
        time.perf_counter() - begin,
        len(sets),
        sum(len(entry.calls) for entry in sets),
    )
    return Suite(info, tuple(cases), tensors, tuple(left_out))


def initial_state(program: Program) -> dict[str, torch.Tensor]:
    """Fresh copies of the program's state buffers (those of the caller's inputs come with the inputs)."""
    return {name: program.tensors[name].clone() for name in program.state_names if name in program.tensors}


def next_state(program: Program, values: Values) -> dict[str, torch.Tensor]:
    """The state after a run."""
    return {
        state.name: cast("torch.Tensor", values[state.result])
        for state in program.state
        if state.name in program.tensors
    }


def _warm_up(program: Program, entry: InputSet) -> None:
    call = entry.calls[0]
    run_program(program, start_values(program, program.bind(call.args, call.kwargs), initial_state(program)))


def _time_eager(program: Program, entry: InputSet, eager: Callable[..., object] | None) -> float:
    """Seconds of a plain run; a model with state is timed by its program, so that its own buffers stay as they are."""
    begin = time.perf_counter()
    if eager is not None and not program.state:
        with torch.no_grad():
            for call in entry.calls:
                eager(*call.args, **call.kwargs)
        return time.perf_counter() - begin
    state = initial_state(program)
    for call in entry.calls:
        values = start_values(program, program.bind(call.args, call.kwargs), state)
        state = next_state(program, run_program(program, values))
    return time.perf_counter() - begin


@dataclass(frozen=True)
class _Watched:
    """What carving knows of a node beforehand."""

    key: str
    inputs: tuple[Ref, ...]
    results: tuple[Ref, ...]


class _Carver:
    """Looks on while a program runs, and keeps samples by operator key."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.samples: dict[str, Samples] = {}
        self.watched = {node_id: self._watch(node_id) for node_id in program.placeable}
        self.dump_bytes = 0
        self.dump_bytes_activations = 0
        self._constant_features: dict[Ref, Features] = {}
        self._state: dict[str, torch.Tensor] = {}

    def _watch(self, node_id: str) -> _Watched:
        region = region_of(self.program, [node_id])
        call = self.program.by_id[node_id].call
        limit = SAMPLES_OF_VIEWS if traits.is_view(call.target) else SAMPLES
        self.samples.setdefault(region.key, Samples(limit))
        results = tuple(Ref(node_id, item) for item in range(len(call.outputs)))
        return _Watched(region.key, region.inputs, results)

    def run(self, entry: InputSet, place: int) -> None:
        state = initial_state(self.program)
        for number, call in enumerate(entry.calls):
            values = start_values(self.program, self.program.bind(call.args, call.kwargs), state)
            observe = self._observer(values, place, number)
            state = next_state(self.program, run_program(self.program, values, observe=observe))

    def _observer(
        self, values: Values, place: int, number: int
    ) -> Callable[[Call, tuple[object, ...], Mapping[str, object], tuple[object, ...]], None]:
        cached: dict[Ref, Features] = {}

        def observe(
            call: Call, args: tuple[object, ...], kwargs: Mapping[str, object], results: tuple[object, ...]
        ) -> None:
            self._count(call, values, results)
            watched = self.watched.get(call.name)
            if watched is None:
                return
            features = tuple(self._features(ref, values, cached) for ref in watched.inputs)
            samples = self.samples[watched.key]
            if not samples.wants(features):
                return
            tensors = tuple(cast("torch.Tensor", values[ref]) for ref in watched.inputs)
            outputs = tuple(entry if isinstance(entry, torch.Tensor) else None for entry in results)
            samples.add(Sample(call.name, place, number, tensors, outputs[: len(call.outputs)], features))

        return observe

    def _features(self, ref: Ref, values: Values, cached: dict[Ref, Features]) -> Features:
        store = self._constant_features if self.program.is_constant(ref) else cached
        if ref not in store:
            store[ref] = features_of(cast("torch.Tensor", values[ref]))
        return store[ref]

    def _count(self, call: Call, values: Values, results: tuple[object, ...]) -> None:
        for ref in operands(call):
            size = _nbytes(values[ref])
            self.dump_bytes += size
            if not ref.name.startswith("param:"):
                self.dump_bytes_activations += size
        written = sum(_nbytes(entry) for entry in results)
        self.dump_bytes += written
        self.dump_bytes_activations += written


def _nbytes(value: object) -> int:
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


class _Finisher:
    """Turns samples into cases under the size budget, with the oracle's results."""

    def __init__(self, program: Program, budget_bytes: int) -> None:
        self.program = program
        self.budget = budget_bytes
        self.spent = 0
        self.tensors: dict[str, torch.Tensor] = {}
        self.digests: dict[int, tuple[str, torch.Tensor]] = {}
        self.fixed_storages = {tensor.untyped_storage().data_ptr() for tensor in program.tensors.values()}
        self.left_out: list[LeftOut] = []
        self.cases: list[Case] = []

    def finish(
        self, samples: Mapping[str, Samples], tell: Progress
    ) -> tuple[list[Case], dict[str, torch.Tensor], list[LeftOut]]:
        chosen = {key: entry.chosen() for key, entry in samples.items()}
        refused: dict[str, int] = {}
        total = sum(len(entry) for entry in chosen.values())
        # First one sample of every operator, then the second ones: a small budget still covers all operators.
        rounds = max((len(entry) for entry in chosen.values()), default=0)
        order = [(key, place) for place in range(rounds) for key in chosen if place < len(chosen[key])]
        for done, (key, place) in enumerate(order):
            tell("oracle", done, total)
            if not self._take(key, place, chosen[key][place]):
                refused[key] = refused.get(key, 0) + 1
        tell("oracle", total, total)
        self._list_left_out(samples, chosen, refused)
        ordered = sorted(self.cases, key=lambda case: (self.program.position[case.nodes[0]], case.id))
        return ordered, self.tensors, self.left_out

    def _list_left_out(
        self, samples: Mapping[str, Samples], chosen: Mapping[str, list[Sample]], refused: Mapping[str, int]
    ) -> None:
        for key, entry in samples.items():
            if not chosen[key]:
                continue
            op = self.program.by_id[chosen[key][0].node].op
            if entry.alike:
                self.left_out.append(LeftOut(key, op, entry.alike, "values like those of a case that is kept"))
            crowded = entry.seen - entry.alike - len(chosen[key])
            if crowded:
                self.left_out.append(LeftOut(key, op, crowded, f"over the limit of {entry.limit} samples"))
            if key in refused:
                reason = f"over the size budget of {self.budget:,} bytes"
                self.left_out.append(LeftOut(key, op, refused[key], reason))

    def _take(self, key: str, place: int, sample: Sample) -> bool:
        node = self.program.by_id[sample.node]
        region = region_of(self.program, [sample.node])
        expected, reason = _expected(node, region, sample)
        staged: dict[str, torch.Tensor] = {}
        source = tuple(None if entry is None else self._stage(entry, staged) for entry in sample.outputs)
        exact = () if expected is None else self._oracle_digests(sample.outputs, expected, staged)
        pairs = list(zip(sample.inputs, region.inputs, strict=True))
        for tensor, ref in pairs:
            if not self.program.is_constant(ref):
                self._stage(tensor, staged)
        needed = sum(_nbytes(entry) for entry in staged.values())
        if self.spent + needed > self.budget and place > 0:
            return False
        self.spent += needed
        inputs = tuple(self._stage(tensor, staged) for tensor, _ in pairs)
        self._keep(staged)
        self.cases.append(
            Case(
                id=f"{traits.base_name(node.call.target)}-{key[:8]}-{place}",
                key=key,
                op=node.op,
                origin_op=self._origin_op(node),
                source_line=str(node.source),
                graph=dumps(region.graph).decode(),
                node=node.id,
                nodes=self._nodes_of(key),
                input_set=sample.input_set,
                call=sample.call,
                inputs=inputs,
                source=source,
                oracle=exact,
                no_oracle=reason,
            )
        )
        return True

    def _origin_op(self, node: Node) -> str:
        origin = self.program.origins.get(node.origin)
        return origin.op if origin is not None else node.op

    def _nodes_of(self, key: str) -> tuple[str, ...]:
        return nodes_by_key(self.program)[key]

    def _oracle_digests(
        self,
        source: Sequence[torch.Tensor | None],
        expected: Sequence[torch.Tensor | None],
        staged: dict[str, torch.Tensor],
    ) -> tuple[str | None, ...]:
        found: list[str | None] = []
        for got, want in zip(source, expected, strict=True):
            if got is None or want is None:
                found.append(None)
            elif same_values(got, want):
                found.append(SAME_AS_SOURCE)
            else:
                found.append(self._stage(want, staged))
        return tuple(found)

    def _stage(self, tensor: torch.Tensor, staged: dict[str, torch.Tensor]) -> str:
        """The digest of a tensor; its content is put into ``staged`` unless the suite has it already."""
        known = self.digests.get(id(tensor))
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        digest = tensor_digest(plain) if known is None else known[0]
        self.digests[id(tensor)] = (digest, tensor)  # keeps the tensor alive, so that its id stays its own
        if digest not in self.tensors:
            staged.setdefault(digest, plain)
        return digest

    def _keep(self, staged: Mapping[str, torch.Tensor]) -> None:
        # The caller's tensors may change later; parameters are large and do not.
        for digest, plain in staged.items():
            fixed = plain.untyped_storage().data_ptr() in self.fixed_storages
            self.tensors[digest] = plain if fixed else plain.clone()


def nodes_by_key(program: Program) -> dict[str, tuple[str, ...]]:
    """The placeable nodes of a program by the key of the region that each makes alone."""
    cached = program.__dict__.get("_nodes_by_key")
    if cached is None:
        found: dict[str, list[str]] = {}
        for node_id in program.placeable:
            found.setdefault(region_of(program, [node_id]).key, []).append(node_id)
        cached = {key: tuple(ids) for key, ids in found.items()}
        program.__dict__["_nodes_by_key"] = cached
    return cast("dict[str, tuple[str, ...]]", cached)


def same_values(source: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether the oracle's result is the source's, widened: NaN equals NaN."""
    if source.shape != expected.shape:
        raise UsageError(f"the oracle gave shape {tuple(expected.shape)} for {tuple(source.shape)}")
    wide = source.to(expected.dtype)
    if not expected.is_floating_point():
        return torch.equal(wide, expected)
    return bool(((wide == expected) | (wide.isnan() & expected.isnan())).all())


def _expected(node: Node, region: Region, sample: Sample) -> tuple[tuple[torch.Tensor | None, ...] | None, str]:
    values: dict[Ref, object] = dict(zip(region.inputs, sample.inputs, strict=True))
    args = tuple(resolve(value, values) for value in node.call.args)
    kwargs = {name: resolve(value, values) for name, value in node.call.kwargs}
    try:
        with torch.no_grad():
            results = oracle(node.call.target, args, kwargs)
    except NoOracle as error:
        return None, str(error)
    return results[: len(sample.outputs)], ""
