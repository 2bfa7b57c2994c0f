"""The bound of one call by itself: what ``judge`` lets each element of a result be off by, as a public function.

Callers compose it over several calls by propagating each call's bound through the ones behind it. It judges nothing,
and it knows nothing of what lies around the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._ops import OpOverload

from tapestry.numerics.arguments import eager_results
from tapestry.numerics.facts import CallFacts
from tapestry.numerics.formats import is_inexact, wide_dtype
from tapestry.numerics.tolerance import EXACT, UNKNOWN, UNKNOWN_POINTWISE, Tolerance


@dataclass(frozen=True)
class Bound:
    """What |got - want| may be at each element: absolute, float64, broadcastable to the result, never negative.

    ``careful``: what a careful implementation reaches. ``allowed``: what a device specification allows, at least
    ``careful``. ``kind``: the tolerance class (docs/numerics.md). Where the exact result is not finite, both are 0.
    """

    careful: Tensor
    allowed: Tensor
    kind: str


def bound_of(
    target: OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    index: int,
    want: Tensor,
    declared_dtype: torch.dtype,
) -> Bound:
    """The bound that ``judge`` uses for result ``index`` of a call with exactly these inputs.

    ``args`` and ``kwargs`` hold the real tensors of the call (in the dtypes of the program, before any write),
    ``want`` is that result of ``oracle``, ``declared_dtype`` the dtype the result has in the program.

    Exact classes (copies, choices, integers, bool) have bounds of 0, except where a copy rounds float64 to a narrower
    ``declared_dtype``: there it is that one rounding. The rms criterion of sums of products is not part of it, nor
    are ties (indices) or undefined positions (``undefined_positions``). Classes without a bound of their own take
    in eager's error, for which the call is run here.
    """
    if not is_inexact(declared_dtype) or not is_inexact(want.dtype):
        return _exact(torch.zeros((), dtype=torch.float64))
    want = want.detach().to(wide_dtype(declared_dtype))
    facts = CallFacts(target, args, kwargs)
    tolerance = Tolerance(facts, index, want, declared_dtype, None)
    if tolerance.kind == EXACT:
        return _exact(_finite((want.to(declared_dtype).to(want.dtype) - want).abs()))
    if tolerance.kind in (UNKNOWN, UNKNOWN_POINTWISE):
        source = eager_results(target, args, kwargs)[index]
        tolerance = Tolerance(facts, index, want, declared_dtype, source)
    careful = _finite(tolerance.bound("careful"))
    return Bound(careful, torch.maximum(careful, _finite(tolerance.bound("allowed"))), tolerance.kind)


def _exact(bound: Tensor) -> Bound:
    return Bound(bound, bound, EXACT)


def _finite(bound: Tensor) -> Tensor:
    return bound.to(torch.float64).nan_to_num(nan=0.0, posinf=0.0)
