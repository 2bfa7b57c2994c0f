"""The base install has no torch: the command line still starts, and says what to install where torch is needed."""

from __future__ import annotations

import subprocess
import sys

#: Stands in for an install without the extra ``bringup``: every import of torch fails, wherever it is made.
BLOCK_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "networkx", "transformers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
sys.argv = ["tapestry", *sys.argv[1:]]
from tapestry.cli import main
sys.exit(main())
"""


def tapestry(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", BLOCK_TORCH, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def test_help_works_without_torch() -> None:
    done = tapestry("--help")
    assert done.returncode == 0, done.stderr
    assert "migrate" in done.stdout


def test_devices_works_without_torch() -> None:
    done = tapestry("devices")
    assert done.returncode == 0, done.stderr
    assert "cpu" in done.stdout


def test_migrate_without_torch_says_what_to_install() -> None:
    done = tapestry("migrate", "demo:minilm", "--to", "opencl")
    assert done.returncode == 3, done.stderr
    assert "pip install 'tapestry-ml[bringup" in done.stderr
    assert "Traceback" not in done.stderr
