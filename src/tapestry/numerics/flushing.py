"""Calls as a device reads them that takes subnormal operands for zeros. Not here: subnormal results (compare)."""

from __future__ import annotations

import torch
from torch import Tensor

from tapestry.numerics.arguments import map_leaves
from tapestry.numerics.facts import CallFacts
from tapestry.numerics.formats import smallest_normal

#: Formats whose subnormals WGSL and OpenCL allow to be flushed.
_FLUSHED = (torch.float32, torch.float16, torch.bfloat16)


def with_flushed_operands(facts: CallFacts) -> CallFacts | None:
    """The call with zeros in place of subnormal numbers; None where no operand has any."""
    found = False

    def flushed(leaf: object) -> object:
        nonlocal found
        if not isinstance(leaf, Tensor) or leaf.dtype not in _FLUSHED or leaf.layout != torch.strided:
            return leaf
        small = (leaf != 0) & (leaf.abs() < smallest_normal(leaf.dtype))
        if not bool(small.any()):
            return leaf
        found = True
        return leaf.detach().masked_fill(small, 0.0)

    args = tuple(map_leaves(flushed, value) for value in facts.args)
    kwargs = {name: map_leaves(flushed, value) for name, value in facts.kwargs.items()}
    return CallFacts(facts.target, args, kwargs) if found else None
