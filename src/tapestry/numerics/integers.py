"""Calls that take large integers into float arithmetic, as PyTorch converts them. Not here: exact integer results."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tapestry.numerics.arguments import map_leaves, tensors_in
from tapestry.numerics.facts import CallFacts


def with_single_integers(facts: CallFacts, results: Sequence[Tensor | None]) -> CallFacts | None:
    """The call with float32 in place of integers beyond 2^24, as PyTorch converts them before it computes.

    None where there are none, and where a result is no float of at most 32 bits.
    """
    if not results or any(entry is None or not _is_single(entry) for entry in results):
        return None
    large = [tensor for tensor in tensors_in([*facts.args, dict(facts.kwargs)]) if _is_large_integer(tensor)]
    if not large:
        return None

    def single(leaf: object) -> object:
        return leaf.to(torch.float32) if any(leaf is entry for entry in large) and isinstance(leaf, Tensor) else leaf

    args = tuple(map_leaves(single, value) for value in facts.args)
    return CallFacts(facts.target, args, {name: map_leaves(single, value) for name, value in facts.kwargs.items()})


def _is_single(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point and tensor.dtype.itemsize <= 4


def _is_large_integer(tensor: Tensor) -> bool:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype.itemsize < 4 or tensor.is_quantized:
        return False
    return bool((tensor.to(torch.float64).abs() > 2**24).any())
