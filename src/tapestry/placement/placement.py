"""Placement: which nodes of a program run as which regions, on which backend, with which options, on which device.

A placement is plain data that is saved and loaded. Not here: making one (migration, search) and running one (build).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from tapestry.backends.base import Backend, Options
from tapestry.backends.cache import replace_file
from tapestry.errors import FormatError, UsageError
from tapestry.program.program import Program

VERSION = 1
FORMAT = "tapestry-placement"


class PlacedRegion(msgspec.Struct, frozen=True):
    """Nodes that one backend compiles together, in program order. ``options`` are the backend's, by name."""

    nodes: tuple[str, ...]
    backend: str
    device: str
    options: dict[str, str | int | float | bool] = {}


class Placement(msgspec.Struct, frozen=True):
    """Every node that is in no region stays on the source. ``versions``: backend → its fingerprint when it was made."""

    program: str
    graph_hash: str
    regions: tuple[PlacedRegion, ...] = ()
    versions: dict[str, str] = {}
    format: str = FORMAT
    version: int = VERSION

    def save(self, path: Path | str) -> None:
        """Write the placement as JSON, atomically. UsageError when the path cannot be written."""
        target = Path(path)
        data = msgspec.json.format(msgspec.json.encode(self), indent=1)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, data)
        except OSError as error:
            raise UsageError(f"cannot store a placement at {target}: {error.strerror or error}") from error

    @staticmethod
    def load(path: Path | str) -> Placement:
        """Read a placement. UsageError when there is none; FormatError when it is damaged or newer."""
        source = Path(path)
        try:
            data = source.read_bytes()
        except OSError as error:
            raise UsageError(f"expected a placement at {source}: {error}") from error
        try:
            found = msgspec.json.decode(data, type=Placement)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FormatError(f"{source} is not a placement: {error}") from error
        if found.format != FORMAT:
            raise FormatError(f"{source}: expected format {FORMAT!r}, got {found.format!r}")
        if found.version > VERSION:
            raise FormatError(
                f"{source}: this release reads placements up to version {VERSION}, got {found.version}; "
                "update tapestry-ml"
            )
        return found

    def check(self, program: Program) -> None:
        """UsageError when the placement is of another program, or names nodes that cannot be moved."""
        if self.graph_hash != program.graph_hash:
            raise UsageError(
                f"the placement was made for another graph: expected {self.graph_hash[:12]}… ({self.program}), "
                f"got {program.graph_hash[:12]}… ({program.name})"
            )
        movable = set(program.placeable)
        for region in self.regions:
            wrong = [node_id for node_id in region.nodes if node_id not in movable]
            if wrong:
                raise UsageError(f"node {wrong[0]} cannot be placed on {region.device}")


def on_source(program: Program) -> Placement:
    """The placement that leaves everything on the source."""
    return Placement(program.name, program.graph_hash)


def place_on(
    program: Program, regions: Iterable[Iterable[str]], backend: Backend, options: Options, device: str
) -> Placement:
    """A placement of these regions on one backend and device; the rest stays on the source."""
    chosen = option_values(options)
    placed = tuple(
        PlacedRegion(tuple(sorted(nodes, key=program.position.__getitem__)), backend.name, device, chosen)
        for nodes in regions
    )
    return Placement(program.name, program.graph_hash, placed, {backend.name: backend.fingerprint()})


def option_values(options: Options) -> dict[str, str | int | float | bool]:
    """Options as plain values."""
    return msgspec.to_builtins(options)


def read_options(backend: Backend, values: Mapping[str, object]) -> Options:
    """Options of this backend from plain values. UsageError for a name or value that it does not have."""
    kind = type(backend.options()[0])
    unknown = sorted(set(values) - set(kind.__struct_fields__))
    if unknown:
        known = ", ".join(kind.__struct_fields__) or "none"
        raise UsageError(f"backend {backend.name} does not take the option {unknown[0]!r}; it has: {known}")
    try:
        return msgspec.convert(dict(values), type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"backend {backend.name} does not take the options {dict(values)}: {error}") from error
