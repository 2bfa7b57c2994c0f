"""The names of the zoo: what ``zoo:NAME`` may say, with one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import cast

import torch

from tapestry.errors import UsageError
from tapestry.extras import missing
from tapestry.models.loaded import LoadedModel
from tapestry.program.inputs import CallArgs, InputSet

#: The seed of all weights and inputs.
SEED = 20_240_917

#: A module in inference mode, and the arguments of each call to try it on.
Made = tuple[torch.nn.Module, list[CallArgs]]


@dataclass(frozen=True)
class ZooEntry:
    """``place`` is module:function within this package; the function takes nothing and returns Made."""

    name: str
    summary: str
    place: str


_ENTRIES = (
    ZooEntry("bert", "a BERT encoder with a padded row and a pooler (transformers)", "transformer:bert"),
    ZooEntry("convnet", "convolutions with batch norm, ReLU, max and average pooling, a linear head", "conv:convnet"),
    ZooEntry("convolutions", "grouped, depthwise, dilated, strided, transposed and 1-d convolutions", "conv:kinds"),
    ZooEntry("gpt2", "a GPT-2 language model: 16 tokens at once, no cache (transformers)", "transformer:gpt2"),
    ZooEntry("input-output", "a module that returns an input, a view of one and two computed values", "small:passing"),
    ZooEntry("integers", "integer and bool work: indices, masks, comparisons, counts, a 0-d result", "small:integers"),
    ZooEntry("llama", "a Llama language model: grouped queries, rotary positions (transformers)", "transformer:llama"),
    ZooEntry("recurrent", "an LSTM cell and a GRU cell, unrolled over eight steps", "small:recurrent"),
    ZooEntry("resnet", "residual blocks with strides and projections, global average pooling", "conv:resnet"),
    ZooEntry("vit", "a vision transformer on 32 × 32 images (transformers)", "transformer:vit"),
)


def list_zoo() -> tuple[ZooEntry, ...]:
    """Every model of the zoo, by name."""
    return _ENTRIES


def load_zoo(name: str) -> LoadedModel:
    """The model called ``zoo:NAME``; the same weights and inputs every time.

    UsageError for an unknown name, EnvironmentProblem where it needs transformers and that is missing.
    """
    short = name.removeprefix("zoo:")
    found = [entry for entry in _ENTRIES if entry.name == short]
    if not found:
        raise UsageError(f"the zoo has no {short!r}; it has {', '.join(entry.name for entry in _ENTRIES)}")
    module_name, _, function = found[0].place.partition(":")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            make = getattr(import_module(f"tapestry.models.zoo.{module_name}"), function)
            module, calls = cast("Callable[[], Made]", make)()
    except ModuleNotFoundError as error:
        raise missing(error, name) or error from error
    return LoadedModel(name, module.eval().requires_grad_(False), tuple(InputSet((call,)) for call in calls))
