"""Valid calls of an ATen overload: the way in to this package.

From PyTorch's own samples where they make the overload, else from samples of the operator's other overloads, and from
the schema: scenes of tensors and the meaning of argument names. Every call has been run. Not here: variants of calls.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

import torch
from torch._ops import OpOverload

from tapestry.errors import UnsupportedError, UsageError
from tapestry.numerics.arguments import tensors_in
from tapestry.suite.schema import proposals
from tapestry.suite.schema.choice import diverse
from tapestry.suite.schema.overloads import find, obstacle, overload_names
from tapestry.suite.schema.samples import Proposal, by_the_way, sampled
from tapestry.suite.schema.screening import screened
from tapestry.suite.schema.siblings import borrowed
from tapestry.suite.schema.trial import SchemaCall, outcome_of_guess

__all__ = ["NoCalls", "SchemaCall", "calls_for"]

#: Calls kept of one scene, and of one added argument; scenes that are asked where there are samples: for usual sizes.
CALLS_OF_A_SCENE = 3
CALLS_OF_AN_ADDITION = 4
USUAL_SCENES = 11
#: Calls of PyTorch's samples that are tried: of the overload's own, its siblings', and other operators'.
SAMPLED = 160
BORROWED = 120
BY_THE_WAY = 60
#: Calls to which optional arguments and other axes are added, and to which dtypes.
BASES = 10
BASES_OF_DTYPES = 4


class NoCalls(UnsupportedError):  # noqa: N818
    """No valid call of an overload could be made; the message says why."""


def calls_for(op: str, limit: int = 24) -> tuple[SchemaCall, ...]:
    """At most ``limit`` calls of an overload such as ``aten.conv2d.default``, as different as can be.

    A usual float32 call is first, then the others by dtype (opinfo.DTYPES). Tensors are small, dense and on the CPU,
    and belong to the cache: do not write them. The same calls come on every run.
    Raises UsageError for a name that is no overload, NoCalls where none could be made, and EnvironmentProblem when a
    package that PyTorch's samples need is missing.
    """
    target = find(op)
    if target is None:
        known = ", ".join(overload_names(op)[:12])
        raise UsageError(
            f"expected an overload such as aten.add.Tensor, got {op!r}"
            + (f"; the operator has {known}" if known else "; torch has no operator of that name")
        )
    problem = obstacle(target)
    if problem:
        raise NoCalls(f"no call of {op} can be made: {problem}")
    calls = all_calls(target)
    if not calls:
        raise NoCalls(
            f"no call of {op} was found: PyTorch's samples do not make it, and no arguments guessed from "
            f"{target._schema} were taken by eager"
        )
    return diverse(calls, limit)


@lru_cache(maxsize=32)
def all_calls(target: OpOverload) -> tuple[SchemaCall, ...]:
    """All calls of an overload that were found and run, as they were found; empty where there is none."""
    calls = screened(target, [list(islice(sampled(target), SAMPLED))], SAMPLED)
    if len(calls) < BASES:
        calls += screened(target, [list(islice(borrowed(target, proposals.meaning), BORROWED))], BORROWED)
    scenes = proposals.from_scenes(target)
    scenes = scenes[:USUAL_SCENES] if len(calls) >= BASES else scenes
    calls += screened(target, scenes, CALLS_OF_A_SCENE, outcome_of_guess)
    if len(calls) < BASES:
        calls += screened(target, [list(islice(by_the_way(target), BY_THE_WAY))], BY_THE_WAY)
    return (*calls, *_additions(target, calls))


def _additions(target: OpOverload, calls: list[SchemaCall]) -> list[SchemaCall]:
    """Optional arguments at other values, axes from the end, and dtypes that the calls lack."""
    bases = [Proposal(call.args, call.kwargs, call.source) for call in diverse(calls, BASES)]
    have = frozenset(_dtype(call) for call in calls)
    found = screened(target, proposals.with_options(target, bases), CALLS_OF_AN_ADDITION)
    found += screened(target, [list(proposals.from_the_end(target, bases))], CALLS_OF_AN_ADDITION)
    return found + screened(target, proposals.in_other_dtypes(bases[:BASES_OF_DTYPES], have), 1)


def _dtype(call: SchemaCall) -> torch.dtype:
    first = next(tensors_in([call.args, list(call.kwargs.values())]), None)
    return torch.float32 if first is None else first.dtype
