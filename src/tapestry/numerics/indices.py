"""Results that are positions of chosen elements: judged by the values they point at, since ties have no order."""

from __future__ import annotations

import torch
from torch import Tensor

from tapestry.numerics.facts import CallFacts

#: Which result is a position along ``dim``.
_ALONG_DIM = {"argmax": 0, "argmin": 0, "max": 1, "min": 1, "kthvalue": 1, "median": 1, "nanmedian": 1, "mode": 1,
              "cummax": 1, "cummin": 1, "topk": 1, "sort": 1, "argsort": 0}  # fmt: skip
_DISTINCT = frozenset({"topk", "sort", "argsort"})
#: Positions in the flattened last dimensions, by their number.
_IN_WINDOW = {"max_pool1d_with_indices": 1, "max_pool2d_with_indices": 2, "max_pool3d_with_indices": 3,
              "adaptive_max_pool1d": 1, "adaptive_max_pool2d": 2, "adaptive_max_pool3d": 3}  # fmt: skip


def is_position(facts: CallFacts, index: int) -> bool:
    """Whether result ``index`` holds positions whose order among ties is free. A stable sort's is not."""
    if facts.bound.get("stable"):
        return False
    return _ALONG_DIM.get(facts.name) == index or (facts.name in _IN_WINDOW and index == 1)


def is_unordered(facts: CallFacts) -> bool:
    """Whether the results may come in any order along ``dim``: topk that is not asked to sort."""
    return facts.name == "topk" and facts.bound.get("sorted") is False


def dim_of(facts: CallFacts) -> int:
    """The dimension chosen along."""
    dim = facts.bound.get("dim")
    default = 0 if facts.name in ("cummax", "cummin") else -1
    return dim if isinstance(dim, int) else default


def wrong_positions(facts: CallFacts, got: Tensor, want: Tensor) -> Tensor:
    """A mask, shaped as ``got``, of the positions that are out of range, repeated or point at another value."""
    operand = facts.tensor("self")
    assert operand is not None
    if got.numel() == 0 or operand.dim() == 0:
        return got != want
    values, dim, picks = _lines(facts, operand, got)
    inside = (picks >= 0) & (picks < values.shape[dim])
    chosen = values.gather(dim, torch.where(inside, picks, 0).to(torch.int64))
    right = values.gather(dim, _lines(facts, operand, want)[2].to(torch.int64))
    if is_unordered(facts):
        chosen, right = chosen.sort(dim).values, right.sort(dim).values
    wrong = ~inside | ~((chosen == right) | ((chosen != chosen) & (right != right)))
    if facts.name in _DISTINCT:
        wrong = wrong | _repeated(picks, dim)
    return wrong.reshape(got.shape)


def _lines(facts: CallFacts, operand: Tensor, positions: Tensor) -> tuple[Tensor, int, Tensor]:
    if facts.name in _IN_WINDOW:
        rank = _IN_WINDOW[facts.name]
        return operand.flatten(-rank), -1, positions.flatten(-rank)
    if facts.bound.get("dim") is None and facts.name in ("argmax", "argmin"):
        return operand.flatten(), 0, positions.reshape(-1)
    dim = dim_of(facts)
    return operand, dim, positions if positions.dim() == operand.dim() else positions.unsqueeze(dim)


def _repeated(picks: Tensor, dim: int) -> Tensor:
    order = picks.sort(dim)
    size = picks.shape[dim]
    same = order.values.narrow(dim, 1, size - 1) == order.values.narrow(dim, 0, size - 1)
    repeated = torch.cat([torch.zeros_like(order.values.narrow(dim, 0, 1), dtype=torch.bool), same], dim)
    return torch.zeros_like(repeated).scatter(dim, order.indices, repeated)
