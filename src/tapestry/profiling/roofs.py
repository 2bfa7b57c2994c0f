"""The roofs of a device: measured on it once, some seconds, and kept in the user's cache.

What is kept is named by the device, its driver and the benchmarks; a damaged entry is measured again. Not here: the
benchmarks.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import platformdirs

from tapestry.backends.cache import replace_file
from tapestry.profiling.benchmarks import (
    arithmetic_rates,
    check_measurable,
    copy_bytes,
    copy_rates,
    fastest,
    texts,
)
from tapestry.profiling.result import Roofs
from tapestry.runtime.device import Device, DeviceInfo

#: Raised whenever the meaning of an entry changes.
_FORMAT = 1


def default_folder() -> Path:
    """Where the roofs of devices are kept: under the user's cache directory."""
    return Path(platformdirs.user_cache_dir("tapestry")) / "roofs"


def measured_roofs(device: Device, folder: Path | None = None, fresh: bool = False) -> Roofs:
    """The roofs of a device: kept ones unless ``fresh``, else measured.

    UnsupportedError for a kind of device without benchmarks; DeviceError where none of them runs.
    """
    check_measurable(device.info)
    file = (folder or default_folder()) / f"{_key(device.info)}.json"
    known = None if fresh else _read(file)
    if known is None:
        copy = fastest(copy_rates(device), device)
        arithmetic = fastest(arithmetic_rates(device), device)
        known = Roofs(
            copy.per_second, arithmetic.per_second, copy.name, arithmetic.name, copy_bytes(device.info)
        )  # fmt: skip
        _write(file, known)
    return known


def _key(info: DeviceInfo) -> str:
    device = [info.kind, info.fingerprint, msgspec.to_builtins(info.limits), sorted(info.features)]
    return hashlib.sha256(msgspec.json.encode([_FORMAT, device, texts()], order="deterministic")).hexdigest()


def _read(file: Path) -> Roofs | None:
    """The entry, or None when there is none or it is damaged."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Roofs)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if found.bytes_per_second > 0 and found.flops_per_second > 0 else None


def _write(file: Path, entry: Roofs) -> None:
    """Store an entry atomically. A folder that cannot be written only costs measuring again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, msgspec.json.format(msgspec.json.encode(entry)))
    except OSError:
        return
