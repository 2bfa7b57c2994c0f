"""Transformers of the zoo: small configurations of transformers' own classes, two layers each."""

from __future__ import annotations

import os
from typing import Any

import torch

# Set before transformers is imported: nothing is ever asked of a model hub.
os.environ["HF_HUB_OFFLINE"] = "1"
import transformers

from tapestry.models.zoo.registry import Made
from tapestry.models.zoo.sane import sane_weights
from tapestry.program.inputs import CallArgs

_VOCABULARY = 200
_TOKENS = 16


def bert() -> Made:
    """Ids and mask [2, 16] → last_hidden_state [2, 16, 32] and pooler_output [2, 32] in transformers' output class."""
    config = transformers.BertConfig(
        vocab_size=_VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    calls: list[CallArgs] = []
    for length in (16, 9, 3):
        mask = torch.ones(2, _TOKENS, dtype=torch.int64)
        mask[1, length:] = 0
        calls.append(CallArgs((), {"input_ids": _ids(2), "attention_mask": mask}))
    return _sane(transformers.BertModel(config)), calls


def gpt2() -> Made:
    """Ids [1, 16] → logits [1, 16, 200]."""
    config = transformers.GPT2Config(
        vocab_size=_VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0,
        eos_token_id=1,
    )  # fmt: skip
    return _sane(transformers.GPT2LMHeadModel(config)), _prompts()


def llama() -> Made:
    """Ids [1, 16] → logits [1, 16, 200]; four query heads on two of keys and values."""
    config = transformers.LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return _sane(transformers.LlamaForCausalLM(config)), _prompts()


def vit() -> Made:
    """Images [1, 3, 32, 32] in patches of 8 → logits [1, 7]."""
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    )  # fmt: skip
    config.num_labels = 7
    calls = [CallArgs((), {"pixel_values": torch.randn(1, 3, 32, 32) * scale}) for scale in (1.0, 0.5, 2.0)]
    return _sane(transformers.ViTForImageClassification(config)), calls


def _ids(rows: int) -> torch.Tensor:
    return torch.randint(0, _VOCABULARY, (rows, _TOKENS))


def _prompts() -> list[CallArgs]:
    return [CallArgs((), {"input_ids": _ids(1), "use_cache": False}) for _ in range(3)]


def _sane(model: Any) -> torch.nn.Module:
    sane_weights(model)
    return model
