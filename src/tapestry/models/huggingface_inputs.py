"""What a Hugging Face model is run on when the user gives no inputs: sentences, token ids or images, by its config.

Not here: loading the model (huggingface).
"""

from __future__ import annotations

import json
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, cast

import torch

from tapestry.errors import FormatError, UsageError
from tapestry.program.inputs import CallArgs, InputSet

#: Tokens of a language model's prompt, and of an encoder's sentence.
PROMPT, SENTENCE = 16, 32
SEED = 20_240_917
#: Where the metadata of a GGUF file end at the latest.
_METADATA_BYTES = 1 << 26

#: Each has well over PROMPT tokens in any vocabulary: prompts are cut, not padded.
SENTENCES = (
    "The old lighthouse keeper climbed the spiral stairs every evening to light the lamp, counting each of the steps.",
    "In 1969, two people walked on the Moon for the first time, while a third kept circling above them in orbit.",
    "To make bread you need flour, water, salt and yeast; mix them well, let the dough rest, and bake it until brown.",
    "She asked whether the meeting could be moved to Thursday, because the figures would not be ready before noon.",
)
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model")


def default_inputs(model: Any, folder: Path, gguf: str) -> tuple[InputSet, ...]:
    """One call per input set, the same every time. UsageError for a model of neither text nor images."""
    main = str(model.main_input_name)
    generator = torch.Generator().manual_seed(SEED)
    if main == "pixel_values":
        calls = _images(model.config, folder, generator)
    elif main == "input_ids":
        calls = _texts(model, folder, gguf, generator)
    else:
        raise UsageError(
            f"expected a model of text or images, got {type(model).__name__}, which takes {main}; give its inputs in a "
            "factory: FILE.py:FACTORY"
        )
    return tuple(InputSet((CallArgs((), call),)) for call in calls)


# -- text


def _texts(model: Any, folder: Path, gguf: str, generator: torch.Generator) -> list[dict[str, object]]:
    text_config = model.config.get_text_config()
    vocabulary = int(text_config.vocab_size)
    longest = min(positions(text_config), 1 << 30)
    tokenizer = _tokenizer(folder, gguf)
    if model.config.is_encoder_decoder:
        calls = _sentences(tokenizer, vocabulary, min(SENTENCE, longest), generator)
        start = getattr(model.config, "decoder_start_token_id", None) or 0
        for call in calls:
            more = torch.randint(0, vocabulary, (1, 7), generator=generator)
            call["decoder_input_ids"] = torch.cat([torch.full((1, 1), int(start)), more], dim=1)
            call["use_cache"] = False
        return calls
    if _predicts_next(model):
        return _prompts(tokenizer, vocabulary, min(PROMPT, longest), generator)
    # Bases of language models would return their cache, which is no tensor.
    text_config.use_cache = False
    return _sentences(tokenizer, vocabulary, min(SENTENCE, longest), generator)


def generates_text(model: Any) -> bool:
    """Whether a model is a causal language model: text in, the next token's logits out."""
    return model.main_input_name == "input_ids" and not model.config.is_encoder_decoder and _predicts_next(model)


def reading(model: Any, folder: Path, gguf: str) -> tuple[list[list[int]], list[list[int]]]:
    """What a causal language model reads: texts of PROMPT tokens, and prompts that it is to continue.

    Prompts go through the chat template where there is one. Without a tokenizer, ids are drawn from a fixed generator.
    """
    text_config = model.config.get_text_config()
    tokenizer = _tokenizer(folder, gguf)
    length = min(PROMPT, positions(text_config))
    rows = _prompts(tokenizer, int(text_config.vocab_size), length, torch.Generator().manual_seed(SEED))
    texts = [cast("torch.Tensor", row["input_ids"])[0].tolist() for row in rows[:3]]
    if tokenizer is None or not tokenizer.chat_template:
        return texts, texts
    messages = [[{"role": "user", "content": sentence}] for sentence in SENTENCES[:3]]
    return texts, [
        tokenizer.apply_chat_template(entry, add_generation_prompt=True, return_dict=False) for entry in messages
    ]


def positions(config: Any) -> int:
    """The longest input, in tokens; RoBERTa's positions start after the padding token's."""
    found = getattr(config, "max_position_embeddings", None)
    if not isinstance(found, int) or found <= 0:
        return 1 << 30
    return max(1, found - 2) if found < 2 * SENTENCE else found


def _predicts_next(model: Any) -> bool:
    return bool(model.can_generate()) or getattr(model.config, "is_decoder", False)


def _prompts(tokenizer: Any, vocabulary: int, length: int, generator: torch.Generator) -> list[dict[str, object]]:
    """A prefill without padding or cache: ids [1, length]."""
    read = [] if tokenizer is None else [tokenizer(text)["input_ids"][:length] for text in SENTENCES]
    shortest = min((len(row) for row in read), default=0)
    if shortest:
        rows = [torch.tensor([row[:shortest]], dtype=torch.int64) for row in read]
    else:  # no tokenizer, or one that makes nothing of English
        rows = [torch.randint(0, vocabulary, (1, length), generator=generator) for _ in SENTENCES]
    return [{"input_ids": row, "use_cache": False} for row in rows]


def _sentences(tokenizer: Any, vocabulary: int, length: int, generator: torch.Generator) -> list[dict[str, object]]:
    """Ids and mask [1, length], padded at the end."""
    if tokenizer is not None and tokenizer.pad_token is not None:
        encoded = [
            tokenizer(text, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
            for text in (*SENTENCES, SENTENCES[0].split(",")[0])
        ]
        return [dict(entry) for entry in encoded]
    calls: list[dict[str, object]] = []
    for filled in (length, max(1, length // 2), max(1, length // 4), 1):
        mask = torch.zeros(1, length, dtype=torch.int64)
        mask[:, :filled] = 1
        calls.append({
            "input_ids": torch.randint(0, vocabulary, (1, length), generator=generator), "attention_mask": mask
        })  # fmt: skip
    return calls


def _tokenizer(folder: Path, gguf: str) -> Any:
    """The tokenizer that lies beside the weights or in the GGUF file; None where there is none or it needs code."""
    from transformers import AutoTokenizer

    given: dict[str, str] = {}
    if gguf:
        if not _gguf_has_tokenizer(folder / gguf):
            return None
        given = {"gguf_file": gguf}
    elif not any((folder / name).is_file() for name in _TOKENIZERS) or _asks_for_code(folder):
        return None
    try:
        return AutoTokenizer.from_pretrained(
            str(folder.resolve()), local_files_only=True, trust_remote_code=False, **given
        )
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise FormatError(f"the tokenizer in {folder} cannot be loaded: {type(error).__name__}: {text}") from error


def _asks_for_code(folder: Path) -> bool:
    path = folder / "tokenizer_config.json"
    try:
        return path.is_file() and "auto_map" in json.loads(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {error}") from error


def _gguf_has_tokenizer(path: Path) -> bool:
    """Whether the metadata, which come first in the file, name a vocabulary: parsing them takes seconds."""
    with path.open("rb") as handle, mmap(handle.fileno(), 0, access=ACCESS_READ) as data:
        return data.find(b"tokenizer.ggml.tokens", 0, _METADATA_BYTES) >= 0


# -- images


def _images(config: Any, folder: Path, generator: torch.Generator) -> list[dict[str, object]]:
    """Smooth random images in [-1, 1] with a little noise: [1, channels, height, width]."""
    height, width = _image_size(config, folder)
    channels = int(getattr(config, "num_channels", 3))
    images: list[dict[str, object]] = []
    for _ in range(3):
        coarse = torch.rand(1, channels, 7, 7, generator=generator) * 2 - 1
        smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=False)
        noise = torch.randn(1, channels, height, width, generator=generator) * 0.05
        images.append({"pixel_values": (smooth + noise).clamp(-1, 1)})
    return images


def _image_size(config: Any, folder: Path) -> tuple[int, int]:
    size: object = getattr(config, "image_size", None) or _processor_size(folder) or 224
    if isinstance(size, int):
        return size, size
    if isinstance(size, list | tuple):
        numbers = cast("list[int]", size)
        if len(numbers) == 2:
            return int(numbers[0]), int(numbers[1])
    raise UsageError(f"expected the image size of {folder} as a number or two, got {size!r}")


def _processor_size(folder: Path) -> object:
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return None
    try:
        size = json.loads(path.read_bytes()).get("size")
    except (ValueError, AttributeError) as error:
        raise FormatError(f"{path} is not a JSON object: {error}") from error
    if isinstance(size, dict):
        table = cast("dict[str, int]", size)
        if "height" in table and "width" in table:
            return [table["height"], table["width"]]
        return table.get("shortest_edge")
    return size
