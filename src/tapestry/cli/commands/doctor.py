"""``tapestry doctor``: is everything here that bringing up a model needs, and does it work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import platformdirs
import typer
from rich.text import Text

from tapestry.cli import options
from tapestry.cli.console import out, table
from tapestry.cli.documents import DoctorDocument, Examined, write_json
from tapestry.cli.environment import environment, installed
from tapestry.cli.preflight import check_outputs

#: What is needed for bringing up a model on OpenCL or WebGPU: module, distribution, extra.
_NEEDED = (
    ("torch", "torch", "bringup"),
    ("networkx", "networkx", "bringup"),
    ("tvm", "apache-tvm", "tvm"),
    ("pyopencl", "pyopencl", "opencl"),
    ("wgpu", "wgpu", "webgpu"),
    ("transformers", "transformers", "hf"),
    ("jinja2", "jinja2", "report"),
)


def doctor(json: options.Json = None) -> None:
    """Examine this machine: packages, devices, a small model moved to each of them, folders."""
    check_outputs(json)
    begin = time.perf_counter()
    checks = [*_packages(), *_folders(), *_devices()]
    colours = {"good": "green", "missing": "yellow", "broken": "red"}
    table(
        "Doctor",
        ("", "state", "detail"),
        [[entry.name, Text(entry.state, colours[entry.state]), entry.detail] for entry in checks],
    )
    bad = [entry for entry in checks if entry.state != "good"]
    out.print("everything works" if not bad else f"{len(bad)} of {len(checks)} need attention")
    if json is not None:
        seconds = time.perf_counter() - begin
        write_json(json, DoctorDocument(command="doctor", seconds=seconds, environment=environment(), checks=checks))
    raise typer.Exit(3 if bad else 0)


def _packages() -> Iterator[Examined]:
    for module, distribution, extra in _NEEDED:
        if find_spec(module) is None:
            yield Examined(distribution, "missing", f"pip install 'tapestry-ml[{extra}]'")
        else:
            yield Examined(distribution, "good", installed(distribution) or "installed")


def _folders() -> Iterator[Examined]:
    for name, folder in (
        ("cache folder", Path(platformdirs.user_cache_dir("tapestry"))),
        ("state folder", Path(platformdirs.user_state_dir("tapestry"))),
    ):
        yield _tried(name, lambda folder=folder: _write_in(folder))


def _write_in(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / ".doctor"
    probe.write_bytes(b"")
    probe.unlink()
    return str(folder)


def _devices() -> Iterator[Examined]:
    from tapestry.runtime.open import list_devices

    for entry in list_devices():
        if not entry.ready:
            yield Examined(entry.name, "missing", entry.reason)
        elif find_spec("torch") is None:
            yield Examined(entry.name, "good", f"{entry.description} (listed only: PyTorch is missing)")
        else:
            yield _tried(entry.name, lambda entry=entry: f"{entry.description}; {_move_something(entry.name)}")


def _move_something(device: str) -> str:
    """Move a small model to the device; what it says when that works."""
    import torch

    from tapestry.migration.migrate import migrate

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).eval()
    generator = torch.Generator().manual_seed(0)
    begin = time.perf_counter()
    with migrate(model, device, [(torch.randn(4, 8, generator=generator),)]) as moved:
        if not moved.result.good:
            raise RuntimeError(f"a small model is wrong on it: {moved.result.findings or moved.result.check}")
        count = moved.result.coverage.compute_on_target
    return f"a small model ({count} operators) is right on it, moved in {time.perf_counter() - begin:.1f} s"


def _tried(name: str, attempt: Callable[[], str]) -> Examined:
    try:
        return Examined(name, "good", attempt())
    except Exception as error:
        return Examined(name, "broken", f"{type(error).__name__}: {error}")
