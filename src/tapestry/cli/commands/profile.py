"""``tapestry profile``: what every region takes on a device, how near that is to its roofs, and what is to be saved."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from tapestry.cli import options
from tapestry.cli.console import block, out, progress, table
from tapestry.cli.documents import ProfileDocument, write_json
from tapestry.cli.environment import environment, shown_command
from tapestry.cli.preflight import check_outputs, check_report, check_target
from tapestry.report.numbers import UNITS, duration, of_roof, rate
from tapestry.report.sources import source_line

if TYPE_CHECKING:
    from tapestry.profiling.result import ProfileResult, RegionProfile, Timing

#: Rows of the table of regions; all are in the JSON and the report.
_SHOWN = 15


def profile(
    model: options.Model,
    to: options.To = "opencl",
    backend: options.Backend = "",
    option: options.Option = None,
    kernels: options.Kernels = None,
    placement: Annotated[
        Path | None,
        typer.Option("--placement", metavar="FILE", help="Time the regions of this placement (migrate -o)."),
    ] = None,
    json: options.Json = None,
    report: options.Report = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure the device's roofs again.")] = False,
    trust_pickle: options.TrustPickle = False,
) -> None:
    """Time every region of MODEL on a device, against what the device can do at most."""
    from tapestry.backends.compiler import Compiler
    from tapestry.backends.registry import default_backend, ready_backends
    from tapestry.cli.choices import backend_options
    from tapestry.cli.modelling import capture_model, load, load_kernel_files
    from tapestry.placement.placement import Placement
    from tapestry.profiling.profile import profile as profile_program
    from tapestry.runtime.open import open_device
    from tapestry.runtime.resident import Resident

    begin = time.perf_counter()
    check_outputs(json, report)
    check_report(report)
    check_target(to, backend)
    load_kernel_files(kernels or ())
    chosen = backend_options(backend, option or ())
    placed = Placement.load(placement) if placement is not None else None
    loaded = load(model, trust_pickle)
    program = capture_model(loaded)
    # Before the device is opened: its worker loads only what backends known by then may load.
    named = ready_backends(backend) if backend else ()
    resident = Resident(open_device(to))
    try:
        with progress() as tell, Compiler() as compiler:
            backends = named or ready_backends(default_backend(resident.device.info.kind))
            result = profile_program(
                program, loaded.inputs, resident, backends, compiler, chosen, placed, fresh=fresh, progress=tell
            )
    finally:
        resident.device.close()
    document = ProfileDocument(
        **structs.asdict(result),
        command="profile",
        model=model,
        seconds=time.perf_counter() - begin,
        environment=environment(),
        report=str(report) if report else None,
    )
    if report is not None:
        _write_report(report, document)
    if json is not None:
        write_json(json, document)
    _show(document)
    for label, path in (("report", report), ("JSON", json)):
        if path is not None:
            out.print(f"{label}: {path}")


def _write_report(path: Path, document: ProfileDocument) -> None:
    from tapestry.report import ReportHeader, write_profile_report

    header = ReportHeader(
        model=document.model or "",
        date=datetime.now(UTC).astimezone(),
        command=shown_command(),
        environment=document.environment,
        seconds=document.seconds,
    )
    write_profile_report(path, document, header)


def _show(result: ProfileResult) -> None:
    roofs = result.roofs
    out.print(
        f"Roofs of {result.target}: {rate(roofs.bytes_per_second)} GB/s ({roofs.copy}), "
        f"{rate(roofs.flops_per_second)} GFLOP/s ({roofs.arithmetic})\n"
    )
    rows = [
        [
            _short(entry.op),
            str(entry.calls or ""),
            duration(entry.seconds) if entry.calls else "",
            of_roof(entry.roof_share),
            duration(entry.headroom_seconds) if entry.calls else "",
            f"{entry.source_calls}: {duration(entry.source_seconds)}" if entry.source_calls else "",
        ]
        for entry in result.operators
    ]
    table(
        "Operators, by what kernels at the roof would save in a run of the model",
        ("operator", "calls", "time", "of roof", "headroom", "on source"), rows, numbers=(1, 2, 3, 4, 5),
    )  # fmt: skip
    there = [row for row in result.regions if row.place == "target"]
    shown = there[:_SHOWN]
    title = f"Regions: the {len(shown)} with the most headroom of {len(there)}" if shown != there else "Regions"
    table(
        f"{title} (seconds of one call, by the {result.clock}'s clock)",
        ("calls", "region", "time", "low..high", "GB/s", "GFLOP/s", "of roof"),
        [_row(row) for row in shown], numbers=(0, 2, 3, 4, 5, 6),
    )  # fmt: skip
    for row in result.regions:
        if row.place == "source":
            nodes = [node for site in row.sites for node in site.nodes]
            more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
            block(
                f"Stays on the source: {', '.join(map(_short, row.ops))} ({row.calls})",
                [
                    ("reason", row.reason),
                    ("nodes", ", ".join(nodes[:3]) + more),
                    ("source", row.sites[0].source),
                    ("time", f"{duration(row.seconds)} in a run"),
                ],
            )
    if any(row.place == "source" for row in result.regions):
        out.print()
    unlisted = f"; {result.unlisted} nodes launch nothing" if result.unlisted else ""
    out.print(
        f"{duration(result.target_seconds)} on {result.target} with {result.backend or 'no backend'}, "
        f"{duration(result.headroom_seconds)} of it headroom; {duration(result.source_seconds)} on the source{unlisted}"
    )


def _row(row: RegionProfile) -> list[str]:
    timing = row.timing
    assert timing is not None, "what runs on the target was timed"
    place = row.sites[0].module or source_line(row.sites[0].source).name
    return [
        str(row.calls),
        f"{_short(row.kind)} {place}",
        duration(timing.median),
        _spread(timing),
        rate(row.bytes_per_second),
        rate(row.flops_per_second),
        of_roof(row.roof_share),
    ]


def _spread(timing: Timing) -> str:
    """The least and the most measured, in the unit of the median."""
    _, unit = duration(timing.median).split()
    low, high = (seconds / UNITS[unit] for seconds in (timing.low, timing.high))
    return f"{low:.3g}..{high:.3g}"


def _short(op: str) -> str:
    return op.replace("aten.", "").replace(".default", "")
