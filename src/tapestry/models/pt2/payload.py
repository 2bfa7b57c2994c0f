"""The weights and constants of a .pt2 file: raw bytes, and a JSON record of each tensor's geometry.

Not here: reading the bytes (torch.export.load does, from the clean copy).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import torch

from tapestry.errors import FormatError, UsageError
from tapestry.models.pt2.archive import Archive, refused

#: torch.export's number of a dtype → bytes of one element (torch._export.serde.schema.ScalarType).
_ITEM_BYTES = {
    1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 12: 1, 13: 2, 28: 2,
    29: 1, 30: 1, 31: 1, 32: 1, 33: 1, 34: 4, 35: 8,
}  # fmt: skip
_STRIDED = 7


def vet_payload(archive: Archive, folder: str, config: str) -> tuple[str, ...]:
    """The entries that a record of weights or constants names, each checked against its geometry.

    UsageError naming an entry that is a pickle; FormatError for a tensor that its bytes can't hold.
    """
    record = parse_json(archive.read(config), archive.path, config)
    entries = record.get("config")
    if not isinstance(entries, dict):
        raise FormatError(f"{archive.path}: {config} has no table of tensors")
    used: dict[str, None] = {}
    for name, meta in cast("dict[str, Any]", entries).items():
        try:
            used[_vet_tensor(archive, folder, name, meta)] = None
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"{archive.path}: {config} is damaged at {name!r}: {error!r}") from error
    return tuple(used)


def parse_json(data: bytes, path: Path, name: str) -> dict[str, Any]:
    """A JSON object; FormatError when it is none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: {name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path}: expected an object in {name}, got {type(value).__name__}")
    return cast("dict[str, Any]", value)


def _vet_tensor(archive: Archive, folder: str, name: str, meta: dict[str, Any]) -> str:
    entry = f"{folder}/{meta['path_name']}"
    if meta["use_pickle"] is not False:
        raise refused(archive.path, entry, f"a pickle (of {name!r})")
    if not re.fullmatch(r"(weight|tensor)_\d+", meta["path_name"], re.ASCII):
        raise FormatError(f"{archive.path}: {name!r} lies in {entry!r}, which is no tensor")
    if entry not in archive.entries:
        raise FormatError(f"{archive.path}: expected an entry {entry!r} for {name!r}, got none")
    tensor = meta["tensor_meta"]
    device = tensor["device"]["type"]
    if device != "cpu":
        raise UsageError(f"{archive.path}: {name!r} is on {device}; move the model to the CPU and export it again")
    if tensor["layout"] != _STRIDED:
        raise UsageError(f"{archive.path}: expected dense tensors, got layout {tensor['layout']} for {name!r}")
    _check_geometry(archive, entry, name, tensor)
    return entry


def _check_geometry(archive: Archive, entry: str, name: str, tensor: dict[str, Any]) -> None:
    sizes, strides = _numbers(tensor["sizes"]), _numbers(tensor["strides"])
    (offset,) = _numbers([tensor["storage_offset"]])
    item = _ITEM_BYTES.get(tensor["dtype"])
    if item is None or len(sizes) != len(strides):
        raise FormatError(f"{archive.path}: {name!r} is no tensor: {tensor}")
    nbytes = archive.entries[entry].file_size
    if nbytes % item:
        raise FormatError(f"{archive.path}: entry {entry!r} has {nbytes} bytes, not a multiple of {item}")
    if 0 in sizes:
        return
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if (last + 1) * item > nbytes:
        raise FormatError(
            f"{archive.path}: {name!r} of {tuple(sizes)} needs {(last + 1) * item} bytes, entry {entry!r} has {nbytes}"
        )


def _numbers(values: list[dict[str, Any]]) -> list[int]:
    numbers = [value.get("as_int") for value in values]
    if any(type(number) is not int or number < 0 or number >= torch.iinfo(torch.int64).max for number in numbers):
        raise TypeError(f"expected sizes, got {values}")
    return cast("list[int]", numbers)
