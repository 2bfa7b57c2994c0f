"""What a call should give: the source's results in eager PyTorch, and the oracle's. Not here: judging."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tapestry.numerics.float64 import oracle
from tapestry.numerics.no_oracle import NoOracle
from tapestry.suite.variants.call import OpCall

Results = tuple[torch.Tensor | None, ...]


def oracle_results(call: OpCall) -> Results | None:
    """What the oracle gives, flat, or None where there is none."""
    try:
        with torch.no_grad():
            return tuple(oracle(call.target, call.args, call.kwargs))
    except NoOracle:
        return None


def all_finite(source: Sequence[torch.Tensor | None], want: Sequence[torch.Tensor | None] | None) -> bool:
    """Whether the reference is finite: the source's, and the oracle's once rounded to the declared dtype."""
    for place, entry in enumerate(source):
        if entry is None or not (entry.is_floating_point() or entry.is_complex()):
            continue
        exact = want[place] if want is not None and place < len(want) else None
        tensors = (entry,) if exact is None else (entry, exact.to(entry.dtype))
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
            return False
    return True
