"""Which OpInfo entry calls which overload: found by recording all entries once, and kept on disk.

The index of the torch release that Tapestry is pinned to lies in the package (``python -m
tapestry.suite.schema.index FILE`` writes it); for another release it is made on first use, in about half a minute, and
kept in the user's cache. Not here: the calls themselves (samples).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import platformdirs
import torch
from torch._ops import OpOverload

from tapestry.suite.schema import opinfo
from tapestry.suite.schema.recording import recording
from tapestry.suite.schema.trial import copies

#: Grows when what is recorded changes.
VERSION = 1
#: Entries kept for one overload, and samples looked at in one entry.
PLACES = 4
SAMPLES = 200


class Place(msgspec.Struct, frozen=True, array_like=True):
    """An entry and the form of calling it (opinfo.forms) that calls an overload.

    ``below``: the call is not in the exported graph; it is what a composite operator is made of. ``sample`` is the
    first of the entry's samples that makes it, ``dtype`` that sample's dtype by torch's name.
    """

    entry: str
    form: str
    below: bool
    sample: int
    dtype: str


class Index(msgspec.Struct, frozen=True):
    """Places by overload, the best first: entries named like the operator, exported calls before those below."""

    version: int
    torch_version: str
    places: dict[str, tuple[Place, ...]]


@cache
def load() -> Mapping[str, tuple[Place, ...]]:
    """Places by overload for the installed torch."""
    release = torch.__version__.partition("+")[0]
    shipped = files("tapestry.suite.schema") / f"opinfo-{release}.json"
    cached = Path(platformdirs.user_cache_dir("tapestry")) / "opinfo" / f"{torch.__version__}.json"
    for source in (shipped, cached):
        index = read(source)
        if index is not None:
            return index.places
    index = build()
    write(index, cached)
    return index.places


def read(source: Any) -> Index | None:
    """A stored index, or None where there is none that this version can use: it is then made again."""
    try:
        index = msgspec.json.decode(source.read_bytes(), type=Index)
    except (OSError, msgspec.DecodeError):
        return None
    return index if index.version == VERSION else None


def write(index: Index, path: Path) -> None:
    """Store an index; a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(msgspec.json.encode(index))
    os.replace(file.name, path)


def build() -> Index:
    """Record every entry of the table."""
    found: dict[str, list[Place]] = {}
    breadth: dict[str, int] = {}
    for name, info in opinfo.entries().items():
        places = record(name, info)
        breadth[name] = len(places)
        for target, place in places.items():
            found.setdefault(target, []).append(place)
    ranked = {
        target: tuple(sorted(places, key=lambda place: (*rank(target, place), breadth[place.entry])))[:PLACES]
        for target, places in sorted(found.items())
    }
    return Index(VERSION, torch.__version__.partition("+")[0], ranked)


def record(name: str, info: Any) -> dict[str, Place]:
    """What one entry calls: the first place of each overload. Entries without samples here give nothing."""
    found: dict[str, Place] = {}
    for dtype in opinfo.dtypes(info)[:1]:
        with opinfo.seeded():
            for number, (args, kwargs, broadcasts) in enumerate(islice(opinfo.samples(info, dtype), SAMPLES)):
                for form in opinfo.forms(info):
                    if not (broadcasts and opinfo.writes(form)):
                        _record_call(found, info, Place(name, form, False, number, str(dtype)[6:]), args, kwargs)
    return found


def _record_call(
    found: dict[str, Place], info: Any, place: Place, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    below = msgspec.structs.replace(place, below=True)

    def keep(at: Place, target: OpOverload) -> None:
        known = found.get(str(target))
        if known is None or (known.below and not at.below):
            found[str(target)] = at

    own = copies([args, *kwargs.values()])
    try:
        with recording(lambda target, *_: keep(place, target), lambda target, *_: keep(below, target)):
            call_form(info, place.form, own, kwargs)
    except Exception:
        # A form that does not take this sample (a method of a number, say): the other forms and samples serve.
        return


def call_form(info: Any, form: str, own: Any, kwargs: Mapping[str, object]) -> None:
    """Call a form with copied arguments: ``own`` holds the positional ones, then the values of ``kwargs``."""
    args, *values = own
    opinfo.forms(info)[form](*args, **dict(zip(kwargs, values, strict=True)))


def about(target: str, place: Place) -> bool:
    """Whether an entry's name says that it is about the operator of an overload."""
    return _distance(target, place) < _FAR


_FAR = 2


def _distance(target: str, place: Place) -> int:
    base = target.split(".")[1].strip("_")
    entry = place.entry.removeprefix("torch.ops.aten.").removeprefix("nn.functional.")
    names = {entry, entry.partition(".")[0], entry.rpartition(".")[2], entry.replace(".", "_")}
    names |= {name.strip("_") for name in names} | {place.form.partition(":")[2]}
    if base in names:
        return 0
    return 1 if any(name and (base in name or name in base) for name in names) else _FAR


def rank(target: str, place: Place) -> tuple[bool, int]:
    """Exported calls before those below, then entries named like the operator."""
    return place.below, _distance(target, place)


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(msgspec.json.encode(build()) + b"\n")
