"""Positions (argmax, sort, topk …) among values that a right platform may order in another way: where that is so.

Not here: judging positions by the values they point at, which needs exact values (numerics.indices).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tapestry.numerics.facts import CallFacts
from tapestry.numerics.indices import dim_of, is_position


def close_positions(facts: CallFacts, index: int, exact: Tensor, bound: Tensor, want: Tensor) -> Tensor | None:
    """A mask, shaped as ``want``, of positions that another element may take; None where result ``index`` holds none.

    ``exact`` and ``bound`` are those of the operand chosen from. Two elements are close when they are no further
    apart than twice the largest bound of their line: that includes ties. Window positions (pooling) are close
    throughout when the operand is inexact.
    """
    if not is_position(facts, index):
        return None
    if exact.dim() == 0 or want.numel() == 0 or exact.dtype.is_complex:
        return torch.zeros(want.shape, dtype=torch.bool)
    if "pool" in facts.name:
        return torch.full(want.shape, bool(bound.any()))
    flat = facts.bound.get("dim") is None and facts.name in ("argmax", "argmin")
    values, room = (exact.flatten(), bound.flatten()) if flat else (exact, bound)
    dim = 0 if flat else dim_of(facts)
    crowded = _crowded(values, room, dim)
    places = want.reshape(-1) if flat else want if want.dim() == exact.dim() else want.unsqueeze(dim)
    return crowded.gather(dim, places).reshape(want.shape)


def _crowded(values: Tensor, bound: Tensor, dim: int) -> Tensor:
    """Which elements have another one of their line within reach."""
    ordered = values.sort(dim)
    size = values.shape[dim]
    if size < 2:
        return torch.zeros(values.shape, dtype=torch.bool)
    slack = 2 * bound.amax(dim, keepdim=True)
    lower, upper = ordered.values.narrow(dim, 0, size - 1), ordered.values.narrow(dim, 1, size - 1)
    near = ((upper - lower) <= slack) | (upper == lower) | (upper.isnan() & lower.isnan())
    none = torch.zeros_like(near.narrow(dim, 0, 1))
    close = torch.cat([near, none], dim) | torch.cat([none, near], dim)
    return torch.zeros_like(close).scatter(dim, ordered.indices, close)
