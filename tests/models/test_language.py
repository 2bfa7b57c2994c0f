"""A language model with its cache in buffers: equal to ``generate``, however it is read, captured, and called on.

Logits are compared within 1e-4 of the largest: the same float32 sums as in eager, in another order, over at most
48 terms and 2 layers (their rounding is 1e-6 or so), where a wrong mask, position or row is off by a tenth and more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.huggingface_files import TINY_LLAMA, build, save, save_word_tokenizer
from tapestry.cli import main
from tapestry.errors import InputError, UsageError
from tapestry.models.load import load_model
from tapestry.models.loaded import LoadedModel
from tapestry.models.together import Together, capture_programs
from tapestry.placement.build import build as build_executable
from tapestry.placement.executable import Executable
from tapestry.placement.placement import on_source
from tapestry.program.capture import capture

decoding = pytest.importorskip("tapestry.models.decoding", reason="needs transformers: the extra hf")
language = pytest.importorskip("tapestry.models.language")
tokens_of = pytest.importorskip("tapestry.models.tokens")

LLAMA = {**TINY_LLAMA, "num_hidden_layers": 2, "eos_token_id": None}
SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": None,
    "pad_token_id": 0,
}  # fmt: skip
GPT2 = {"vocab_size": 64, "n_positions": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "eos_token_id": None}
#: Whose memory is keys and values; each captured, and its tokens equal to generate's.
CACHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", SMALL),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", SMALL),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**SMALL, "head_dim": 16}),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", SMALL),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**SMALL, "sliding_window": 40}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**SMALL, "head_dim": 16}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**SMALL, "head_dim": 16}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL),
}
#: Those that are not left to the thorough tests: two kinds of attention, and positions that are no rotations.
USUAL = ("llama", "gemma2", "gpt2")
#: Whose memory is something else: read in one go, as before.
OTHERS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "mamba": (
        "MambaForCausalLM", "MambaConfig",
        {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}, "takes no positions",
    ),
    "bloom": (
        "BloomForCausalLM", "BloomConfig",
        {"vocab_size": 64, "hidden_size": 16, "n_layer": 1, "n_head": 2}, "takes no positions",
    ),
}  # fmt: skip
TOLERANCE = 1e-4
PROMPTS = ((5, 9, 33, 2, 17, 40, 8, 8, 21, 3, 60, 12, 31, 4, 7, 19, 26, 50), (63, 1, 0, 44, 13, 13))


@cache
def llama() -> Any:
    return build("LlamaForCausalLM", "LlamaConfig", **LLAMA)


@cache
def loaded() -> LoadedModel:
    return language.language_model("tiny", llama(), decoding.CachedDecoder(llama(), 64), PROMPTS, PROMPTS)


@cache
def executables() -> tuple[Executable, Executable]:
    programs = capture_programs(loaded())
    return tuple(build_executable(programs[name], on_source(programs[name])) for name in ("main", "prefill"))  # pyright: ignore[reportReturnType]


def alike(got: torch.Tensor, want: torch.Tensor) -> bool:
    return float((got - want).abs().max()) <= TOLERANCE * float(want.abs().max())


@torch.no_grad()
def whole(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """The logits after a text, read in one go without a cache."""
    return model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[:, -1]


@torch.no_grad()
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_a_text_may_be_read_in_calls_of_any_length(data: st.DataObject) -> None:
    """Whatever an earlier text has left in the cache."""
    tokens = data.draw(st.lists(st.integers(0, 63), min_size=1, max_size=64))
    decoder = loaded().module
    place = 0
    logits = torch.empty(0)
    while place < len(tokens):
        size = data.draw(st.integers(1, len(tokens) - place))
        logits = decoder(torch.tensor([tokens[place : place + size]]), torch.arange(place, place + size))
        place += size
    assert logits.shape == (1, 64)
    assert alike(logits, whole(llama(), tokens))


def test_calls_read_a_text_in_chunks_and_the_rest_one_by_one() -> None:
    calls = decoding.steps(range(11), width=4)
    assert [call.args[0].tolist() for call in calls] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8]], [[9]], [[10]]]  # pyright: ignore[reportAttributeAccessIssue]
    assert [call.args[1].tolist() for call in calls] == [[0, 1, 2, 3], [4, 5, 6, 7], [8], [9], [10]]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_step_writes_one_row_of_each_cache_and_computes_no_angles() -> None:
    program = executables()[0].program
    ops = [node.op for node in program.nodes]
    assert {entry.name for entry in program.state} == {
        f"buffer:{kind}_{place}" for kind in ("key", "value") for place in (0, 1)
    }
    assert ops.count("aten.index_copy.default") == 4
    assert ops.count("aten.scaled_dot_product_attention.default") == 2
    assert not {"aten.cos.default", "aten.sin.default"} & set(ops)


def test_the_model_itself_stays_as_it_is() -> None:
    model = build("LlamaForCausalLM", "LlamaConfig", **LLAMA)
    before = {name: type(entry) for name, entry in model.named_modules()}
    decoder = decoding.CachedDecoder(model, 32)
    assert {name: type(entry) for name, entry in model.named_modules()} == before
    shared = dict(decoder.model.named_parameters())
    assert all(shared[name] is tensor for name, tensor in model.named_parameters())


def test_tokens_of_the_program_are_those_of_generate() -> None:
    (fact,) = loaded().compare(loaded().module, executables()[0])  # pyright: ignore[reportOptionalCall]
    assert fact.tokens == {"prompts": 2, "compared": 2 * language.COMPARED, "equal": 2 * language.COMPARED, "ties": 0}
    assert fact.good
    assert fact.value == "64 of 64 (2 prompts)"


def test_prefill_and_decode_go_on_from_each_others_state() -> None:
    together = Together(executables())
    (fact,) = loaded().compare(loaded().module, together)  # pyright: ignore[reportOptionalCall]
    assert fact.good
    assert fact.tokens is not None
    assert fact.tokens["equal"] == fact.tokens["compared"] == 2 * language.COMPARED
    assert [program.inputs[0].spec.shape for program in together.programs] == [(1, 1), (1, 16)]  # pyright: ignore[reportOptionalMemberAccess]
    with pytest.raises(InputError, match=r"no program takes int64 \[1, 3\], int64 \[3\]; .*\[1, 1\].*\[1, 16\]"):
        together(torch.zeros(1, 3, dtype=torch.int64), torch.arange(3))


def test_programs_with_another_state_do_not_go_together() -> None:
    other = decoding.CachedDecoder(llama(), 32)
    call = decoding.steps(PROMPTS[0][:16], width=16)[0]
    program = capture(other, call.args)
    with (
        build_executable(program, on_source(program)) as longer,
        pytest.raises(UsageError, match="same state, got others in buffer:key_0"),
    ):
        Together([executables()[0], longer])
    with pytest.raises(UsageError, match="two of the same"):
        Together([executables()[0], executables()[0]])
    with pytest.raises(UsageError, match="at least one"):
        Together([])


def test_a_wrong_token_is_counted_and_a_tie_is_named() -> None:
    expected = tokens_of.continue_greedily(llama(), PROMPTS[1], 8)
    module = loaded().module
    want = expected.logits.clone()
    runner_up = int(want[3].argsort(descending=True)[1])

    def swapped(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        logits = module(tokens, positions)
        if int(positions[-1]) == len(PROMPTS[1]) + 2:
            logits = logits.clone()
            logits[0, runner_up] = logits.max() + 1
        return logits

    fact = tokens_of.compare_tokens(swapped, [expected])
    assert (fact.good, fact.tokens) == (False, {"prompts": 1, "compared": 8, "equal": 7, "ties": 0})
    want[3, runner_up] = want[3].max() * (1 - 1e-5)
    fact = tokens_of.compare_tokens(swapped, [replace(expected, logits=want)])
    assert (fact.good, fact.tokens) == (True, {"prompts": 1, "compared": 8, "equal": 7, "ties": 1})
    assert "1 where two logits tie within 2e-05" in fact.value


def test_logits_that_are_no_numbers_are_no_tokens() -> None:
    expected = tokens_of.Continuation((3,), (0,), torch.zeros(1, 64))
    fact = tokens_of.compare_tokens(lambda tokens, positions: torch.full((1, 64), torch.nan), [expected])
    assert (fact.good, fact.tokens) == (False, {"prompts": 1, "compared": 1, "equal": 0, "ties": 0})


def test_generate_is_greedy_whatever_the_model_asks_for() -> None:
    model = build("LlamaForCausalLM", "LlamaConfig", **LLAMA)
    model.generation_config.update(do_sample=True, temperature=5.0, repetition_penalty=1.8)
    kept = model.generation_config
    found = tokens_of.continue_greedily(model, PROMPTS[0], 8)
    assert model.generation_config is kept
    assert found.tokens == tokens_of.continue_greedily(llama(), PROMPTS[0], 8).tokens
    text = list(PROMPTS[0])
    for token in found.tokens:
        assert int(whole(model, text).argmax()) == token
        text.append(token)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", [form if form in USUAL else pytest.param(form, marks=pytest.mark.thorough) for form in CACHED]
)
def test_a_directory_of_a_language_model_is_captured_and_equal_to_generate(tmp_path: Path, form: str) -> None:
    save(tmp_path, *CACHED[form][:2], **CACHED[form][2])
    found = load_model(f"hf:{tmp_path}")
    assert found.note == ""
    assert isinstance(found.module, decoding.CachedDecoder)
    assert [len(entry.calls) for entry in found.inputs] == [8, 8, 8]
    programs = capture_programs(found)
    assert set(programs) == {"main", "prefill"}
    parts = [build_executable(program, on_source(program)) for program in programs.values()]
    (fact,) = found.compare(found.module, Together(parts))  # pyright: ignore[reportOptionalCall]
    assert fact.good, fact.value
    assert fact.tokens is not None
    assert fact.tokens["prompts"] == 3
    assert fact.tokens["compared"] >= 3 * 4


@pytest.mark.slow
def test_prompts_go_through_the_chat_template(tmp_path: Path) -> None:
    save(tmp_path, *CACHED["llama"][:2], **CACHED["llama"][2])
    save_word_tokenizer(tmp_path, ["The", "old", "lighthouse", "keeper", "answer:"])
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %} answer:"
    (tmp_path / "chat_template.jinja").write_text(template)
    found = load_model(f"hf:{tmp_path}")
    (call,) = found.programs["prefill"][0].calls
    chat = torch.as_tensor(call.args[0])[0].tolist()
    plain = [int(torch.as_tensor(step.args[0])) for step in found.inputs[0].calls]
    assert chat[:8] == plain == [4, 5, 6, 7, 1, 1, 1, 1]
    assert found.compare is not None
    (fact,) = found.compare(found.module, found.module)
    assert fact.good


@pytest.mark.slow
@pytest.mark.parametrize("form", OTHERS)
def test_a_model_with_another_memory_is_read_in_one_go_and_says_so(tmp_path: Path, form: str) -> None:
    class_name, config_name, fields, reason = OTHERS[form]
    saved = save(tmp_path, class_name, config_name, **fields)
    found = load_model(f"hf:{tmp_path}")
    assert reason in found.note
    assert type(found.module) is type(saved)
    assert found.compare is None
    assert found.inputs[0].calls[0].kwargs["use_cache"] is False


def test_a_window_of_attention_bounds_the_cache() -> None:
    model = build("MistralForCausalLM", "MistralConfig", **{**SMALL, "sliding_window": 24})
    assert decoding.CachedDecoder(model, 64).length == 24


def test_a_model_that_attends_in_another_way_is_refused() -> None:
    """Its logits differ from those without a cache: here the decoder is of another model."""
    other = build("LlamaForCausalLM", "LlamaConfig", **{**LLAMA, "rms_norm_eps": 0.5})
    with pytest.raises(decoding.NotCachedError, match=r"other logits with a static cache than without: .* of"):
        decoding.check_decoder(decoding.CachedDecoder(other, 32), llama(), PROMPTS[1])


@pytest.mark.slow
def test_a_migration_counts_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``check.tokens`` of the JSON, from a model that moves as a whole to another device."""
    save(tmp_path / "model", *CACHED["llama"][:2], **{**CACHED["llama"][2], "num_hidden_layers": 1})
    path = tmp_path / "migrate.json"
    command = ["migrate", f"hf:{tmp_path / 'model'}", "--to", "cpu", "--backend", "eager", "--json", str(path)]
    monkeypatch.setattr("sys.argv", ["tapestry", *command, "--journal", str(tmp_path / "journal")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    document = json.loads(path.read_text())
    assert document["check"]["good"]
    assert document["check"]["tokens"] == {"prompts": 3, "compared": 96, "equal": 96, "ties": 0}
    assert document["coverage"]["compute_nodes"] == 1.0
    assert document["program"]["state"] == 2
