"""docs/bring-up.md is run as it stands: its files are written, its commands run and end as it says, in its order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import Tapestry
from tapestry.backends.kernels import declare

pytestmark = [pytest.mark.slow, pytest.mark.opencl, pytest.mark.timeout(600)]

GUIDE = Path(__file__).parents[2] / "docs" / "bring-up.md"
#: A file with its text, or a command with its exit code (0 unless it says another) and parts of what it prints.
BLOCKS = re.compile(
    r"^```(?:python file=(?P<file>\S+)|console run(?: exit=(?P<code>\d+))?)\n(?P<text>.*?)^```$", re.M | re.S
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        declare.forget(str(path.resolve()))


def unwrapped(text: str) -> str:
    """The text on one line: where the terminal broke lines does not matter."""
    return " ".join(text.split())


def test_the_guide(tapestry: Tapestry, folder: Path) -> None:
    commands = 0
    for block in BLOCKS.finditer(GUIDE.read_text()):
        if block["file"]:
            (folder / block["file"]).write_text(block["text"])
            continue
        first, *lines = block["text"].splitlines()
        program, *arguments = shlex.split(first.removeprefix("$ "))
        assert (first[:2], program) == ("$ ", "tapestry")
        for entry in [*folder.glob("*.py")]:  # each command is a process of its own for a reader
            declare.forget(str(entry.resolve()))
        ended = tapestry(*arguments)
        assert ended.code == int(block["code"] or 0), (first, ended.out, ended.err)
        printed = unwrapped(ended.out)
        for part in unwrapped(" … ".join(lines)).split("…"):
            assert part.strip() in printed, (first, part, ended.out)
        commands += 1
    assert commands == 7
    bundle = {path.name for path in (folder / "gelu-bundle").iterdir()}
    assert {"README.md", "repro.py"} <= bundle
