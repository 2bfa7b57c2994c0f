"""Sums of sums may be added in another order: a + (b + c), where b and c are constants, is one addition less.

Not here: sums within one call (numerics).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from tapestry.numerics.arguments import bind
from tapestry.numerics.formats import unit_roundoff
from tapestry.program.graph import Argument, Call, Ref
from tapestry.suite.composition.values import Value

_SUMS = ("aten.add.Tensor", "aten.sub.Tensor")


@dataclass
class Sums:
    """The sizes of what results of additions add up, over all additions before them: Σ|terms| and the additions."""

    _known: dict[Ref, tuple[Tensor, int]] = field(default_factory=dict[Ref, tuple[Tensor, int]])

    def reordered(
        self, call: Call, operands: Sequence[Value | None], results: tuple[Value | None, ...]
    ) -> tuple[Value | None, ...]:
        """The results of a call, wider by what another order of adding may round: n u Σ|terms| for n additions.

        ``operands`` are the values of the first two arguments, None for what is no tensor.
        """
        value = results[0] if results else None
        if str(call.target) not in _SUMS or len(operands) != 2 or value is None or not value.dtype.is_floating_point:
            return results
        bound = bind(call.target, call.args, dict(call.kwargs))
        pairs = zip((bound["self"], bound["other"]), operands, strict=True)
        parts = [self._part(cast(Argument, argument), operand) for argument, operand in pairs]
        if bound.get("alpha", 1) != 1 or any(part is None for part in parts):
            return results
        (left, before), (right, others) = cast("list[tuple[Tensor, int]]", parts)
        magnitude, additions = left + right, before + others + 1
        self._known[Ref(call.name, 0)] = magnitude, additions
        if additions == 1:
            return results
        extra = (magnitude * (additions * unit_roundoff(value.dtype))).nan_to_num(nan=0.0, posinf=0.0)
        return (replace(value, bound=value.bound + extra),)

    def _part(self, argument: Argument, operand: Value | None) -> tuple[Tensor, int] | None:
        if isinstance(argument, Ref) and argument in self._known:
            return self._known[argument]
        return None if operand is None or operand.exact.is_complex() else (operand.exact.abs().to(torch.float64), 0)
