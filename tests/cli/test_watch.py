"""``tapestry migrate --watch``: an edited kernel, a helper beside it and a source that it reads are seen; what does not
load or crashes the device is reported; the exit code is that of the last migration.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest

from support.command import Tapestry

MODEL = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU()).eval(), (torch.randn(2, 4),)
"""
KERNEL = """
from math import ceil
from pathlib import Path

import helper
from tapestry.backends.kernels.declare import Dispatch, kernel
from tapestry.backends.rules import MatchView, any_, dtypes, op


@kernel(device="opencl", pattern=op("aten.gelu", any_("x"), approximate="none"), when=dtypes("float32"))
def gelu(m: MatchView) -> Dispatch:
    source = Path(__file__).with_name("body.cl").read_text()
    count = m.spec("x").numel
    return Dispatch(source, "gelu", ("x", "out"), (ceil(count / 64),), (64,), {"COUNT": count, "HALF": helper.HALF})
"""
BODY = """
__kernel void gelu(__global const float* x, __global float* out) {
    int i = get_global_id(0);
    if (i < COUNT) out[i] = HALF * x[i] * erfc(-x[i] * 0.70710678f);
}
"""
#: Ends every round.
WATCHING = "watching "


class Watched:
    """A running command, whose output is read round by round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = ["migrate", f"{folder}/model.py:make", "--to", "opencl", "--kernels", f"{folder}/mine.py", "--watch"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from tapestry.cli import main; main()", *command, "--journal", f"{folder}/journal"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1,
            env={**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def close(self) -> None:
        """End the process, if it has not ended, and what reads its output."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def round(self) -> str:
        """All that is printed until the files are watched again."""
        found: list[str] = []
        while not found or not found[-1].startswith(WATCHING):
            found.append(self._lines.get(timeout=200))
            assert found[-1], "".join(found)
        return "".join(found)

    def save(self, name: str, text: str) -> str:
        """Save a file as editors do, by putting a new one in its place; returns what is printed."""
        beside = self.folder / f".{name}.new"
        beside.write_text(text)
        beside.replace(self.folder / name)
        return self.round()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "mine.py").write_text(KERNEL)
    (tmp_path / "helper.py").write_text("HALF = 0.5\n")
    (tmp_path / "body.cl").write_text(BODY)
    found = Watched(tmp_path)
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.timeout(600)
def test_a_kernel_is_edited(watched: Watched) -> None:
    text = watched.round()
    assert "The whole model on all inputs: right" in text
    assert all(name in text.splitlines()[-1] for name in ("mine.py", "helper.py", "body.cl"))

    text = watched.save("helper.py", "HALF = 0.6\n")  # of the same length: nothing but its content tells
    assert "worse: aten.gelu.default" in text
    assert "new finding: fail: aten.gelu.default (kernel)" in text
    assert "the whole model is right" in text  # with the compiler in its place

    text = watched.save("helper.py", "HALF = 0.5\n")
    assert "better: aten.gelu.default" in text
    assert "gone: fail: aten.gelu.default (kernel)" in text
    assert "0 cases and 0 of" in text, "what was known before is not run again"

    text = watched.save("mine.py", KERNEL + ")\n")
    assert "SyntaxError" in text
    assert "mine.py, line" in text
    text = watched.save("mine.py", KERNEL + "\n")
    assert "no case is better or worse" in text

    text = watched.save("body.cl", BODY.replace("out[i]", "out[i - (1 << 30)]"))
    assert "worse: aten.gelu.default" in text
    assert re.search(r"now +crashed", text)

    text = watched.save("body.cl", BODY.replace("0.70710678f", "0.7071067811865476f"))
    assert "better: aten.gelu.default" in text
    assert "the whole model is right" in text
    watched.process.send_signal(signal.SIGINT)
    assert watched.process.wait(timeout=60) == 0


@pytest.mark.slow
def test_watch_without_kernels(tapestry: Tapestry, factories: str) -> None:
    ended = tapestry("migrate", f"{factories}:small", "--to", "cpu", "--watch")
    assert ended.code == 2
    assert "--watch looks at kernel files: expected --kernels FILE.py" in " ".join(ended.err.split())
