"""``tapestry backends``: the ways to compute regions, and what is missing for those that cannot be used."""

from __future__ import annotations

import time

from tapestry.cli import options
from tapestry.cli.console import table
from tapestry.cli.documents import BackendDocument, BackendsDocument, write_json
from tapestry.cli.environment import environment, installed
from tapestry.cli.preflight import check_outputs
from tapestry.errors import EnvironmentProblem


def backends(json: options.Json = None) -> None:
    """List the backends that compile operators for devices."""
    if installed("torch") is None:
        raise EnvironmentProblem("backends need PyTorch; install it with\n  pip install 'tapestry-ml[bringup]'")
    check_outputs(json)
    begin = time.perf_counter()
    found = _examine()
    rows = [
        [entry.name, ", ".join(entry.device_kinds), entry.fingerprint or "" if entry.ready else entry.reason]
        for entry in found
    ]
    table("Backends", ("name", "devices", "versions, or what to install"), rows)
    if json is not None:
        seconds = time.perf_counter() - begin
        document = BackendsDocument(command="backends", seconds=seconds, environment=environment(), backends=found)
        write_json(json, document)


def _examine() -> list[BackendDocument]:
    from tapestry.backends.registry import backend_names, get_backend

    found: list[BackendDocument] = []
    for name in backend_names():
        try:
            backend = get_backend(name)
        except EnvironmentProblem as error:
            found.append(BackendDocument(name, [], False, str(error), None))
            continue
        state = backend.availability()
        fingerprint = backend.fingerprint() if state.ready else None
        found.append(BackendDocument(name, sorted(backend.device_kinds), state.ready, state.reason, fingerprint))
    return found
