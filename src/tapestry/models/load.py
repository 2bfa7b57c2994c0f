"""Finding the model that a user names: a demo, a model of the zoo, a directory, a .pt2 file, a factory.

Not here: the demos and the readers of each form themselves.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch

from tapestry.errors import UsageError
from tapestry.models.loaded import LoadedModel
from tapestry.program.inputs import CallArgs, InputSet

_FORMS = "demo:minilm, demo:smollm2, zoo:NAME, hf:DIR, FILE.pt2 or FILE.py:FACTORY"


def load_model(name: str, trust_pickle: bool = False) -> LoadedModel:
    """The model called ``name``.

    The demos and ``zoo:NAME`` come with Tapestry. ``hf:DIR`` is a Hugging Face directory and ``FILE.pt2`` what
    torch.export.save wrote; neither runs code from the files, unless ``trust_pickle`` lets a .pt2 file be unpickled.
    ``FILE.py:FACTORY`` names a function without arguments that returns ``(module, args)`` or
    ``(module, args, kwargs)``; a list of argument tuples in place of ``args`` means consecutive calls. Loading runs
    that file. Raises UsageError for a name that is none, a file that is refused or a factory that does not deliver,
    EnvironmentProblem when the packages that a model needs are missing.
    """
    if name == "demo:minilm":
        from tapestry.models.minilm import load_minilm

        return load_minilm()
    if name == "demo:smollm2":
        from tapestry.models.smollm2 import load_smollm2

        return load_smollm2()
    if name.startswith("zoo:"):
        from tapestry.models.zoo.registry import load_zoo

        return load_zoo(name)
    if name.startswith("hf:"):
        from tapestry.models.huggingface import load_huggingface

        return load_huggingface(name.removeprefix("hf:"))
    if name.endswith(".pt2"):
        from tapestry.models.pt2.load import load_pt2

        return load_pt2(name, trust_pickle)
    path, _, factory = name.rpartition(":")
    if path.endswith(".py"):
        return _from_factory(name, Path(path), factory)
    if name.endswith(".py"):
        raise UsageError(f"expected FILE.py:FACTORY, got {name!r} without the name of a factory")
    raise UsageError(f"expected a model as {_FORMS}, got {name!r}")


def differs_in_training(loaded: LoadedModel) -> bool:
    """Whether the model is in training mode and has parts that compute something else then."""
    if not isinstance(loaded.module, torch.nn.Module):
        return False
    kinds = ("Dropout", "BatchNorm")
    return any(
        entry.training and any(kind in type(entry).__name__ for kind in kinds) for entry in loaded.module.modules()
    )


def _from_factory(name: str, path: Path, factory_name: str) -> LoadedModel:
    module = _run_file(path)
    factory = getattr(module, factory_name, None)
    if factory is None:
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{path} has no {factory_name!r}; it has {', '.join(names) or 'no callables'}")
    if not callable(factory):
        raise UsageError(f"expected a function called {factory_name!r} in {path}, got {type(factory).__name__}")
    try:
        made = factory()
    except (Exception, SystemExit) as error:
        raise UsageError(f"{factory_name} in {path} raised {_words(error, path)}") from error
    return _read(name, made)


def _run_file(path: Path) -> object:
    if not path.is_file():
        raise UsageError(f"expected a Python file at {path}, got {'a folder' if path.is_dir() else 'nothing'}")
    spec = importlib.util.spec_from_file_location(f"tapestry_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path} raised {_words(error, path)}") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _words(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error}"  # which names the line itself
    here = path.resolve()
    lines = [
        entry.lineno for entry in traceback.extract_tb(error.__traceback__) if Path(entry.filename).resolve() == here
    ]
    return f"{type(error).__name__}: {error}" + (f" (line {lines[-1]})" if lines else "")


def _read(name: str, made: object) -> LoadedModel:
    expected = "(module, args) or (module, args, kwargs)"
    if not isinstance(made, tuple):
        raise UsageError(f"{name}: expected the factory to return {expected}, got {type(made).__name__}")
    parts = cast("tuple[object, ...]", made)
    if len(parts) not in (2, 3):
        raise UsageError(f"{name}: expected the factory to return {expected}, got a tuple of {len(parts)}")
    module = parts[0]
    if not callable(module):
        raise UsageError(f"{name}: expected a module or function first, got {type(module).__name__}")
    kwargs = parts[2] if len(parts) == 3 else {}
    if not isinstance(kwargs, dict):
        raise UsageError(f"{name}: expected keyword arguments as a dict, got {type(kwargs).__name__}")
    calls = parts[1] if isinstance(parts[1], list) else [parts[1]]
    entries = cast("list[object]", calls)
    if not entries or not all(isinstance(entry, tuple) for entry in entries):
        kinds = sorted({type(entry).__name__ for entry in entries}) or ["nothing"]
        raise UsageError(f"{name}: expected args as a tuple, or a list of tuples, got {', '.join(kinds)}")
    named = cast("dict[str, object]", kwargs)
    inputs = InputSet(tuple(CallArgs(cast("tuple[object, ...]", entry), named) for entry in entries))
    return LoadedModel(name, cast("torch.nn.Module | Callable[..., object]", module), (inputs,))
