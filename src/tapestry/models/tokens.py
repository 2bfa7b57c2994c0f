"""What a language model says: its greedy tokens by ``generate``, and whether a moved model's are the same.

Not here: the model with its cache (decoding).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from tapestry.models.decoding import steps
from tapestry.models.loaded import Fact, Runner
from tapestry.models.together import Together
from tapestry.numerics.whole import PROGRAM_FLOOR

#: Two logits tie when they are this close, relative to the largest: each may be off by a whole program's bound.
TIE = 2 * PROGRAM_FLOOR


@dataclass(frozen=True)
class Continuation:
    """How a model goes on after ``prompt``: the most likely token each time, and the logits [tokens, V] it is from."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logits: torch.Tensor


def continue_greedily(model: Any, prompt: Sequence[int], count: int) -> Continuation:
    """``generate`` of the model itself: up to ``count`` tokens, fewer where it ends its text."""
    from transformers import GenerationConfig

    ids = torch.tensor([list(prompt)])
    kept = model.generation_config
    # A model's own settings may ask for sampling or penalties, and generate fills in what it is not given from them.
    model.generation_config = GenerationConfig(eos_token_id=kept.eos_token_id, pad_token_id=kept.pad_token_id or 0)
    try:
        with torch.no_grad():
            result = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            )
    finally:
        model.generation_config = kept
    tokens = cast("list[int]", result.sequences[0, len(prompt) :].tolist())
    return Continuation(tuple(prompt), tuple(tokens), torch.cat(list(result.logits)).float())


def compare_tokens(run: Runner, expected: Sequence[Continuation], width: int = 1) -> Fact:
    """Whether a decoder (a CachedDecoder, or one moved) chooses the same tokens, reading prompts ``width`` at a time.

    It is given the expected text token by token, so that every choice is compared, also after a wrong one; when all
    are equal, its own greedy text is the expected one. A choice differs without being wrong where the expected logits
    of both tokens tie (TIE).
    """
    equal = ties = compared = 0
    for entry in expected:
        for place, logits in enumerate(_logits(run, entry, width)):
            compared += 1
            want, chosen = entry.logits[place], int(logits.argmax())
            if not bool(logits.isfinite().all()):
                continue
            if chosen == entry.tokens[place]:
                equal += 1
            elif float(want.max() - want[chosen]) <= TIE * float(want.abs().max()):
                ties += 1
    words = f"{equal} of {compared} ({len(expected)} prompts)"
    if ties:
        words += f", and {ties} where two logits tie within {TIE:.0e} of the largest"
    counts = {"prompts": len(expected), "compared": compared, "equal": equal, "ties": ties}
    return Fact("greedy tokens equal to generate's", words, equal + ties == compared > 0, counts)


def token_check(model: Any, prompts: Sequence[Sequence[int]], count: int) -> Callable[[Runner, Runner], Sequence[Fact]]:
    """LoadedModel.compare for a language model: ``generate`` of ``model`` runs once, at the first comparison."""
    expected: list[Continuation] = []

    def compare(one: Runner, other: Runner) -> Sequence[Fact]:
        del one
        if not expected:
            expected.extend(continue_greedily(model, prompt, count) for prompt in prompts)
        return [compare_tokens(other, expected, _widest(other))]

    return compare


def _widest(run: Runner) -> int:
    """The most tokens that a call may read."""
    if not isinstance(run, Together):
        return 1
    specs = [program.inputs[0].spec for program in run.programs]
    return max(spec.shape[1] for spec in specs if spec is not None)


@torch.no_grad()
def _logits(run: Runner, expected: Continuation, width: int) -> list[torch.Tensor]:
    """The decoder's logits [V] at each token of the continuation."""
    prompt = steps(expected.prompt, width=width)
    after = steps((*expected.prompt, *expected.tokens[:-1]))[len(expected.prompt) :]
    rows = [cast("torch.Tensor", run(*call.args, **call.kwargs))[0] for call in (*prompt, *after)]
    return rows[len(prompt) - 1 :]
