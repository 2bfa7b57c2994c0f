"""``tapestry place``: the fastest placement of a model over backends and devices, within an error budget."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapestry.cli import options
from tapestry.cli.console import number, out, table
from tapestry.cli.documents import PlaceDocument, write_json
from tapestry.cli.environment import environment
from tapestry.cli.preflight import check_outputs, check_target
from tapestry.placement.search.record import PlaceResult

if TYPE_CHECKING:
    from tapestry.backends.base import Backend

#: Regions that are shown; all are in the JSON and the placement.
_SHOWN = 12


def place(
    model: options.Model,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="DEVICE", help="A device to place on, repeatable; default: cpu."),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            metavar="NAME",
            help="A backend to place on, repeatable, or several with commas; default: all that are installed.",
        ),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            "--budget", metavar="B", help="The largest relative error of the outputs; 0: at reference precision.", min=0
        ),
    ] = 0.0,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="Time for the search.", min=1)] = 600.0,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Store the placement.")] = None,
    json: options.Json = None,
    trust_pickle: options.TrustPickle = False,
) -> None:
    """Search the fastest placement of MODEL. Ctrl-C gives the best so far."""
    begin = time.perf_counter()
    devices = list(dict.fromkeys(to or ["cpu"]))
    names = [name.strip() for entry in backend or () for name in entry.split(",") if name.strip()]
    check_outputs(json, output)
    for device in devices:
        check_target(device, ",".join(names))
    from tapestry.cli.modelling import capture_model, load
    from tapestry.placement.search.place import place as search
    from tapestry.placement.search.search import Limits

    limits = Limits(budget=budget, seconds=seconds)
    backends = _backends(names)
    loaded = load(model, trust_pickle)
    program = capture_model(loaded)
    found = search(program, loaded.inputs, backends, devices, limits)
    if output is not None:
        found.placement.save(output)
    fields = {name: getattr(found, name) for name in PlaceResult.__struct_fields__}
    document = PlaceDocument(
        **fields, command="place", model=model, seconds=time.perf_counter() - begin, environment=environment()
    )
    _show(document, output)
    if json is not None:
        write_json(json, document)


def _backends(names: list[str]) -> tuple[Backend, ...]:
    from tapestry.backends.registry import backend_names, get_backend, ready_backend

    if names:
        return tuple(ready_backend(name) for name in dict.fromkeys(names))
    known = [get_backend(name) for name in backend_names()]
    return tuple(backend for backend in known if backend.availability().ready)


def _show(document: PlaceDocument, output: Path | None) -> None:
    rows = [
        [entry.backend, entry.options or "-", _ms(entry.latency_ms), _error(entry.error), _verdict(entry.within_budget)]
        for entry in document.singles
    ]
    table("Every backend alone", ("backend", "options", "ms", "error", "budget"), rows, (2, 3))
    shown = [
        [f"{entry.nodes[0]} +{len(entry.nodes) - 1}", entry.backend, entry.options, _ms(entry.latency_ms)]
        for entry in document.regions[:_SHOWN]
    ]
    if shown:
        table(f"Regions of the winner ({len(document.regions)})", ("nodes", "backend", "options", "ms"), shown, (3,))
    best, held_out = document.best_single, document.error.held_out
    if best is not None and document.speedup is not None:
        out.print(
            f"{_ms(document.latency_ms)} ms a run, {number(document.speedup, 3)} times as fast as the best single "
            f"backend ({best.backend}, {_ms(best.latency_ms)} ms)"
        )
    out.print(
        f"largest relative error {_error(document.error.search)}, on inputs held out {_error(held_out)}; "
        f"gap of the exact stage {document.gap:.1%}; {document.candidates} candidates, {document.refused} refused, "
        f"{document.measured} measurements"
    )
    if document.ended != "done":
        out.print(f"ended early ({document.ended}): {document.not_measured} candidates were not measured")
    if output is not None:
        out.print(f"placement in {output}")


def _ms(value: float | None) -> str:
    return "-" if value is None else number(value, 3)


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _verdict(within: bool) -> str:
    return "within" if within else "over"
