"""Hugging Face directories and GGUF files of tiny models with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

#: A tiny Llama: what several tests store in several forms.
TINY_LLAMA = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def build(class_name: str, config_name: str, **fields: Any) -> Any:
    """A model of transformers with random weights from a fixed seed, in inference mode."""
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, class_name)(getattr(transformers, config_name)(**fields)).eval()


def save(folder: Path, class_name: str, config_name: str, **fields: Any) -> Any:
    """Build a model and save it; returns it."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = build(class_name, config_name, **fields)
    model.save_pretrained(folder)
    return model


def save_word_tokenizer(folder: Path, words: Sequence[str]) -> None:
    """A tokenizer that splits at spaces; unknown words are [UNK]."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: place for place, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")
    fast.save_pretrained(folder)


def write_llama_gguf(path: Path, model: Any) -> None:
    """A Llama as llama.cpp's converter writes it: float32, rows of queries and keys reordered for its rotation."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for place in range(config.num_hidden_layers):
        for theirs, ours in names.items():
            tensor = state[f"model.layers.{place}.{theirs}.weight"]
            if ours in heads:
                tensor = tensor.reshape(heads[ours], 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
            writer.add_tensor(f"blk.{place}.{ours}.weight", tensor.contiguous().numpy())
    for theirs, ours in {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"
    }.items():  # fmt: skip
        writer.add_tensor(f"{ours}.weight", state[f"{theirs}.weight"].numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
