"""The top-level API: what ``import tapestry`` offers, and that it costs neither torch nor a compiler."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import tapestry

HEAVY = ("torch", "transformers", "tvm", "networkx", "pyopencl", "jinja2")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("module", ["tapestry", "tapestry.errors", "tapestry.runtime", "tapestry.cli"])
def test_importing_the_base_loads_no_extra(module: str) -> None:
    done = run_python(f"import {module}, sys; print(*sorted(set({HEAVY!r}) & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", [name for name in tapestry.__all__ if name not in {"errors", "__version__"}])
def test_public_names_load_on_first_use_and_stay(name: str) -> None:
    value = getattr(tapestry, name)
    assert value.__name__ == name
    assert vars(tapestry)[name] is value


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'weave'"):
        tapestry.weave  # noqa: B018
    assert set(tapestry.__all__) <= set(dir(tapestry))


@pytest.mark.parametrize(("missing", "name"), [("torch", "capture"), ("torch", "Program")])
def test_without_an_extra_a_public_name_says_what_to_install(missing: str, name: str) -> None:
    done = run_python(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import tapestry, tapestry.errors\n"
        f"try: tapestry.{name}\n"
        "except tapestry.errors.EnvironmentProblem as problem: print(problem)"
    )
    assert done.returncode == 0, done.stderr
    assert f"tapestry.{name} needs {missing}" in done.stdout
    assert "pip install 'tapestry-ml[bringup]'" in done.stdout


def test_version_is_the_distributions() -> None:
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'\nversion = "{tapestry.__version__}"\n' in pyproject
    assert importlib.metadata.version("tapestry-ml") == tapestry.__version__
