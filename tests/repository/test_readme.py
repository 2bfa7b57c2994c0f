"""The README's Python runs as it stands: its blocks marked ``python run``, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"^```python run\n(.*?)^```$", re.M | re.S)


@pytest.mark.opencl
def test_the_readmes_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = README.read_text()
    names: dict[str, object] = {}
    blocks = list(BLOCK.finditer(text))
    assert blocks
    for block in blocks:
        # Padded so that a failure names the README's own line.
        code = "\n" * text.count("\n", 0, block.start(1)) + block[1]
        exec(compile(code, str(README), "exec"), names)  # noqa: S102
    assert (tmp_path / "placement.json").is_file()


def test_links_to_files_in_the_repository_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README.read_text())
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
