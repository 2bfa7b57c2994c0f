"""``tapestry carve``: operator tests from a real run of a model."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapestry.cli import options
from tapestry.cli.console import number, out, progress, size, table
from tapestry.cli.documents import CarveDocument, LeftOutDocument, write_json
from tapestry.cli.environment import environment
from tapestry.cli.preflight import check_outputs, check_suite_path
from tapestry.errors import UsageError

if TYPE_CHECKING:
    from tapestry.suite.case import Suite

#: What the inputs of cases of several calls may take.
PARTS_BYTES = 16 << 20

Progress = Callable[[str, int, int], None]


def carve(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help=f"{options.MODELS} Not needed with --schema.", show_default=False),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where to store the suite.")] = Path(
        "suite"
    ),
    budget: Annotated[int, typer.Option("--budget", metavar="MIB", help="Room for activations, in MiB.", min=1)] = 512,
    variants: options.Variants = 24,
    parts: Annotated[
        int, typer.Option("--parts", metavar="N", help="Cases of several calls to cut from the model; 0: none.", min=0)
    ] = 32,
    schema: Annotated[
        list[str] | None,
        typer.Option(
            "--schema",
            metavar="OP",
            help="Instead of a model: an operator (aten.conv2d.default, aten.add), with calls made from its schema; "
            "repeatable, or several with commas.",
        ),
    ] = None,
    json: options.Json = None,
    trust_pickle: options.TrustPickle = False,
) -> None:
    """Run MODEL on its inputs and store a suite of operator tests."""
    from tapestry.suite.derived import with_variants
    from tapestry.suite.store import save_suite
    from tapestry.suite.variants.derive import Budget

    begin = time.perf_counter()
    check_outputs(json)
    check_suite_path(output)
    ops = [op.strip() for entry in schema or () for op in entry.split(",") if op.strip()]
    if bool(model) == bool(ops):
        raise UsageError(f"expected a MODEL or --schema OP, got {'both' if model else 'neither'}")
    with progress() as tell:
        suite = _of_schema(ops, tell) if ops else _of_model(model or "", budget << 20, parts, trust_pickle, tell)
        if variants:
            suite = with_variants(suite, Budget(cases=variants), progress=tell)
    stored = save_suite(suite, output)
    carved = [case for case in suite.cases if not case.base]
    operators = Counter(case.op for case in carved if "+" not in case.op)
    several = len(carved) - operators.total()
    derived = Counter(case.op for case in suite.cases if case.base)
    rows = [[op, str(count), str(derived[op])] for op, count in sorted(operators.items())]
    table("Cases", ("operator", "carved", "variants"), rows, (1, 2))
    info = suite.info
    ratio = info.dump_bytes / max(1, stored)
    out.print(
        f"{operators.total()} cases of {len(operators)} operators, {derived.total()} variants of them and {several} "
        f"cases of several calls in {output} ({size(stored)}; recording every call would take "
        f"{size(info.dump_bytes)}, {number(ratio, 3)} times as much)"
    )
    out.print(
        f"eager {number(info.eager_seconds)} s, carved run {number(info.carve_seconds)} s "
        f"({number(info.carve_seconds / max(info.eager_seconds, 1e-9))} times), oracle {number(info.finish_seconds)} s"
    )
    if ops:
        for entry in suite.left_out:
            if not entry.key:
                out.print(f"left out: {entry.op}: {entry.reason}")
    left = [LeftOutDocument(entry.op, entry.samples, entry.reason) for entry in suite.left_out]
    over = [entry for entry in left if "budget" in entry.reason]
    if over:
        out.print(f"{sum(entry.samples for entry in over)} samples left out: {over[0].reason}")
    if json is not None:
        write_json(
            json,
            CarveDocument(
                command="carve", model=model, seconds=time.perf_counter() - begin, environment=environment(),
                suite=str(output), cases=len(suite.cases), operators=len(operators), bytes=stored,
                dump_bytes=info.dump_bytes, dump_bytes_activations=info.dump_bytes_activations,
                eager_seconds=info.eager_seconds, carve_seconds=info.carve_seconds,
                finish_seconds=info.finish_seconds, left_out=left, variants=derived.total(), parts=several,
            ),
        )  # fmt: skip


def _of_model(model: str, budget: int, parts: int, trust_pickle: bool, tell: Progress) -> Suite:
    from tapestry.cli.modelling import capture_model, load
    from tapestry.suite.carve import carve as carve_program
    from tapestry.suite.composition.carve import with_parts

    loaded = load(model, trust_pickle)
    program = capture_model(loaded)
    suite = carve_program(program, loaded.inputs, budget, eager=loaded.module, progress=tell)
    return with_parts(suite, program, loaded.inputs, parts, PARTS_BYTES) if parts else suite


def _of_schema(ops: list[str], tell: Progress) -> Suite:
    from tapestry.suite.from_schema import carve_schema

    return carve_schema(ops, progress=tell)
