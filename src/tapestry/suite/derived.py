"""Derived cases: variants of the carved ones, added to a suite without storing a tensor, and made again when asked for.

Not here: what variants there are (variants), and running them (on_target).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec
import torch

from tapestry.errors import FormatError, TapestryError
from tapestry.numerics.arguments import eager_results
from tapestry.program import traits
from tapestry.program.graph import Graph, TensorSpec
from tapestry.program.serial import dumps
from tapestry.suite.case import Case, Suite, Tensors
from tapestry.suite.expected import is_finite, oracle_results
from tapestry.suite.one_call import call_of, distinct_tensors, graph_of, inputs_of
from tapestry.suite.variants.call import Kind, OpCall, Variant
from tapestry.suite.variants.derive import GENERATION, Budget, derive, listing

#: What keeps the key of the carved case, and so may decide whether its nodes move.
SAME_KEY = frozenset({Kind.VALUES, Kind.NONFINITE})

Progress = Callable[[str, int, int], None]


def with_variants(
    suite: Suite,
    budget: Budget | None = None,
    kinds: Collection[Kind] = frozenset(Kind),
    progress: Progress | None = None,
) -> Suite:
    """The suite with derived cases for every operator key: of the first carved case of each, ``budget`` a key.

    Cases with another key (shape, layout, attributes) never block. Those with NaN or infinities block only where a
    carved sample of the key has some at the same inputs (``admitting`` changes that).
    """
    tell = progress or (lambda what, done, total: None)
    carved = [case for case in suite.cases if not case.base]
    groups: dict[str, list[Case]] = {}
    for case in carved:
        if len(case.load_graph().calls) == 1:
            groups.setdefault(case.key, []).append(case)
    found: list[Case] = []
    for done, cases in enumerate(groups.values()):
        tell("variants", done, len(groups))
        found += _derived(suite, cases[0], budget or Budget(), kinds, _nonfinite_inputs(suite, cases))
    tell("variants", len(groups), len(groups))
    info = msgspec.structs.replace(suite.info, generation=GENERATION)
    return replace(suite, info=info, cases=(*carved, *found))


def without_variants(suite: Suite) -> Suite:
    """The suite with its carved cases only."""
    return replace(suite, cases=tuple(case for case in suite.cases if not case.base))


def admitting(suite: Suite, nonfinite: bool = False) -> Suite:
    """The cases that decide whether a node may move: the carved ones of single calls and derived ones of the same key.

    Those of several calls take no part: what is wrong together is found, and kept apart, by the steps of a migration.

    ``nonfinite``: those with NaN and infinities decide as well, wherever they are.
    """
    kept = [case for case in suite.cases if case.kind in SAME_KEY or (not case.base and "+" not in case.op)]
    if nonfinite:
        kept = [msgspec.structs.replace(case, blocking=True) for case in kept]
    return replace(suite, cases=tuple(kept))


def _derived(
    suite: Suite, base: Case, budget: Budget, kinds: Collection[Kind], nonfinite: frozenset[int]
) -> Iterator[Case]:
    like = base.load_graph()
    if traits.place_reason(like.calls[0]) is not None:
        return  # it never leaves the source
    for variant, made in derive(call_of(like, suite.inputs(base)), budget, kinds):
        if variant.kind not in SAME_KEY or _fits(like, made):
            yield _case(base, like, variant, made, nonfinite)


def _fits(like: Graph, made: OpCall) -> bool:
    """Whether a variant keeps what the key says of its inputs."""
    found = [TensorSpec.of(tensor) for tensor in inputs_of(like, made)]
    return found == [entry.spec for entry in like.inputs]


def _case(base: Case, like: Graph, variant: Variant, made: OpCall, nonfinite: frozenset[int]) -> Case:
    blocking, graph, key = False, base.graph, base.key
    if variant.kind in SAME_KEY:
        found = {place for place, tensor in enumerate(inputs_of(like, made)) if not is_finite(tensor)}
        blocking = variant.kind == Kind.VALUES or found <= nonfinite
    else:
        results = made.target(*made.args, **made.kwargs)
        graph = dumps(graph_of(made, results, like)[0]).decode()
        key = hashlib.sha256(graph.encode()).hexdigest()
    slug = re.sub(r"[^A-Za-z0-9.+=-]+", "-", variant.name).strip("-")
    return msgspec.structs.replace(
        base, id=f"{base.id}~{slug}", key=key, graph=graph, inputs=(), source=(), oracle=(), no_oracle="",
        variant=variant.name, kind=str(variant.kind), base=base.id, blocking=blocking,
    )  # fmt: skip


def _nonfinite_inputs(suite: Suite, cases: list[Case]) -> frozenset[int]:
    """The inputs at which a carved sample or constant of an operator key holds NaN or infinities."""
    return frozenset(
        place for case in cases for place, tensor in enumerate(suite.inputs(case)) if not is_finite(tensor)
    )


@dataclass(frozen=True)
class _Same:
    """A suite as part of a key: by identity, and kept alive by it."""

    suite: Suite

    def __hash__(self) -> int:
        return id(self.suite)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.suite is self.suite


@lru_cache(maxsize=2)
def _named(same: _Same, base: str) -> dict[str, Variant]:
    """The variants of a base case; its derived cases are asked for one after the other."""
    case = same.suite.by_id[base]
    return listing(call_of(case.load_graph(), same.suite.inputs(case)))


def tensors_of(suite: Suite, case: Case) -> Tensors:
    """The tensors of a derived case. FormatError when its base or its variant is not known (any more)."""
    base = suite.by_id.get(case.base)
    if base is None:
        raise FormatError(f"case {case.id} is derived from {case.base}, which the suite lacks; carve it again")
    if suite.info.generation > GENERATION:
        raise FormatError(
            f"the derived cases of this suite are of generation {suite.info.generation}, this release makes up to "
            f"{GENERATION}; update tapestry-ml"
        )
    like = base.load_graph()
    try:
        made = _named(_Same(suite), base.id)[case.variant].build()
    except TapestryError:
        raise
    except (LookupError, RuntimeError, ValueError, TypeError) as error:
        raise FormatError(f"case {case.id} cannot be made again: {error}; carve the suite again") from error
    if Kind(case.kind) in SAME_KEY:
        # An input that the call reads twice is one tensor, whatever the variant did to either.
        inputs = inputs_of(like, made)
        made = call_of(like, inputs)
    else:
        inputs = distinct_tensors(made)
    with torch.no_grad():
        source = eager_results(made.target, made.args, made.kwargs)
    return Tensors(inputs, source, oracle_results(made))
