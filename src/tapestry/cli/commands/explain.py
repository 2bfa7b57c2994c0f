"""``tapestry explain``: what every backend says of one node, and why."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from tapestry.cli import options
from tapestry.cli.console import number, out, progress, table
from tapestry.cli.documents import ExplainDocument, write_json
from tapestry.cli.environment import environment
from tapestry.cli.preflight import check_outputs, check_target

if TYPE_CHECKING:
    from tapestry.migration.explanation import Explanation


def explain(
    model: options.Model,
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node's id, or a part of it that no other has.")],
    to: options.To = "opencl",
    backend: Annotated[
        list[str] | None, typer.Option("--backend", metavar="NAME", help="Ask this backend; may be repeated.")
    ] = None,
    kernels: options.Kernels = None,
    json: options.Json = None,
    trust_pickle: options.TrustPickle = False,
) -> None:
    """Say what each backend makes of NODE: unsupported, compile error, wrong or right, and why."""
    from tapestry.backends.compiler import Compiler
    from tapestry.cli.modelling import capture_model, load, load_kernel_files
    from tapestry.migration.explain import explain as explain_node
    from tapestry.migration.explain import find_node
    from tapestry.runtime.open import open_device
    from tapestry.runtime.resident import Resident
    from tapestry.suite.carve import carve

    begin = time.perf_counter()
    check_outputs(json)
    for name in backend or [""]:
        check_target(to, name)
    load_kernel_files(kernels or ())
    loaded = load(model, trust_pickle)
    program = capture_model(loaded)
    find_node(program, node)
    resident = Resident(open_device(to))
    try:
        with progress() as tell, Compiler() as compiler:
            suite = carve(program, loaded.inputs, progress=tell)
            found = explain_node(program, node, suite, resident, compiler, tuple(backend or ()), tell)
    finally:
        resident.device.close()
    _show(found)
    if json is not None:
        fields = msgspec.structs.asdict(found)
        seconds = time.perf_counter() - begin
        write_json(
            json,
            ExplainDocument(**fields, command="explain", model=model, seconds=seconds, environment=environment()),
        )


def _show(found: Explanation) -> None:
    came_from = f" (from {found.origin})" if found.origin != found.op else ""
    out.print(Text.assemble((found.node, "bold"), f"  {found.op}{came_from}"))
    out.print(f"  {found.source}" + (f": {found.code}" if found.code else ""))
    for label, values in (("reads", found.inputs), ("gives", found.outputs)):
        out.print(f"  {label} {'; '.join(values)}")
    if found.place != "free":
        out.print(f"  {found.place}: {found.why}")
    elif len(found.alike) > 1:
        out.print(f"  {len(found.alike)} nodes are alike (one key): they share cases, verdicts and kernels")
    out.print()
    rows = [
        [
            entry.backend,
            entry.answer,
            str(entry.cases or ""),
            number(entry.worst.max_rel) if entry.worst else "",
            number(entry.worst.nmse) if entry.worst else "",
            entry.reason,
        ]
        for entry in found.backends
    ]
    table(f"On {found.device}", ("backend", "answer", "cases", "max rel", "NMSE", "why"), rows, numbers=(2, 3, 4))
