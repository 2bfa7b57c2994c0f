"""``tapestry devices``: the devices of this machine, and why other kinds have none; others by their names."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tapestry.cli import options
from tapestry.cli.console import table
from tapestry.cli.documents import DeviceDocument, DevicesDocument, write_json
from tapestry.cli.environment import environment
from tapestry.cli.preflight import check_outputs
from tapestry.runtime.open import list_devices, look_at


def devices(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="DEVICE", help="Look at these instead: ws://HOST:PORT/opencl:0?token=T."),
    ] = None,
    json: options.Json = None,
) -> None:
    """List the devices of this machine that models can be moved to, or look at those named."""
    check_outputs(json)
    begin = time.perf_counter()
    listed = [look_at(name) for name in names] if names else list_devices()
    found = [DeviceDocument(entry.name, entry.kind, entry.description, entry.ready, entry.reason) for entry in listed]
    rows = [[entry.name, entry.kind, entry.description if entry.ready else entry.reason] for entry in found]
    table("Devices", ("name", "kind", "description, or why not"), rows)
    if json is not None:
        seconds = time.perf_counter() - begin
        write_json(json, DevicesDocument(command="devices", seconds=seconds, environment=environment(), devices=found))
