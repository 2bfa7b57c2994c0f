"""``hf:DIR``: a Hugging Face directory, or a GGUF file in one, as a model in float32.

Only classes that transformers itself has are used, weights come from safetensors or GGUF, and nothing is asked of a
hub. Not here: what the model is run on (huggingface_inputs).
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from tapestry.errors import EnvironmentProblem, FormatError, UsageError
from tapestry.extras import missing
from tapestry.models.huggingface_inputs import default_inputs, generates_text, positions, reading
from tapestry.models.loaded import LoadedModel
from tapestry.program.inputs import InputSet

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".pkl")
_FACTORY = "load it in a factory of your own instead: FILE.py:FACTORY"
_JSON_LIMIT = 1 << 26
#: Positions of a language model's cache.
LENGTH = 128


@dataclass(frozen=True)
class Source:
    """What a directory holds. ``gguf`` is the name of its GGUF file, or empty for safetensors."""

    folder: Path
    config: dict[str, Any]
    gguf: str


def load_huggingface(place: str) -> LoadedModel:
    """The model in a directory (config.json and safetensors, or one GGUF file), or in a GGUF file named directly.

    The class is the one that the config names, else the model type's own. A causal language model becomes a
    CachedDecoder, unless its memory is of another kind (``note`` then says so). Inputs are a few sentences where there
    is a tokenizer, else token ids or images drawn from a fixed generator. Raises UsageError for a directory that is
    missing, incomplete, of an unknown type, or that would need code or pickles of its own; FormatError for damaged
    weights; EnvironmentProblem without transformers.
    """
    source = _look(Path(place))
    # Set before transformers is imported: nothing is ever asked of a model hub.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise missing(error, f"hf:{place}") or error from error
    with _quiet(transformers):
        config = _read_config(transformers, source)
        model = _read_model(transformers, source, config)
        model.eval().requires_grad_(False)
        note = ""
        if generates_text(model):
            try:
                return _language_model(f"hf:{place}", model, source)
            except Exception as error:
                note = f"{place} is read in one go, without a cache of keys and values: {_words(error)}"
        calls = default_inputs(model, source.folder, source.gguf)
    _try(model, calls, place)
    return LoadedModel(f"hf:{place}", model, calls, note=note)


def _language_model(name: str, model: Any, source: Source) -> LoadedModel:
    """A causal language model with its cache in buffers; whatever keeps its class from that is raised."""
    from tapestry.models.decoding import CachedDecoder, check_decoder
    from tapestry.models.language import language_model

    texts, prompts = reading(model, source.folder, source.gguf)
    decoder = CachedDecoder(model, min(LENGTH, positions(model.config.get_text_config())))
    check_decoder(decoder, model, texts[0][: decoder.length])
    return language_model(name, model, decoder, texts, prompts)


# -- the directory, before anything is loaded


def _look(place: Path) -> Source:
    folder, gguf = (place.parent, place.name) if place.suffix == ".gguf" else (place, "")
    if not (place.is_file() if gguf else place.is_dir()):
        raise UsageError(f"expected a Hugging Face directory or a GGUF file at {place}, got {_what(place)}")
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    config = _config(folder) if (folder / "config.json").is_file() else {}
    _check_code(folder, config)
    if gguf or _safetensors(folder):
        return Source(folder, config, gguf)
    if len(ggufs) > 1:
        raise UsageError(f"{folder} holds {len(ggufs)} GGUF files; name one of them: {', '.join(ggufs)}")
    if ggufs:
        return Source(folder, config, ggufs[0])
    raise UsageError(_no_weights(folder, config))


def _what(place: Path) -> str:
    return "a file" if place.is_file() else "a folder" if place.is_dir() else "nothing"


def _config(folder: Path) -> dict[str, Any]:
    return _json(folder / "config.json")


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _JSON_LIMIT:
        raise FormatError(f"{path} has {path.stat().st_size} bytes, over the limit of {_JSON_LIMIT}")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"expected an object in {path}, got {type(value).__name__}")
    return cast("dict[str, Any]", value)


def _check_code(folder: Path, config: dict[str, Any]) -> None:
    """Refuse what transformers would need foreign code, another library or another model for."""
    if "auto_map" in config:
        named = ", ".join(f"{key} = {value}" for key, value in dict(config["auto_map"]).items())
        raise UsageError(
            f"{folder / 'config.json'} asks for code of its own (auto_map: {named}), which is never run; {_FACTORY}"
        )
    if "quantization_config" in config:
        method = dict(config["quantization_config"]).get("quant_method", "of a kind that it does not name")
        raise UsageError(
            f"{folder} holds quantised weights ({method}), which are not read; dequantise them, or {_FACTORY}"
        )
    if (folder / "adapter_config.json").is_file():
        raise UsageError(f"{folder} holds an adapter to another model; merge the two and save the result")


def _safetensors(folder: Path) -> bool:
    """Whether the weights are here as safetensors; every file is opened, so that a damaged one is named."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        names = ["model.safetensors"]
    elif index.is_file():
        names = _shards(index)
    else:
        return False
    from safetensors import SafetensorError, safe_open

    for name in names:
        try:
            with safe_open(folder / name, framework="pt") as opened:
                opened.keys()
        except (SafetensorError, OSError, ValueError) as error:
            raise FormatError(f"{folder / name} is not a whole safetensors file: {error}") from error
    return True


def _shards(index: Path) -> list[str]:
    table = _json(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise FormatError(f"{index} names no weights")
    names = sorted({str(name) for name in cast("dict[str, object]", table).values()})
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise FormatError(f"{index}: expected safetensors files beside it, got {name!r}")
        if not (index.parent / name).is_file():
            raise UsageError(f"{index} names {name}, which is not there; fetch the missing part")
    return names


def _no_weights(folder: Path, config: dict[str, Any]) -> str:
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if pickles:
        return (
            f"{folder} has its weights in {pickles[0]}, which is a pickle or a foreign format and is never read; load "
            "the model where you trust it and call model.save_pretrained(DIR), which writes safetensors"
        )
    other = sorted(path.name for path in folder.glob("*.safetensors"))
    if other:
        return f"expected model.safetensors in {folder}, got {', '.join(other)}; rename it if it is the whole model"
    found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    lacks = "weights (model.safetensors or a .gguf file)" if config else "config.json and weights"
    return f"expected {lacks} in {folder}, got {found}"


# -- loading


@contextmanager
def _quiet(transformers: Any) -> Generator[None]:
    """Without transformers' progress bars and warnings: what matters is raised here."""
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _read_config(transformers: Any, source: Source) -> Any:
    if not source.gguf and not source.config:
        raise UsageError(f"expected a config.json in {source.folder}, got none; it says which model the weights are of")
    given = {"gguf_file": source.gguf} if source.gguf else {}
    try:
        return transformers.AutoConfig.from_pretrained(
            str(source.folder.resolve()), local_files_only=True, trust_remote_code=False, **given
        )
    except ImportError as error:
        raise _lacks(error, source) from error
    except Exception as error:
        kind = source.config.get("model_type")
        told = f"model type {kind!r}" if kind else "a config without a model type"
        if source.gguf:
            raise FormatError(f"{source.folder / source.gguf} cannot be read: {_words(error)}") from error
        raise UsageError(
            f"{source.folder / 'config.json'}: transformers {transformers.__version__} does not take it ({told}): "
            f"{_words(error)}"
        ) from error


def _read_model(transformers: Any, source: Source, config: Any) -> Any:
    kind = _class(transformers, source, config)
    given: dict[str, Any] = {"gguf_file": source.gguf} if source.gguf else {"use_safetensors": True}
    try:
        model, told = kind.from_pretrained(
            str(source.folder.resolve()),
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa" if getattr(kind, "_supports_sdpa", False) else "eager",
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **given,
        )
    except ImportError as error:
        raise _lacks(error, source) from error
    except Exception as error:
        raise FormatError(f"the weights in {source.folder} cannot be loaded: {_words(error)}") from error
    lacking = sorted(cast("set[str]", told["missing_keys"]))
    if lacking:
        raise UsageError(
            f"{source.folder} has no weights for {len(lacking)} tensors of {kind.__name__}: {', '.join(lacking[:5])}; "
            "name the class that was saved under 'architectures' in config.json"
        )
    return model


def _class(transformers: Any, source: Source, config: Any) -> Any:
    """The class to load: the one that the config names, if transformers has it."""
    for name in cast("list[str]", config.architectures or source.config.get("architectures") or []):
        found = getattr(transformers, str(name), None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
        raise UsageError(
            f"{source.folder / 'config.json'} names the class {name!r}, which transformers {transformers.__version__} "
            f"does not have; {_FACTORY}"
        )
    causal = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    table = causal if source.gguf and type(config) in causal else transformers.MODEL_MAPPING
    if type(config) not in table:
        raise UsageError(f"transformers has no model for {type(config).__name__}; {_FACTORY}")
    found = table[type(config)]
    return found[0] if isinstance(found, tuple) else found


def _lacks(error: ImportError, source: Source) -> EnvironmentProblem:
    what = f"hf:{source.folder}"
    if isinstance(error, ModuleNotFoundError):
        problem = missing(error, what)
        if problem is not None:
            return problem
    return EnvironmentProblem(
        f"{what} needs a package that is not installed: pip install 'tapestry-ml[hf]' ({_words(error)})"
    )


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


@torch.no_grad()
def _try(model: Any, inputs: tuple[InputSet, ...], place: str) -> None:
    """Run once, so that inputs that do not fit are told as such."""
    call = inputs[0].calls[0]
    try:
        model(*call.args, **call.kwargs)
    except Exception as error:
        names = ", ".join(call.kwargs)
        raise UsageError(
            f"hf:{place}: {type(model).__name__} does not run on the default inputs ({names}): {_words(error)}; "
            f"{_FACTORY}"
        ) from error
