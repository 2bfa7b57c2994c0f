"""docs/backends.md is run as it stands: its files are written to a folder, its ``python run`` blocks run there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[2] / "docs" / "backends.md"
FILES = re.compile(r"^```python file=(\S+)\n(.*?)^```$", re.M | re.S)
HOST = re.compile(r"^```python run\n(.*?)^```$", re.M | re.S)
OPENCL = re.compile(r"^```python run opencl\n(.*?)^```$", re.M | re.S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.findall(GUIDE.read_text()):
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, blocks: list[str]) -> None:
    assert blocks
    script = folder / "guide.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_numpy_backend_is_under_a_hundred_lines(folder: Path) -> None:
    assert len((folder / "numpy_backend.py").read_text().splitlines()) < 100


def test_the_backend_migrates_what_it_takes(folder: Path) -> None:
    run(folder, HOST.findall(GUIDE.read_text()))


@pytest.mark.opencl
def test_the_kernels_are_used(folder: Path) -> None:
    run(folder, OPENCL.findall(GUIDE.read_text()))
