"""``tapestry devices``: the devices of this machine, and why other kinds have none."""

from __future__ import annotations

import time

from tapestry.cli import options
from tapestry.cli.console import table
from tapestry.cli.documents import DeviceDocument, DevicesDocument, write_json
from tapestry.cli.environment import environment
from tapestry.cli.preflight import check_outputs
from tapestry.runtime.open import list_devices


def devices(json: options.Json = None) -> None:
    """List the devices that models can be moved to."""
    check_outputs(json)
    begin = time.perf_counter()
    found = [
        DeviceDocument(entry.name, entry.kind, entry.description, entry.ready, entry.reason) for entry in list_devices()
    ]
    rows = [[entry.name, entry.kind, entry.description if entry.ready else entry.reason] for entry in found]
    table("Devices", ("name", "kind", "description, or why not"), rows)
    if json is not None:
        seconds = time.perf_counter() - begin
        write_json(json, DevicesDocument(command="devices", seconds=seconds, environment=environment(), devices=found))
