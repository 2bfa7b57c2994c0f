"""Rotary embeddings as tables of cosines and sines: looked up by position instead of computed on a device.

Cosines of large angles lose accuracy in shaders, and a model asks for the same few every time. Not here: which model
is given them (decoding).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class RotaryTables(nn.Module):
    """Stands in for a rotary embedding: ``forward(x, position_ids [1, n])`` gives cosines and sines [1, n, size].

    ``tables`` holds a pair [length, size] for each further argument that the original was called with (the kind of
    layer, in models that have several).
    """

    def __init__(self, tables: dict[tuple[object, ...], tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._places = {more: place for place, more in enumerate(tables)}
        for place, (cosines, sines) in enumerate(tables.values()):
            self.register_buffer(f"cosines_{place}", cosines, persistent=False)
            self.register_buffer(f"sines_{place}", sines, persistent=False)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor, *args: object, **kwargs: object) -> Any:
        del x
        place = self._places[(*args, *kwargs.values())]
        return tuple(
            nn.functional.embedding(position_ids, self.get_buffer(f"{kind}_{place}")) for kind in ("cosines", "sines")
        )


@contextmanager
def tables_for(model: nn.Module, length: int) -> Generator[dict[str, RotaryTables]]:
    """While the model is run once inside, see which rotary embeddings it asks; then the dict holds tables for them.

    A rotary embedding is a module with frequencies (``inv_freq``) that gives a cosine and a sine for every position.
    Others are left as they are.
    """
    asked: dict[str, dict[tuple[object, ...], dict[str, object]]] = {}
    tables: dict[str, RotaryTables] = {}
    handles = [
        entry.register_forward_pre_hook(_noting(asked.setdefault(name, {})), with_kwargs=True)
        for name, entry in model.named_modules()
        if any("inv_freq" in buffer for buffer, _ in entry.named_buffers(recurse=False))
    ]
    try:
        yield tables
    finally:
        for handle in handles:
            handle.remove()
    for name, calls in asked.items():
        found = {more: _pair(model.get_submodule(name), kwargs, length) for more, kwargs in calls.items()}
        pairs = {more: pair for more, pair in found.items() if pair is not None}
        if found and len(pairs) == len(found):
            tables[name] = RotaryTables(pairs)


def _noting(calls: dict[tuple[object, ...], dict[str, object]]) -> Any:
    """A hook that keeps what a module is called with besides hidden states and positions."""

    def hook(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        del module
        more = {key: value for key, value in kwargs.items() if key not in ("x", "position_ids")}
        named = len(kwargs) - len(more)
        rest = args[2 - named :]
        calls[(*rest, *more.values())] = {**more, "": rest}

    return hook


def _pair(module: nn.Module, more: dict[str, object], length: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Cosines and sines [length, size] in float32; None where the module gives something else."""
    kwargs = {key: value for key, value in more.items() if key}
    rest: Any = more[""]
    with torch.no_grad():
        result: Any = module(torch.zeros(1, length, 1), torch.arange(length).unsqueeze(0), *rest, **kwargs)
    if not isinstance(result, tuple) or len(result) != 2:
        return None
    cosines, sines = result
    if not all(isinstance(entry, torch.Tensor) and entry.shape[:2] == (1, length) for entry in result):
        return None
    return cosines[0].clone(), sines[0].clone()
