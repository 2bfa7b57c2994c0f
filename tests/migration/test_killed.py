"""``tapestry migrate`` as a process: killed at random moments, interrupted, started twice; nothing finished is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = """
import time
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16), torch.nn.LayerNorm(16)
    def forward(self, x):
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))

def make():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return torch.nn.Sequential(*[Block() for _ in range(12)]).eval(), (torch.randn(4, 16),)

def other():
    return torch.nn.Linear(2, 2), (torch.zeros(1, 2),)
"""


class Job:
    """One command line, to be run again and again."""

    def __init__(self, folder: Path, journal: Path, factory: str = "make") -> None:
        self.model = folder / "model.py"
        self.model.write_text(MODEL)
        self.output = folder / f"{journal.name}.json"
        self.command = [
            sys.executable, "-c", "from tapestry.cli import main; main()", "migrate", f"{self.model}:{factory}",
            "--to", "cpu", "--journal", str(journal), "--json", str(self.output),
        ]  # fmt: skip

    def start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command, stdout=pipe, stderr=pipe, text=True, env=environment)

    def finish(self) -> dict[str, Any]:
        process = self.start()
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
        return json.loads(self.output.read_text())


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """The document without what a resumed run may have otherwise: times, and runs that it did not need."""
    timed = {"seconds", "program_runs", "journal", "mixed"}
    found = {key: value for key, value in document.items() if key not in timed}
    found["steps"] = [
        {key: value for key, value in step.items() if key not in {"seconds", "resumed"}} for step in found["steps"]
    ]
    return found


def size(journal: Path) -> int:
    return sum(path.stat().st_size for path in journal.glob("*.bin"))


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.thorough)])
def test_killed_at_random_moments(tmp_path: Path, kills: int) -> None:
    undisturbed = Job(tmp_path, tmp_path / "undisturbed")
    begin = time.monotonic()
    want = undisturbed.finish()
    whole = time.monotonic() - begin
    journal = tmp_path / "journal"
    job = Job(tmp_path, journal)
    generator = random.Random(1)
    sizes = [0]
    killed = 0
    while killed < kills:
        process = job.start()
        # The first kills fall into the whole length, start-up included; later ones where the work is.
        low = 0.1 if killed == 0 else 0.5
        time.sleep(generator.uniform(low, 1.0) * whole)
        alive = process.poll() is None
        process.kill()
        process.communicate()
        killed += 1
        sizes.append(size(journal))
        assert sizes[-1] >= sizes[-2]  # nothing finished is lost
        if not alive:
            break
    got = job.finish()
    assert comparable(got) == comparable(want)
    again = job.finish()
    assert comparable(again) == comparable(want)
    assert all(step["resumed"] for step in again["steps"])
    assert again["program_runs"] == 1  # the final check
    assert size(journal) == size(tmp_path / "undisturbed")  # every case and step was run and written once


def _running(tmp_path: Path) -> tuple[Job, subprocess.Popen[str]]:
    """A job that has begun to write its journal."""
    job = Job(tmp_path, tmp_path / "journal")
    process = job.start()
    limit = time.monotonic() + 100
    while size(tmp_path / "journal") < 500:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)
    return job, process


def test_ctrl_c_and_a_second_one_at_once(tmp_path: Path) -> None:
    job, process = _running(tmp_path)
    second = Job(tmp_path, tmp_path / "journal").start()
    # The second one starts while the first is stopped, so that it cannot have ended meanwhile.
    process.send_signal(signal.SIGSTOP)
    _, errors = second.communicate(timeout=100)
    assert second.returncode == 2
    assert "in use by another process" in errors
    assert "Traceback" not in errors
    before = size(tmp_path / "journal")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert "journal" in errors
    assert "Traceback" not in errors
    assert size(tmp_path / "journal") >= before
    document = job.finish()
    assert document["check"]["good"]

    other = Job(tmp_path, tmp_path / "journal", "other").start()
    _, errors = other.communicate(timeout=100)
    assert other.returncode == 2
    assert "belongs to another job" in errors


def test_no_worker_outlives_a_killed_job(tmp_path: Path) -> None:
    _, process = _running(tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate()
    limit = time.monotonic() + 20
    while any(_alive(int(pid)) for pid in children):
        assert time.monotonic() < limit
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
