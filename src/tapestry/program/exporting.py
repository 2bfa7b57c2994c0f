"""torch.export of a model, made functional, with errors that name the line of the model.

Not here: reading the exported program (capture), and running the model (aliasing).
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from torch.export import ExportedProgram
from torch.fx.proxy import TracerBase
from torch.utils import _pytree as pytree

from tapestry.errors import CaptureError, UsageError

_TORCH = str(Path(torch.__file__).parent) + os.sep
_OURS = str(Path(__file__).parent) + os.sep


class FunctionModule(torch.nn.Module):
    """A plain function as a module, which is what torch.export takes."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)


def check_arguments(args: object, kwargs: object) -> None:
    """UsageError for arguments that are no tuple and dict, CaptureError for tensors that a program cannot take."""
    if not isinstance(args, tuple | list):
        raise UsageError(f"expected args as a tuple of the model's arguments, got {type(args).__name__}")
    if not isinstance(kwargs, Mapping):
        raise UsageError(f"expected kwargs as a dict by argument name, got {type(kwargs).__name__}")
    leaves = pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))[0]
    for path, leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            continue
        if leaf.layout != torch.strided or leaf.is_quantized or leaf.device.type != "cpu":
            kind = f"quantized {leaf.dtype}" if leaf.is_quantized else str(leaf.layout)
            raise CaptureError(
                f"argument {pytree.keystr(path)}: expected a dense tensor on the CPU, got {kind} on {leaf.device}"
            )


def export_functional(
    module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[ExportedProgram, ExportedProgram]:
    """The exported program before decomposition and after it, when it is functional. Raises CaptureError."""
    with torch.no_grad(), warnings.catch_warnings(), _lines_recorded():
        warnings.simplefilter("ignore")  # torch.export's own deprecations; what matters raises
        try:
            before = torch.export.export(module, cast("tuple[Any, ...]", args), kwargs, strict=False)
        except Exception as error:
            raise CaptureError(explained(error, "torch.export cannot capture the model")) from error
        try:
            return before, before.run_decompositions({})
        except Exception as error:
            shared = _sharing(module, args, kwargs)
            if shared:
                raise CaptureError(
                    f"{shared[0]} and {shared[1]} share memory, and the model writes to it; give each its own memory"
                ) from error
            raise CaptureError(explained(error, "the exported graph cannot be made functional")) from error


def _sharing(module: torch.nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[str, str] | None:
    """The first two tensors that share memory. Only looked at when functionalisation has failed."""
    seen: dict[int, str] = {}
    named: list[tuple[str, object]] = [
        (f"argument {pytree.keystr(path)}", leaf) for path, leaf in pytree.tree_flatten_with_path((args, kwargs))[0]
    ]
    named += [(f"buffer {name}", tensor) for name, tensor in module.named_buffers(remove_duplicate=False)]
    for name, value in named:
        if not isinstance(value, torch.Tensor) or value.numel() == 0:
            continue
        other = seen.setdefault(value.untyped_storage().data_ptr(), name)
        if other != name:
            return other, name
    return None


def is_foreign(filename: str) -> bool:
    """Whether a file is neither PyTorch's, nor ours, nor made up: the user's, or a library's that holds the model."""
    return not filename.startswith((_TORCH, _OURS, "<"))


@contextmanager
def _lines_recorded() -> Generator[None]:
    """Let torch.export keep the user's frames of every call.

    It keeps only those of functions called ``forward``, so that a line in a helper function would be lost.
    """
    # What fails is raised with its line: torch's own log of it would only fill the screen.
    said = io.StringIO()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with patch.object(TracerBase, "_filter_traceback_frames", _user_frames), redirect_stderr(said):
            yield
    except CaptureError:
        raise
    else:
        sys.stderr.write(said.getvalue())  # what the model itself had to say
    finally:
        logging.disable(before)


def _user_frames(tracer: object, stack: traceback.StackSummary) -> traceback.StackSummary:
    """The frames below our own that are the user's, or a ``forward`` of PyTorch's modules."""
    del tracer
    start = max((place + 1 for place, frame in enumerate(stack) if frame.filename.startswith(_OURS)), default=0)
    return traceback.StackSummary.from_list(
        [
            frame
            for frame in stack[start:]
            if is_foreign(frame.filename) or (frame.name == "forward" and f"{os.sep}nn{os.sep}" in frame.filename)
        ]
    )


#: Where torch's messages turn from what is wrong to how to debug torch itself.
_ADVICE = (
    "\nFor more information, run with", "\n\nPotential framework code culprit", "\n\nUser Stack", "\n\nThe error above",
    "\nThe error above occurred", "\n\nSuggested fixes", "\nPlease file an issue", "\nCaused by: (",
)  # fmt: skip


def explained(error: Exception, what: str) -> str:
    """The error with the last line of the user's model that it passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_foreign(frame.filename)]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    text = str(error).strip() or type(error).__name__
    end = min((place for mark in _ADVICE if (place := text.find(mark)) > 0), default=len(text))
    hint = "\nA branch or a size depends on data; decide it before capture." if "data-dependent" in text else ""
    return f"{what}{where}\n{type(error).__name__}: {text[: min(end, 1200)]}{hint}"


def refuse_foreign_kinds(module: torch.nn.Module) -> None:
    """CaptureError for modules that torch.export does not take, in words of ours."""
    for name, entry in module.named_modules():
        kind = f"{type(entry).__module__}.{type(entry).__qualname__}"
        where = f"submodule {name}" if name else "the model"
        if isinstance(entry, torch.jit.ScriptModule):
            raise CaptureError(f"{where} is a TorchScript module ({kind}); capture the nn.Module it was made from")
        if kind.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
            raise CaptureError(
                f"{where} is a quantised module ({kind}), which is not supported; capture the float model"
            )
