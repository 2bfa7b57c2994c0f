"""Running eager where it may refuse: what it raises or warns of is an answer, not an error. Not here: what is run."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from tapestry.numerics.arguments import eager_results
from tapestry.suite.variants.call import OpCall


def eager_or_none(call: OpCall) -> tuple[Tensor | None, ...] | None:
    """What eager gives for a call, flat, or None where it raises. Warnings are not shown, the call's tensors are not
    written, and the global random generator is left as it was.
    """
    draws = torch.Tag.nondeterministic_seeded in call.target.tags
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[], enabled=draws):
        warnings.simplefilter("ignore")
        try:
            return eager_results(call.target, call.args, call.kwargs)
        except Exception:  # the point is that eager refuses, whatever it raises
            return None
