"""``hf:DIR``: safetensors and GGUF in, the same results out; no hub, no code and no pickles of the directory."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from support.huggingface_files import TINY_LLAMA, build, save, save_word_tokenizer, write_llama_gguf
from support.pt2_files import mkdir_pickle
from tapestry.errors import EnvironmentProblem, FormatError, UsageError
from tapestry.models.load import load_model
from tapestry.models.loaded import LoadedModel

pytestmark = pytest.mark.slow

decoding = pytest.importorskip("tapestry.models.decoding", reason="needs transformers: the extra hf")

BERT = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 40,
}  # fmt: skip
FORMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", TINY_LLAMA),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 64, "n_positions": 20, "n_embd": 16, "n_layer": 1, "n_head": 2},
    ),
    "gpt2-base": (
        "GPT2Model",
        "GPT2Config",
        {"vocab_size": 64, "n_positions": 20, "n_embd": 16, "n_layer": 1, "n_head": 2},
    ),
    "bert": ("BertModel", "BertConfig", BERT),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", BERT),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2},
    ),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        {
            "image_size": 32,
            "patch_size": 8,
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
        },
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [4, 8, 8, 8], "depths": [1, 1, 1, 1], "image_size": 32},
    ),
    "resnet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 4, "hidden_sizes": [4, 4, 8, 8], "depths": [1, 1, 1, 1]},
    ),
}
#: Those that read and remember: their logits are looked at in test_language.
LANGUAGE = {"llama", "gpt2"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to reach a network fails the test at once."""

    def refuse(*given: object, **named: object) -> None:
        pytest.fail(f"tried to reach the network: {given}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)


def load(folder: Path) -> LoadedModel:
    return load_model(f"hf:{folder}")


def first(output: Any) -> torch.Tensor:
    return next(value for value in output.to_tuple() if isinstance(value, torch.Tensor))


def after(module: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The logits after a text [1, n] that a language model reads in one call."""
    with torch.no_grad():
        if isinstance(module, decoding.CachedDecoder):
            return module(tokens, torch.arange(tokens.shape[1]))
        return module(input_ids=tokens).logits[:, -1]


#: A text of a language model, and how close the same float32 sums in another order come, relative to the largest.
TEXT, NEAR = torch.tensor([[5, 9, 33, 2, 17, 40, 8, 8]]), 1e-5


def same_text(one: Any, other: Any) -> bool:
    got, want = after(one, TEXT), after(other, TEXT)
    return float((got - want).abs().max()) <= NEAR * float(want.abs().max())


@pytest.mark.parametrize("form", sorted(FORMS.keys() - LANGUAGE))
def test_it_computes_what_was_saved_on_inputs_of_its_kind(tmp_path: Path, form: str) -> None:
    saved = save(tmp_path, *FORMS[form][:2], **FORMS[form][2])
    loaded = load(tmp_path)
    assert type(loaded.module) is type(saved)
    assert len(loaded.inputs) >= 3
    outputs: list[torch.Tensor] = []
    for entry in loaded.inputs:
        (call,) = entry.calls
        with torch.no_grad():
            got = loaded.module(*call.args, **call.kwargs)
            assert torch.equal(first(got), first(saved(*call.args, **call.kwargs)))
        assert "past_key_values" not in got
        outputs.append(first(got))
    assert all(output.shape == outputs[0].shape for output in outputs)
    assert not torch.equal(outputs[0], outputs[1])


def test_inputs_are_the_same_every_time(tmp_path: Path) -> None:
    save(tmp_path, *FORMS["bert"][:2], **FORMS["bert"][2])
    one, other = (load(tmp_path).inputs[2].calls[0].kwargs for _ in range(2))
    assert all(torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])) for key in one)


def test_a_language_model_reads_text_token_by_token(tmp_path: Path) -> None:
    saved = save(tmp_path, *FORMS["llama"][:2], **FORMS["llama"][2])
    save_word_tokenizer(tmp_path, ["The", "old", "lighthouse", "keeper", "To", "make"])
    loaded = load(tmp_path)
    assert same_text(loaded.module, saved)
    tokens, positions = ([torch.as_tensor(call.args[k]) for call in loaded.inputs[0].calls] for k in (0, 1))
    assert torch.cat(tokens, dim=1)[0, :4].tolist() == [4, 5, 6, 7]
    assert torch.cat(positions).tolist() == list(range(8))
    (call,) = loaded.programs["prefill"][0].calls
    assert torch.as_tensor(call.args[0]).shape == (1, 16)
    assert torch.as_tensor(call.args[0])[0, :4].tolist() == [4, 5, 6, 7]
    assert torch.as_tensor(call.args[1]).tolist() == list(range(16))


def test_a_sentence_for_an_encoder_is_padded_and_masked(tmp_path: Path) -> None:
    save(tmp_path, *FORMS["bert"][:2], **FORMS["bert"][2])
    save_word_tokenizer(tmp_path, ["The", "old"])
    kwargs = load(tmp_path).inputs[0].calls[0].kwargs
    ids, mask = torch.as_tensor(kwargs["input_ids"]), torch.as_tensor(kwargs["attention_mask"])
    assert ids.shape == mask.shape == (1, 32)
    assert ids[0, :2].tolist() == [4, 5]
    assert 0 < mask.sum() < 32


def test_weights_in_several_files(tmp_path: Path) -> None:
    model = build("LlamaForCausalLM", "LlamaConfig", **{**TINY_LLAMA, "num_hidden_layers": 3})
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = load(tmp_path)
    assert same_text(loaded.module, model)
    next(iter(tmp_path.glob("model-00002*"))).unlink()
    with pytest.raises(UsageError, match=r"model-00002-of-0000.*not there"):
        load(tmp_path)


def test_half_precision_weights_are_widened(tmp_path: Path) -> None:
    model = build("LlamaForCausalLM", "LlamaConfig", **TINY_LLAMA).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    module = load(tmp_path).module
    assert isinstance(module, torch.nn.Module)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


def test_gguf(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    model = build("LlamaForCausalLM", "LlamaConfig", **TINY_LLAMA)
    write_llama_gguf(tmp_path / "tiny.gguf", model)
    for place in (tmp_path, tmp_path / "tiny.gguf"):
        assert same_text(load(place).module, model)


def test_a_gguf_file_must_be_whole_and_named_among_several(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "tiny.gguf"
    write_llama_gguf(path, build("LlamaForCausalLM", "LlamaConfig", **TINY_LLAMA))
    shutil.copy(path, tmp_path / "other.gguf")
    with pytest.raises(UsageError, match=r"2 GGUF files; name one of them: other\.gguf, tiny\.gguf"):
        load(tmp_path)
    data = path.read_bytes()
    for length in (0, 3, 100, len(data) // 2):
        path.write_bytes(data[:length])
        with pytest.raises(FormatError):
            load(path)


# -- refused


def folder_of(tmp_path: Path, form: str = "llama") -> Path:
    save(tmp_path, *FORMS[form][:2], **FORMS[form][2])
    return tmp_path


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_code_in_the_directory_never_runs(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    canary = tmp_path / "canary"
    (folder / "modeling_own.py").write_text(f"import os\nos.mkdir({str(canary)!r})\nclass Own: pass\n")
    edit(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    with pytest.raises(UsageError, match=r"auto_map: AutoModelForCausalLM = modeling_own\.Own\), which is never run"):
        load(folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["modeling_own.Own", None]}})
    )
    edit(folder / "config.json", auto_map=None)
    config = json.loads((folder / "config.json").read_text())
    del config["auto_map"]
    (folder / "config.json").write_text(json.dumps(config))
    load(folder)
    assert not canary.exists()
    assert not [name for name in sys.modules if "modeling_own" in name]


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(mkdir_pickle(tmp_path / "canary"))
    with pytest.raises(UsageError, match=r"pytorch_model\.bin, which is a pickle.*save_pretrained"):
        load(folder)
    assert not (tmp_path / "canary").exists()


def test_a_pickle_beside_safetensors_is_left_alone(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(mkdir_pickle(tmp_path / "canary"))
    load(folder)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.999])
def test_safetensors_cut_short(tmp_path: Path, keep: float) -> None:
    path = folder_of(tmp_path) / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(FormatError, match=r"model\.safetensors is not a whole safetensors file"):
        load(tmp_path)


def test_weights_that_are_missing_are_not_made_up(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder_of(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(UsageError, match=r"no weights for 1 tensors of LlamaForCausalLM: model\.norm\.weight"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "nothing-known"}, "does not take it .model type 'nothing-known'"),
        ({"model_type": None, "architectures": None}, "a config without a model type"),
        ({"architectures": ["OwnModel"]}, "names the class 'OwnModel', which transformers"),
        ({"architectures": ["AutoTokenizer"]}, "names the class 'AutoTokenizer'"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantised weights .mxfp4"),
        ({"hidden_size": 48}, "cannot be loaded"),
        ({"vocab_size": -5}, "."),
    ],
)
def test_configs_that_do_not_fit(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    edit(folder_of(tmp_path) / "config.json", **change)
    with pytest.raises(UsageError, match=told):
        load(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "{" * 100_000, '{"a":' * 100_000, "\x00"])
def test_a_config_that_is_no_record(tmp_path: Path, text: str) -> None:
    (folder_of(tmp_path) / "config.json").write_text(text)
    with pytest.raises(FormatError, match=r"config\.json"):
        load(tmp_path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="got nothing"):
        load(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="got a file"):
        load(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"expected config\.json and weights in .*got nothing"):
        load(tmp_path / "empty")
    folder = folder_of(tmp_path / "bare")
    (folder / "config.json").unlink()
    with pytest.raises(UsageError, match=r"expected a config\.json"):
        load(folder)
    folder = folder_of(tmp_path / "adapter")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/model"}')
    with pytest.raises(UsageError, match="adapter to another model"):
        load(folder)


def test_a_shard_outside_the_directory(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = {"weight_map": {"lm_head.weight": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FormatError, match=r"expected safetensors files beside it, got '\.\./model\.safetensors'"):
        load(folder)


def test_a_model_of_neither_text_nor_images(tmp_path: Path) -> None:
    save(
        tmp_path, "Wav2Vec2Model", "Wav2Vec2Config", hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, conv_dim=[8], conv_stride=[5], conv_kernel=[10], num_feat_extract_layers=1,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    with pytest.raises(UsageError, match="takes input_values; give its inputs in a factory"):
        load(tmp_path)


def test_without_transformers_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'tapestry-ml\[hf\]'"):
        load(folder)


def test_without_gguf_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    from transformers import modeling_gguf_pytorch_utils

    write_llama_gguf(tmp_path / "tiny.gguf", build("LlamaForCausalLM", "LlamaConfig", **TINY_LLAMA))
    monkeypatch.setattr(modeling_gguf_pytorch_utils, "is_gguf_available", lambda: False)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'tapestry-ml\[hf\]'"):
        load(tmp_path)
