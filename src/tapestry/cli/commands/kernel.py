"""``tapestry kernel new``: the beginning of a hand-written kernel, with the cases that it must pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tapestry.cli import options
from tapestry.cli.console import out, progress
from tapestry.cli.preflight import check_outputs
from tapestry.errors import UsageError

if TYPE_CHECKING:
    from tapestry.suite.case import Suite

kernel = typer.Typer(help="Hand-written kernels.", no_args_is_help=True, rich_markup_mode=None)


@kernel.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]
    pass


@kernel.command()
def new(
    op: Annotated[str, typer.Argument(metavar="OP", help="The operator: gelu, aten.gelu or aten.add.Tensor.")],
    device: Annotated[str, typer.Option("--device", metavar="KIND", help="What it is for: opencl or webgpu.")],
    suite: Annotated[
        Path | None, typer.Option("--suite", metavar="SUITE", help="A suite with cases that it must pass.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="A model to carve the cases from."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.py", help="Where to write it; default: OP_KIND.py.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    trust_pickle: options.TrustPickle = False,
) -> None:
    """Write the beginning of a kernel for OP: pattern, launch, a body to be filled in, and the cases it must pass.

    Without a suite or a model, the cases are made from the operator's schema. The file loads as it is; until its body
    is written, every case says what there is to do.
    """
    from tapestry.cli.documents import write_file
    from tapestry.suite.skeleton.text import language_of, skeleton

    if suite is not None and model is not None:
        raise UsageError("expected --suite or --model, got both")
    language_of(device)
    if output is not None:
        _check_free(output, force)
    name, found, carve = _cases(op, suite, model, trust_pickle)
    folder = suite if suite is not None else Path("suite")
    path = output or Path(f"{_stem(name)}_{device}.py")
    _check_free(path, force)
    commands = [*carve, f"tapestry replay {folder} --to {device} --kernels {path}"]
    cases = [case for case in found.cases if case.op == name]
    made = skeleton(name, cases, device, commands)
    write_file(path, made.text.encode())
    carved = sum(not case.base for case in made.cases)
    out.print(f"{path}: a kernel for {name} on {device}, to be written")
    out.print(f"it must pass {carved} cases and {len(made.cases) - carved} variants, named in the file")
    if made.others:
        count = sum(len(entries) for _, entries in made.others)
        out.print(f"it does not take {count} cases of other types or arguments")
    for line in commands:
        out.print(f"  {line}", soft_wrap=True)


def _check_free(path: Path, force: bool) -> None:
    check_outputs(path)
    if path.exists() and not force:
        raise UsageError(f"expected a new file, got {path}, which is there already: name another with -o, or --force")


def _stem(op: str) -> str:
    space, base, overload = op.split(".")
    names = [*([] if space == "aten" else [space]), base.strip("_"), *([] if overload == "default" else [overload])]
    return "_".join(names).lower()


def _cases(op: str, suite: Path | None, model: str | None, trust_pickle: bool) -> tuple[str, Suite, list[str]]:
    """The overload that is meant, a suite with cases of it, and the commands that store that suite."""
    from tapestry.suite.skeleton.operator import operator_in, operator_of_torch

    if suite is not None:
        from tapestry.suite.store import load_suite

        found = load_suite(suite)
        return operator_in(op, found, str(suite)), found, []
    with progress() as tell:
        if model is not None:
            from tapestry.cli.modelling import capture_model, load
            from tapestry.suite.carve import carve

            loaded = load(model, trust_pickle)
            found = carve(capture_model(loaded), loaded.inputs, progress=tell)
            return operator_in(op, found, model), found, [f"tapestry carve {model} -o suite"]
        from tapestry.suite.from_schema import carve_schema

        name = operator_of_torch(op)
        return name, carve_schema([name], progress=tell), [f"tapestry carve --schema {name} -o suite"]
