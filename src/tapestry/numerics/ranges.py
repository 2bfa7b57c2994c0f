"""What can still be said of results without an oracle: the range random numbers and masks must lie in."""

from __future__ import annotations

import torch
from torch import Tensor

from tapestry.numerics.arguments import names
from tapestry.numerics.facts import CallFacts

_UNIT_INTERVAL = frozenset({"rand", "rand_like"})
_ZERO_OR_ONE = frozenset({"bernoulli"})
_FINITE = names("randn randn_like normal normal_functional uniform exponential log_normal")
_INTEGERS = frozenset({"randint", "randint_like"})


def out_of_range(facts: CallFacts, got: Tensor) -> str:
    """What is out of range in a random result; empty if nothing is, or nothing is known about the operator."""
    if got.numel() == 0 or got.is_complex():
        return ""
    if facts.name in _UNIT_INTERVAL:
        return _beyond(got, 0.0, 1.0)
    if facts.name in _ZERO_OR_ONE and not bool(((got == 0) | (got == 1)).all()):
        return "expected only 0 and 1"
    if facts.name in _FINITE and not bool(torch.isfinite(got).all()):
        return "expected finite numbers"
    if facts.name in _INTEGERS:
        return _beyond(got, _number(facts, "low", 0.0), _number(facts, "high", torch.inf) - 1)
    if facts.name == "randperm":
        whole = torch.arange(got.numel(), dtype=torch.float64)
        return "" if torch.equal(got.to(torch.float64).sort().values, whole) else "expected a permutation"
    return ""


def _number(facts: CallFacts, name: str, default: float) -> float:
    value = facts.bound.get(name)
    return float(value) if isinstance(value, int | float) else default


def _beyond(got: Tensor, low: float, high: float) -> str:
    least, most = float(got.min()), float(got.max())
    return "" if low <= least and most <= high else f"expected values in [{low:g}, {high:g}], got [{least:g}, {most:g}]"
