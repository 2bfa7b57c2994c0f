"""The pytest plugin, as a user runs it: in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from tapestry.program.capture import capture
from tapestry.suite.carve import carve
from tapestry.suite.case import Suite
from tapestry.suite.derived import with_variants
from tapestry.suite.store import save_suite
from tapestry.suite.variants.derive import Budget

pytestmark = pytest.mark.slow


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + x


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Suite]:
    args = (torch.linspace(-2, 2, 24).view(4, 6),)
    suite = with_variants(carve(capture(model, args), [args]), Budget(cases=8))
    path = tmp_path_factory.mktemp("stored") / "suite"
    save_suite(suite, path)
    return path, suite


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_every_case_is_a_test(stored: tuple[Path, Suite], tmp_path: Path) -> None:
    path, suite = stored
    done = run(tmp_path, "-v", "--tapestry", str(path), "--junitxml", "found.xml")
    assert done.returncode == 0, done.stdout
    assert f"{len(suite.cases)} passed" in done.stdout
    tests = list(ElementTree.parse(tmp_path / "found.xml").iter("testcase"))
    assert {test.get("name") for test in tests} == {case.id for case in suite.cases}
    properties = {entry.get("name"): entry.get("value") for entry in tests[0].iter("property")}
    assert properties["verdict"] == "pass"
    assert properties["device"] == "cpu"


def test_ids_choose_and_xdist_shares_out(stored: tuple[Path, Suite], tmp_path: Path) -> None:
    path, suite = stored
    done = run(tmp_path, "--tapestry", str(path), "-n", "2", "-k", "relu and values or relu and layout")
    assert done.returncode == 0, done.stdout
    wanted = [case for case in suite.cases if "relu" in case.id and ("values" in case.id or "layout" in case.id)]
    assert f"{len(wanted)} passed" in done.stdout


def test_carved_cases_alone(stored: tuple[Path, Suite], tmp_path: Path) -> None:
    path, suite = stored
    done = run(tmp_path, "--tapestry", str(path), "--tapestry-no-variants")
    carved = [case for case in suite.cases if not case.base]
    assert f"{len(carved)} passed" in done.stdout


def test_other_tests_run_only_where_they_are_named(stored: tuple[Path, Suite], tmp_path: Path) -> None:
    path, suite = stored
    (tmp_path / "test_own.py").write_text("def test_own():\n    assert True\n")
    carved = sum(not case.base for case in suite.cases)
    arguments = ("--tapestry", str(path), "--tapestry-no-variants")
    assert f"{carved} passed" in run(tmp_path, *arguments).stdout
    assert f"{carved + 1} passed" in run(tmp_path, "test_own.py", *arguments).stdout


def test_a_failure_says_what_was_expected(stored: tuple[Path, Suite], tmp_path: Path) -> None:
    """ONNX Runtime's amax loses NaN; the failure is the verdict, without a traceback."""
    pytest.importorskip("onnxruntime")
    args = (torch.tensor([[1.0, float("nan")], [2.0, 3.0]]),)
    save_suite(carve(capture(lambda x: torch.amax(x, 1), args), [args]), tmp_path / "amax")
    done = run(tmp_path, "--tapestry", "amax", "--tapestry-backend", "onnxruntime")
    assert done.returncode == 1
    assert "fail: aten.amax.default on cpu with onnxruntime" in done.stdout
    assert "expected nan" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tapestry", "nothing"), "expected a suite"),
        (("--tapestry", "{suite}", "--tapestry-device", "nowhere:0"), "nowhere"),
        (("--tapestry", "{suite}", "--tapestry-backend", "nothing"), "nothing"),
    ],
)
def test_wrong_usage_is_said(
    stored: tuple[Path, Suite], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = run(tmp_path, *(entry.format(suite=stored[0]) for entry in arguments))
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout
