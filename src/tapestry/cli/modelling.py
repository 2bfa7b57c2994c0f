"""Loading and capturing the model that a command was given."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tapestry.cli.console import err

if TYPE_CHECKING:
    from tapestry.models.loaded import LoadedModel
    from tapestry.program.program import Program


def load(name: str, trust_pickle: bool = False) -> LoadedModel:
    """The model called ``name``; says what is to know about it, as that training mode makes a difference."""
    from tapestry.models.load import differs_in_training, load_model

    loaded = load_model(name, trust_pickle)
    if differs_in_training(loaded):
        err.print(f"note: {name} is in training mode (dropout, batch norm); return module.eval() for inference")
    if loaded.note:
        err.print(f"note: {loaded.note}")
    return loaded


def load_kernel_files(paths: Iterable[Path]) -> None:
    """Declare the hand-written kernels in these files."""
    from tapestry.backends.kernels.loading import load_kernels

    for path in paths:
        load_kernels(path)


def capture_model(loaded: LoadedModel) -> Program:
    """The model as a program, captured with its first call."""
    from tapestry.program.capture import capture

    call = loaded.inputs[0].calls[0]
    return capture(loaded.module, call.args, call.kwargs, name=loaded.name)


def capture_programs(loaded: LoadedModel) -> dict[str, Program]:
    """Every program of the model by name; ``main`` is that of its own inputs."""
    from tapestry.models.together import capture_programs

    return capture_programs(loaded)
