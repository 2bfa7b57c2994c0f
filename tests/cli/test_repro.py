"""``tapestry repro``: real failures of a runtime, reduced to a directory; and what it says when nothing fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command import Tapestry
from support.host_bench import ready
from tapestry.suite.repro.bundle import read_record

pytestmark = pytest.mark.slow

MODELS = Path(__file__).parents[1] / "support" / "fault_models.py"


@pytest.fixture
def relu(tapestry: Tapestry, tmp_path: Path) -> Path:
    """A suite of one case, which OpenVINO gets wrong: relu of NaN (docs/known-faults.md)."""
    ended = tapestry("carve", f"{MODELS}:relu", "-o", tmp_path / "suite")
    assert ended.code == 0, ended.err
    return tmp_path / "suite"


def test_a_real_failure_replays_with_one_command(
    tapestry: Tapestry, relu: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ready("openvino", request.config)
    where = ("--to", "cpu", "--backend", "openvino")
    bundle, document = tmp_path / "bundle", tmp_path / "out.json"
    ended = tapestry("repro", relu, "relu", *where, "-o", bundle, "--json", document)
    assert ended.code == 1, ended.err
    assert f"bundle  {bundle}"[:40] in ended.out
    (entry,) = json.loads(document.read_text())["repros"]
    assert (entry["folder"], entry["elements_after"]) == (str(bundle), 1)
    record = read_record(bundle)
    assert (record.way, record.after.elements) == ("fail: NaN is lost", 1)
    assert record.runs < 60

    for suite in (bundle, bundle / "suite"):
        again = tapestry("replay", suite, *where, "--fresh")
        assert again.code == 1
        assert record.reason[:40] in again.out
    assert tapestry("replay", bundle, "--to", "cpu").code == 0

    # The bundle's own suite is a suite like any other: nothing is left to reduce.
    ended = tapestry("repro", bundle, "relu", *where, "-o", tmp_path / "again")
    assert ended.code == 1
    assert read_record(tmp_path / "again").before.elements == 1


def test_failures_of_a_replay(tapestry: Tapestry, relu: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    ready("openvino", request.config)
    where = ("--to", "cpu", "--backend", "openvino")
    assert tapestry("replay", relu, *where, "--json", tmp_path / "replay.json", "--no-variants").code == 1
    ended = tapestry("repro", relu, *where, "--from", tmp_path / "replay.json", "-o", tmp_path / "from")
    assert ended.code == 1, ended.err
    ended = tapestry("repro", relu, *where, "--all", "--no-variants", "-o", tmp_path / "all")
    assert ended.code == 1, ended.err
    for folder in ("from", "all"):
        (bundle,) = (tmp_path / folder).iterdir()
        assert bundle.name.startswith("relu-")
        assert read_record(bundle).after.elements == 1


def test_nothing_fails(tapestry: Tapestry, relu: Path, tmp_path: Path) -> None:
    ended = tapestry("repro", relu, "relu", "--to", "cpu", "-o", tmp_path / "out")
    assert ended.code == 0, ended.err
    assert "does not fail on cpu with eager (pass)" in ended.out
    assert not (tmp_path / "out").exists()
    ended = tapestry("repro", relu, "--all", "--to", "cpu", "-o", tmp_path / "out")
    assert ended.code == 0, ended.err
    assert "no case fails on cpu: nothing was written" in ended.out
    assert not (tmp_path / "out").exists()


def test_wrong_usage(tapestry: Tapestry, relu: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    for arguments, words in (
        ([relu, "relu"], "expected -o DIR"),
        ([relu, "-o", tmp_path / "out"], "expected one of"),
        ([relu, "relu", "--all", "-o", tmp_path / "out"], "expected one of"),
        ([relu, "nope", "-o", tmp_path / "out"], "has no case 'nope'"),
        ([relu, "relu", "-o", tmp_path / "mine"], "got something else"),
        ([tmp_path / "none", "relu", "-o", tmp_path / "out"], "expected a suite"),
        ([relu, "--from", tmp_path / "none.json", "-o", tmp_path / "out"], "cannot read"),
    ):
        ended = tapestry("repro", *arguments, "--to", "cpu")
        assert ended.code == 2, ended.out
        assert words in " ".join(ended.err.split())
        assert not (tmp_path / "out").exists()


@pytest.mark.opencl
def test_what_a_compiler_lacks_is_reduced_by_shape(tapestry: Tapestry, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "class Histogram(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.histc(x, 8)\n"
        "def histogram():\n"
        "    return Histogram(), (torch.linspace(-2, 2, 400).view(4, 100),)\n"
    )
    ended = tapestry("carve", f"{tmp_path / 'model.py'}:histogram", "-o", tmp_path / "suite", "--variants", "0")
    assert ended.code == 0, ended.err
    ended = tapestry(
        "repro", tmp_path / "suite", "histc", "--to", "opencl", "--backend", "tvm", "-o", tmp_path / "bundle"
    )
    assert ended.code == 1, ended.err
    record = read_record(tmp_path / "bundle")
    assert record.verdict == "unsupported"
    assert (record.before.elements, record.after.elements) == (400, 1)


def test_migrate_writes_a_bundle_for_a_finding(
    tapestry: Tapestry, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ready("openvino", request.config)
    ended = tapestry(
        "migrate", f"{MODELS}:relu", "--to", "cpu", "--backend", "openvino", "--variants", "0", "--journal",
        tmp_path / "journal", "--repro", tmp_path / "repros", "--json", tmp_path / "out.json",
    )  # fmt: skip
    assert ended.code == 1, ended.err
    (bundle,) = (tmp_path / "repros").iterdir()
    (finding,) = json.loads((tmp_path / "out.json").read_text())["findings"]
    assert finding["repro"] == str(bundle)
    assert finding["case"] == read_record(bundle).case
    assert finding["backend"] == "openvino"
