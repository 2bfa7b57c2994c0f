"""Composition cases cut from a model: small regions with the inputs they had in a real run, and what they give.

Not here: which regions (regions), and judging what a device gives for one (judging).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from tapestry.program import traits
from tapestry.program.graph import Call, Graph, Ref
from tapestry.program.inputs import as_input_sets
from tapestry.program.interpret import run_graph, run_program, start_values
from tapestry.program.program import Program, tensor_digest
from tapestry.program.region import Region, region_of
from tapestry.program.serial import dumps
from tapestry.suite.carve import initial_state, next_state, same_values
from tapestry.suite.case import SAME_AS_SOURCE, Case, LeftOut, Suite
from tapestry.suite.composition.judging import exact_outputs
from tapestry.suite.composition.regions import BUDGET, composition_regions

#: Bytes of activations that composition cases may hold beyond those of single cases.
BUDGET_BYTES = 128 << 20


@dataclass(frozen=True)
class Composed:
    """Cases of several calls, their tensors by digest, and the regions left out for want of room."""

    cases: tuple[Case, ...]
    tensors: Mapping[str, Tensor]
    left_out: tuple[tuple[str, ...], ...] = ()


@dataclass
class _Store:
    """Tensors by content; what a suite has already costs nothing."""

    known: Mapping[str, Tensor]
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def put(self, tensor: Tensor) -> str:
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        digest = tensor_digest(plain)
        if digest not in self.tensors:
            self.tensors[digest] = self.known[digest] if digest in self.known else plain.clone()
        return digest

    def cost(self, tensors: Sequence[Tensor]) -> int:
        return sum(entry.numel() * entry.element_size() for entry in tensors)


def compose(
    program: Program,
    inputs: Sequence[object],
    budget: int = BUDGET,
    budget_bytes: int = BUDGET_BYTES,
    known: Mapping[str, Tensor] | None = None,
) -> Composed:
    """Composition cases of a program: one for each region of `composition_regions`, from the first call that shows it.

    ``inputs`` is what as_input_sets takes; every call of every set is run on the source, and the last call's values
    are taken where the region's state has been written by an earlier one. ``known`` are a suite's tensors, which cost
    nothing again. ``budget_bytes`` bounds the activations kept.
    A case's ``op`` joins the operators of its calls with ``+``; ``source`` and ``oracle`` are those of the graph's
    outputs. Raises UsageError when the inputs do not fit the program.
    """
    regions = [region_of(program, nodes) for nodes in composition_regions(program, budget)]
    seen = _observed(program, inputs, regions)
    store = _Store(known or {})
    cases: list[Case] = []
    left_out: list[tuple[str, ...]] = []
    spent = 0
    for region in regions:
        sample = seen[region.key]
        cost = store.cost([
            entry for entry, ref in zip(sample.inputs, region.inputs, strict=True) if not program.is_constant(ref)
        ])  # fmt: skip
        if spent + cost > budget_bytes:
            left_out.append(region.nodes)
            continue
        spent += cost
        cases.append(_case(region, sample, store))
    return Composed(tuple(cases), store.tensors, tuple(left_out))


def with_parts(
    suite: Suite, program: Program, inputs: Sequence[object], budget: int = BUDGET, budget_bytes: int = BUDGET_BYTES
) -> Suite:
    """The suite with composition cases of its program."""
    found = compose(program, inputs, budget, budget_bytes, suite.tensors)
    left_out = tuple(
        LeftOut("", "+".join(program.by_id[node].op for node in nodes), 1, "over the size budget of small regions")
        for nodes in found.left_out
    )
    return replace(
        suite,
        cases=(*suite.cases, *found.cases),
        tensors={**suite.tensors, **found.tensors},
        left_out=(*suite.left_out, *left_out),
    )


@dataclass(frozen=True)
class _Sample:
    inputs: tuple[Tensor, ...]
    input_set: int
    call: int


def _observed(program: Program, inputs: Sequence[object], regions: Sequence[Region]) -> dict[str, _Sample]:
    """The inputs of each region in a real run, by region key."""
    wanted = {ref for region in regions for ref in region.inputs}
    found: dict[str, _Sample] = {}
    for number, entry in enumerate(as_input_sets(inputs)):
        state = initial_state(program)
        for place, call in enumerate(entry.calls):
            values = start_values(program, program.bind(call.args, call.kwargs), state)
            kept: dict[Ref, Tensor] = {
                ref: value.clone() if ref.name in program.state_names else value
                for ref, value in values.items()
                if ref in wanted and isinstance(value, Tensor)
            }
            after = run_program(program, values, observe=_keeper(kept, wanted))
            for region in regions:
                if number == 0 or region.key not in found:
                    tensors = tuple(kept[ref] for ref in region.inputs)
                    found[region.key] = _Sample(tensors, number, place)
            state = next_state(program, after)
    return found


def _keeper(
    kept: dict[Ref, Tensor], wanted: set[Ref]
) -> Callable[[Call, tuple[object, ...], Mapping[str, object], tuple[object, ...]], None]:
    def observe(
        call: Call, args: tuple[object, ...], kwargs: Mapping[str, object], results: tuple[object, ...]
    ) -> None:
        for item, value in enumerate(results):
            if Ref(call.name, item) in wanted and isinstance(value, Tensor):
                kept[Ref(call.name, item)] = value

    return observe


def _case(region: Region, sample: _Sample, store: _Store) -> Case:
    program, graph = region.program, region.graph
    source = run_graph(graph, sample.inputs)
    nodes = [program.by_id[node] for node in region.nodes]
    origins = [program.origins[node.origin].op if node.origin in program.origins else node.op for node in nodes]
    op = "+".join(node.op for node in nodes)
    return Case(
        id=f"{'+'.join(traits.base_name(node.call.target) for node in nodes)}-{region.key[:8]}-0",
        key=region.key,
        op=op,
        origin_op="+".join(dict.fromkeys(origins)),
        source_line=str(nodes[-1].source),
        graph=dumps(graph).decode(),
        node=region.nodes[-1],
        nodes=region.nodes,
        input_set=sample.input_set,
        call=sample.call,
        inputs=tuple(store.put(tensor) for tensor in sample.inputs),
        source=tuple(store.put(tensor) for tensor in source),
        oracle=_oracle(graph, sample.inputs, source, store),
    )


def _oracle(graph: Graph, inputs: Sequence[Tensor], source: Sequence[Tensor], store: _Store) -> tuple[str | None, ...]:
    exact = exact_outputs(graph, inputs)
    return tuple(
        SAME_AS_SOURCE if same_values(got, want) else store.put(want) for got, want in zip(source, exact, strict=True)
    )
