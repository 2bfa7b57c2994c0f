"""How a formula sees its call: typed access to the bound arguments, tensors lifted to bounded values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from tapestry.numerics.bounded import Arithmetic, Bounded


@dataclass(frozen=True)
class FormulaCall:
    """A call with its oracle arguments (float64 tensors, by schema name) and the arithmetic to allow for."""

    bound: Mapping[str, object]
    arithmetic: Arithmetic

    def tensor(self, name: str) -> Tensor:
        """A tensor argument; a Python number becomes a 0-d float64 tensor."""
        value = self.bound[name]
        return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)

    def value(self, name: str) -> Bounded:
        """An operand, free of error; integers are taken as float64."""
        value = self.tensor(name)
        if isinstance(self.bound[name], float):
            return self.arithmetic.exact(value).stored()
        return self.arithmetic.exact(value if value.is_complex() else value.to(torch.float64))

    def optional(self, name: str) -> Bounded | None:
        return None if self.bound.get(name) is None else self.value(name)

    def number(self, name: str, default: float) -> float:
        value = self.bound.get(name)
        return default if value is None else float(cast(float, value))

    def flag(self, name: str) -> bool:
        return bool(self.bound.get(name, False))

    def dims(self, name: str, rank: int) -> tuple[int, ...]:
        """Dimensions as non-negative numbers; None or an empty list means all of them."""
        value = self.bound.get(name)
        given = (value,) if isinstance(value, int) else tuple(cast(Sequence[int], value or ()))
        return tuple(d % rank if rank else 0 for d in given) or tuple(range(rank))

    def reduced(self, result: Bounded, dims: Sequence[int], keep: str = "keepdim") -> Bounded:
        """A result with its reduced dimensions of size 1 dropped unless the call keeps them."""
        if self.flag(keep) or result.value.dim() == 0:
            return result
        kept = [size for d, size in enumerate(result.value.shape) if d not in dims]
        return result.apply(lambda tensor: tensor.reshape(kept))


#: Gives one bounded value per result (None: judge that result by another class), or None for a call it does not cover.
Formula = Callable[[FormulaCall], tuple[Bounded | None, ...] | None]
