"""What a command checks before it starts long work: can it write its files, is there such a device and backend.

Not here: the work, and the errors that only it can find.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tapestry.errors import EnvironmentProblem, UsageError
from tapestry.runtime.names import parse_device_name


def check_outputs(*paths: Path | None) -> None:
    """Make the folders of these files and try to write there. UsageError for a path that cannot be written."""
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise UsageError(f"cannot write {path}: expected a file, got a folder")
        if path.exists() and not path.is_file():
            continue  # a pipe or a device: written to as it is
        probe = path.with_name(f".{path.name[:64]}.probe")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def check_suite_path(path: Path) -> None:
    """UsageError when a suite cannot be stored here: something else lies there, or its parent cannot be written."""
    if path.exists() and not (path / "suite.json").exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"expected a new folder or an old suite at {path}, got something else; choose another with -o")
    check_outputs(path.with_name(f".{path.name}.suite"))


def check_report(path: Path | None) -> None:
    """EnvironmentProblem when a report is wanted and what renders it is missing."""
    if path is not None and not _found("jinja2"):
        raise EnvironmentProblem("the HTML report needs jinja2: pip install 'tapestry-ml[report]'")


def check_target(device: str, backend: str) -> str:
    """The device's name as it may be shown and stored: without a token.

    UsageError for a name that is none and for a backend that does not exist; EnvironmentProblem for one that is not
    ready.
    """
    name = parse_device_name(device)
    if backend:
        from tapestry.backends.registry import ready_backends

        ready_backends(backend)
    return str(name)


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
