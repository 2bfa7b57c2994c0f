"""Programs written down by hand: small graphs for tests that need no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.utils import _pytree as pytree

from tapestry.program.graph import Argument, Call, Ref, TensorSpec
from tapestry.program.program import Node, Program, ProgramInput, ProgramOutput, Source, State

SPEC = TensorSpec((4,), (1,), torch.float32)
_NOWHERE = Source("", 0, "", "", "")


def call(
    name: str,
    target: torch._ops.OpOverload,
    *args: Argument,
    outputs: Sequence[TensorSpec | None] = (SPEC,),
    **kwargs: Argument,
) -> Call:
    """A call whose results have SPEC unless told otherwise; several results make it a tuple."""
    return Call(name, target, args, tuple(kwargs.items()), tuple(outputs), len(outputs) > 1)


def program_of(
    calls: Sequence[Call],
    outputs: Sequence[Ref],
    inputs: Mapping[str, TensorSpec] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    state: Sequence[State] = (),
) -> Program:
    """A program of these calls; one input ``input:x`` of SPEC unless told otherwise."""
    given = {"input:x": SPEC} if inputs is None else inputs
    leaves = tuple(torch.zeros(0) for _ in given)
    specs = {entry.name: entry.outputs for entry in calls}

    def spec(ref: Ref) -> TensorSpec | None:
        return specs[ref.name][ref.item] if ref.name in specs else given.get(ref.name, SPEC)

    return Program(
        "written",
        tuple(ProgramInput(name, name, entry) for name, entry in given.items()),
        dict(tensors or {}),
        tuple(Node(entry, entry.name, _NOWHERE) for entry in calls),
        tuple(ProgramOutput(ref, spec(ref)) for ref in outputs),
        tuple(state),
        {},
        pytree.tree_flatten((leaves, {}))[1],
        pytree.tree_flatten(tuple(outputs))[1],
    )
