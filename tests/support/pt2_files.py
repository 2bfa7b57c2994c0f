"""Making .pt2 files: honest ones by torch.export.save, hostile ones by changing entries of an honest one."""

from __future__ import annotations

import json
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def save_pt2(
    path: Path,
    module: torch.nn.Module,
    args: tuple[object, ...],
    kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
) -> Path:
    """Export and save a module; returns the path."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
        torch.export.save(exported, path)
    return path


def rewrite(path: Path, changes: Mapping[str, bytes | None], compression: int = zipfile.ZIP_STORED) -> Path:
    """Replace, add or (None) remove entries, named below the root folder."""
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].partition("/")[0]
        entries = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    merged = {**entries, **changes}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in merged.items():
            if data is not None:
                archive.writestr(f"{root}/{name}", data, compression if name in changes else zipfile.ZIP_STORED)
    return path


def edit_json(path: Path, change: Callable[[dict[str, Any]], None], entry: str = "models/model.json") -> Path:
    """Change a JSON record in place."""
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].partition("/")[0]
        record = json.loads(archive.read(f"{root}/{entry}"))
    change(record)
    return rewrite(path, {entry: json.dumps(record).encode()})


def mkdir_pickle(canary: Path) -> bytes:
    """A pickle that makes the directory ``canary`` when it is executed, written opcode by opcode."""
    text = str(canary).encode()
    return b"\x80\x02cos\nmkdir\nX" + struct.pack("<I", len(text)) + text + b"\x85R."


def in_torch_zip(pickled: bytes, path: Path) -> bytes:
    """A pickle in the zip archive that torch.load reads."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {"data.pkl": pickled, "byteorder": b"little", "version": b"3\n"}.items():
            archive.writestr(f"archive/{name}", data)
    return path.read_bytes()
