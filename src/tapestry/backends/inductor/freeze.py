"""Compiling a graph with Inductor, its weights frozen. Shared by the backend (which warms the cache) and the loader."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import platformdirs
import torch

from tapestry.backends.host.exported import sample, with_constants
from tapestry.program.graph import Graph

#: A compiled graph: the inputs that are not constant, in order, to a list of outputs.
Frozen = Callable[..., Sequence[torch.Tensor]]


def freeze(graph: Graph, constants: Sequence[torch.Tensor], threads: int) -> Frozen:
    """Compile a graph with these values for its constant inputs, in order. Raises what Inductor raises."""
    # Before Inductor looks for its cache the first time; a folder that the user has chosen stays.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(platformdirs.user_cache_dir("tapestry"), "inductor"))
    module = with_constants(graph, constants)
    examples = [sample(entry).zero_() for entry in graph.inputs if not entry.constant]
    log = logging.getLogger("torch._inductor")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch._inductor.compile_fx import compile_fx

            return cast("Frozen", compile_fx(module, examples, config_patches=_settings(threads)))
    finally:
        log.setLevel(before)


def _settings(threads: int) -> dict[str, Any]:
    """``emulate_precision_casts``: a value cast to 16 bits is rounded, as eager rounds it."""
    return {
        "freezing": True,
        "cpp.threads": threads,
        "compile_threads": 1,
        "emulate_precision_casts": True,
        "fallback_random": True,
    }
