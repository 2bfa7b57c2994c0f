"""A causal language model made ready: its cache in buffers, real inputs for each of its programs, its tokens checked.

Not here: where model and prompts come from (huggingface, smollm2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tapestry.models.decoding import CachedDecoder, steps
from tapestry.models.loaded import LoadedModel
from tapestry.models.tokens import token_check
from tapestry.program.inputs import InputSet

#: Consecutive calls of an input set: enough that rows of the cache are written and read again.
CALLS = 8
#: Tokens that are compared with generate's, for each prompt.
COMPARED = 32
#: Tokens that a call of the prefill program reads.
PREFILL = 16


def language_model(
    name: str, model: Any, decoder: CachedDecoder, texts: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]]
) -> LoadedModel:
    """A LoadedModel whose module is ``decoder``, made from ``model``.

    The input sets are the first CALLS tokens of each of ``texts``, one a call; those of its program ``prefill`` are
    the first PREFILL tokens of each of ``prompts`` that has them, in one call. The moved model's tokens are compared
    with ``generate`` after each of ``prompts``, cut so that COMPARED tokens fit behind them.
    """
    count = min(COMPARED, decoder.length // 2)
    cut = [prompt[: decoder.length - count] for prompt in prompts]
    inputs = tuple(InputSet(steps(text[: min(CALLS, decoder.length)])) for text in texts)
    chunks = tuple(InputSet(steps(prompt[:PREFILL], width=PREFILL)) for prompt in cut if len(prompt) >= PREFILL)
    programs = {"prefill": chunks} if chunks else {}
    return LoadedModel(name, decoder, inputs, compare=token_check(model, cut, count), programs=programs)
