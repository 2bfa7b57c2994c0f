"""A causal language model over one static cache of keys and values, with everything that it remembers in buffers.

A call takes any number of tokens and their positions and writes their rows of the cache in place, so that programs
captured for one token and for several share their state by buffer name. Not here: loading models (huggingface,
smollm2), and what they say (tokens).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from tapestry.errors import UsageError
from tapestry.models.rotary import RotaryTables, tables_for
from tapestry.program.inputs import CallArgs

#: The largest difference between logits with the cache and without, relative to the largest logit. Both are float32
#: sums in another order, which differ by 1e-6 or so; a mask or a position that is not understood is off by 1e-1.
_ALIKE = 1e-3


class NotCachedError(UsageError):
    """A model whose memory is not keys and values at positions; it says what it is instead."""


class CachedDecoder(nn.Module):
    """``forward(tokens, positions)``: tokens [1, n] at positions [n] (int64 both) to the logits after the last, [1, V].

    ``key_I`` and ``value_I`` [1, heads, length, head size] are layer I's cache. Attention sees the positions up to each
    token's own, so rows beyond the last position do not count: a new text starts at position 0 whatever they hold.
    Weights are the given model's; the model itself stays as it is.
    """

    def __init__(self, model: Any, length: int) -> None:
        """Raises NotCachedError where the model remembers anything but keys and values, or attends in another way.

        ``length`` is cut to what the model's positions and its windows of attention cover.
        """
        super().__init__()
        layers, tables = _look(model, length)
        self.length = min([length, *(entry.sliding_window for entry in layers if entry.is_sliding)])
        shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self.model = copy.deepcopy(model, shared)
        for name, table in tables.items():
            self.model.set_submodule(name, table)
        parameters = inspect.signature(self.model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._adds_mask = getattr(self.model.config, "_attn_implementation", None) == "eager"
        self.layers = len(layers)
        for place, layer in enumerate(layers):
            for kind, rows in (("key", layer.keys), ("value", layer.values)):
                _, heads, _, size = rows.shape
                self.register_buffer(f"{kind}_{place}", torch.zeros(1, heads, self.length, size))
        self.eval().requires_grad_(False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        mask = (torch.arange(self.length) <= positions.unsqueeze(1)).view(1, 1, -1, self.length)
        if self._adds_mask:
            mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
        rows: list[Any] = [
            _Rows(self.get_buffer(f"key_{place}"), self.get_buffer(f"value_{place}"), positions)
            for place in range(self.layers)
        ]
        result = self.model(
            input_ids=tokens,
            position_ids=positions.unsqueeze(0),
            attention_mask=mask,
            use_cache=True,
            **{self._cache_name: Cache(layers=rows)},
            **self._last_only,
        )
        return result.logits[:, -1]


class _Rows(CacheLayerMixin):
    """One layer's cache during one call: rows are written at the call's positions."""

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values = self._rows = (keys, values)
        self._positions = positions
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the buffers are there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._rows
        keys.index_copy_(2, self._positions, key_states)
        values.index_copy_(2, self._positions, value_states)
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        del query_length
        return self._rows[0].shape[2], 0

    def get_seq_length(self) -> int:
        """Nothing that is known of: models ask where they were given no positions."""
        return 0

    def get_max_length(self) -> int:
        return self._rows[0].shape[2]


def _look(model: Any, length: int) -> tuple[list[Any], dict[str, RotaryTables]]:
    """The layers of a growing cache after one token, and the rotary embeddings as tables, by module name."""
    cache = DynamicCache(config=model.config)
    parameters = inspect.signature(model.forward).parameters
    if "position_ids" not in parameters:
        raise NotCachedError(f"{type(model).__name__} takes no positions")
    name = "cache" if "cache" in parameters else "past_key_values"
    if name not in parameters:
        raise NotCachedError(f"{type(model).__name__} takes no cache")
    token = torch.zeros(1, 1, dtype=torch.int64)
    with torch.no_grad(), tables_for(model, length) as tables:
        model(input_ids=token, position_ids=torch.zeros_like(token), use_cache=True, **{name: cache})
    layers: list[Any] = list(cache.layers)
    for place, layer in enumerate(layers):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) or not layer.is_initialized:
            raise NotCachedError(f"layer {place} of {type(model).__name__} remembers a {type(layer).__name__}")
    if not layers:
        raise NotCachedError(f"{type(model).__name__} remembers nothing")
    return layers, tables


def steps(tokens: Iterable[int], width: int = 1) -> tuple[CallArgs, ...]:
    """The calls of a CachedDecoder that read a text: ``width`` tokens at a time, and the rest one by one."""
    given = list(tokens)
    whole = len(given) // width * width
    starts = [(place, width) for place in range(0, whole, width)] + [(place, 1) for place in range(whole, len(given))]
    return tuple(
        CallArgs((torch.tensor([given[place : place + size]]), torch.arange(place, place + size)))
        for place, size in starts
    )


@torch.no_grad()
def check_decoder(decoder: CachedDecoder, model: Any, tokens: Sequence[int]) -> None:
    """NotCachedError where the decoder, token by token, gives other logits than the model does for the whole text."""
    got = [decoder(*call.args) for call in steps(tokens)][-1]
    want = model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[:, -1]
    error, size = float((got - want).abs().max()), float(want.abs().max())
    if not error <= _ALIKE * size:
        raise NotCachedError(
            f"{type(model).__name__} gives other logits with a static cache than without: they differ by {error:.2g} "
            f"of {size:.2g}"
        )
