"""Loading a .pt2 file as a model: vetted, copied clean, and only then given to torch.export.load."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any, cast

import torch
from torch.export import ExportedProgram

from tapestry.errors import FormatError, TapestryError, UsageError
from tapestry.models.loaded import LoadedModel
from tapestry.models.pt2.archive import Archive, open_archive, refused
from tapestry.models.pt2.payload import parse_json, vet_payload
from tapestry.models.pt2.program import vet_program
from tapestry.models.pt2.samples import NotDataError, read_samples
from tapestry.program.inputs import CallArgs, InputSet

_Samples = tuple[tuple[object, ...], dict[str, object]]


def load_pt2(path: Path | str, trust_pickle: bool = False, name: str = "") -> LoadedModel:
    """The program in a .pt2 file (torch.export.save), with its sample inputs.

    Nothing in the file is unpickled or executed: a file that needs it is refused with UsageError naming the entry,
    unless ``trust_pickle``, which hands the whole file to torch.export.load as it is. FormatError for a damaged file;
    UsageError for one without sample inputs.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"expected a .pt2 file at {path}, got {'a folder' if path.is_dir() else 'nothing'}")
    exported, samples = _trusted(path) if trust_pickle else _untrusted(path)
    if samples is None:
        raise UsageError(
            f"{path} holds no sample inputs, and a program is captured with real ones; call torch.export.export with "
            "example arguments, or give inputs with a factory: FILE.py:FACTORY"
        )
    args, kwargs = samples
    return LoadedModel(name or str(path), _module(exported, path), (InputSet((CallArgs(args, kwargs),)),))


def _module(exported: ExportedProgram, path: Path) -> torch.nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = exported.module(check_guards=False)
    except Exception as error:
        raise FormatError(f"{path}: the program is damaged: {type(error).__name__}: {error}") from error
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _detach_out_of_place(part)
    return module


def _detach_out_of_place(module: torch.fx.GraphModule) -> None:
    """A literal (torch.tensor([1, 2])) is exported as lift_fresh_copy and detach_, which can't be exported again: the
    copy is a view then. Only autograd tells detach from detach_.
    """
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.detach_.default:
            node.target = torch.ops.aten.detach.default
    module.recompile()


def _trusted(path: Path) -> tuple[ExportedProgram, _Samples | None]:
    try:
        exported = _load(path)
    except Exception as error:
        raise FormatError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    if exported.example_inputs is None:
        return exported, None
    args, kwargs = cast("tuple[tuple[object, ...], dict[str, object]]", exported.example_inputs)
    return exported, (tuple(args), dict(kwargs))


def _untrusted(path: Path) -> tuple[ExportedProgram, _Samples | None]:
    with open_archive(path) as archive:
        model = archive.model_name()
        clean = _clean_copy(archive, model)
        samples = _samples(archive, f"data/sample_inputs/{model}.pt")
    try:
        return _load(clean), samples
    except TapestryError:
        raise
    except Exception as error:
        raise FormatError(f"{path}: the program is damaged: {type(error).__name__}: {error}") from error


def _load(source: Path | io.BytesIO) -> ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.load(source)


def _samples(archive: Archive, entry: str) -> _Samples | None:
    if entry not in archive.entries:
        return None
    try:
        return read_samples(archive.read(entry), f"{archive.path}: entry {entry!r}")
    except NotDataError as found:
        do = "export the program with tensors, numbers, tuples, lists and dicts as example arguments"
        raise refused(archive.path, entry, f"a pickle that holds more than tensors ({found})", do) from found


def _clean_copy(archive: Archive, model: str) -> io.BytesIO:
    """An archive of what was vetted: the raw tensors, their records, the graph. No pickle, no sample inputs."""
    record = f"models/{model}.json"
    try:
        program = vet_program(parse_json(archive.read(record), archive.path, record), archive.path)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise FormatError(f"{archive.path}: {record} is damaged: {type(error).__name__}: {error}") from error
    texts: dict[str, bytes] = {
        "archive_format": b"pt2",
        "archive_version": b"0",
        "byteorder": b"little",
        ".data/version": b"6\n",
        record: json.dumps(program).encode(),
        f"data/sample_inputs/{model}.pt": b"",
    }
    tensors: list[str] = []
    for kind in ("weights", "constants"):
        config = f"data/{kind}/{model}_{kind}_config.json"
        texts[config] = archive.read(config)
        tensors += vet_payload(archive, f"data/{kind}", config)
    return _write(texts, {name: archive.read(name) for name in dict.fromkeys(tensors)})


def _write(*groups: dict[str, Any]) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as copy:
        for group in groups:
            for name, data in group.items():
                copy.writestr(f"program/{name}", data)
    buffer.seek(0)
    return buffer
