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
        if entry is None:
            continue
        exact = want[place] if want is not None and place < len(want) else None
        if not is_finite(entry) or (exact is not None and not is_finite(exact.to(entry.dtype))):
            return False
    return True


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinities; integers never do."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    # 8-bit floats have no such question; every value of theirs is a float32.
    wide = tensor.float() if tensor.dtype.itemsize == 1 else tensor
    return bool(torch.isfinite(wide).all())
