"""Bundles of failing cases: what is in them, that anyone can run them, and that they fail again the same way."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from support import faulty_backend
from support.eager_device import EagerMockDevice
from support.faulty_backend import Fault, FaultyBackend, allow_loader
from support.subjects import subject_of_module
from tapestry.backends.cache import CompileCache
from tapestry.backends.compiler import Compiler
from tapestry.errors import UsageError
from tapestry.numerics.verdict import Verdict
from tapestry.program.capture import capture
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.carve import carve
from tapestry.suite.case import Suite
from tapestry.suite.derived import with_variants
from tapestry.suite.on_target import Target, replay_on
from tapestry.suite.repro.attempt import expected
from tapestry.suite.repro.bundle import read_record
from tapestry.suite.repro.make import Repro, case_of, make_repro
from tapestry.suite.repro.search import Limits
from tapestry.suite.repro.single import suite_of
from tapestry.suite.store import load_suite
from tapestry.suite.variants.derive import Budget

LINEAR, GELU = "aten.linear.default", "aten.gelu.default"


class Net(torch.nn.Module):
    """A linear layer, whose weight is a secret, and a GELU."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.up = torch.nn.Linear(24, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.up(x))


@pytest.fixture(scope="module")
def suite() -> Suite:
    x = torch.randn(6, 24, generator=torch.Generator().manual_seed(0))
    return carve(capture(Net().eval(), (x,)), [(x,)])


@contextmanager
def on_mock(*faults: Fault) -> Iterator[Target]:
    with Compiler(CompileCache()) as compiler:
        yield Target.of(Resident(EagerMockDevice()), FaultyBackend(*faults), compiler)


def reproduce(suite: Suite, folder: Path, case: str, *faults: Fault) -> Repro:
    with on_mock(*faults) as target:
        return make_repro(suite, case, [target], folder)


def replayed(folder: Path, *faults: Fault) -> tuple[Verdict, str]:
    """How the bundle's case ends where it failed."""
    with on_mock(*faults) as target:
        (found,) = replay_on(target, load_suite(folder)).results
    return found.verdict, found.reason


def imports(script: Path) -> set[str]:
    tree = ast.parse(script.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def run_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert imports(folder / "repro.py") <= {"os", "sys", "math", "torch"}
    capsys.readouterr()
    runpy.run_path(str(folder / "repro.py"), run_name="__main__")
    return capsys.readouterr().out


def test_wrong_values(suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fault = Fault("wrong", LINEAR)
    found = reproduce(suite, tmp_path / "out", "linear", fault)
    assert (found.verdict, found.folder, found.op) == (Verdict.FAIL, tmp_path / "out", LINEAR)
    assert found.before == 6 * 24 + 40 * 24 + 40
    assert found.after <= 3  # the fault shows on every second element of the result only
    record = read_record(tmp_path / "out")
    assert (record.verdict, record.way, record.op) == ("fail", "fail: values", LINEAR)
    assert (record.before.elements, record.after.elements) == (found.before, found.after)
    assert record.before.constants == 1000
    assert record.backend == "faulty"
    assert re.search(r"test_make\.py:\d+ ", record.source)

    (verdict, reason) = replayed(tmp_path / "out", fault)
    assert (verdict, reason) == (Verdict.FAIL, record.reason)
    shown = run_script(tmp_path / "out", capsys)
    assert "largest error" in shown
    assert record.reason in shown
    assert re.search(r"1\.0+ +1\.0+ +1\.00999\d+ +0\.01", shown)
    # A right device passes the same case.
    assert replayed(tmp_path / "out")[0] is Verdict.PASS


def test_nothing_of_the_model_or_the_machine_is_in_it(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPESTRY_TEST_SECRET", "swordfish")
    reproduce(suite, tmp_path / "out", "linear", Fault("wrong", LINEAR))
    weight = Net().up.weight
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"README.md", "repro.py", "repro.json", "suite.json"}
    for path in files:
        data = path.read_bytes()
        assert weight[0, :2].detach().numpy().tobytes() not in data
        for word in (str(tmp_path), str(Path(__file__).parent), str(Path.home()), "swordfish", "functional"):
            assert word.encode() not in data, (path, word)
    assert "secret" not in (tmp_path / "out" / "README.md").read_text()


def test_a_value_that_is_needed(tmp_path: Path) -> None:
    x = torch.linspace(-3, 3, 48).reshape(6, 8)
    x[4, 1] = 50.375
    suite = carve(capture(torch.nn.GELU(), (x,)), [(x,)])
    fault = Fault("wrong", GELU, above=50.0)
    found = reproduce(suite, tmp_path / "out", suite.cases[0].id, fault)
    # The element above 50 and a second one, which the fault spoils.
    assert found.after == 2
    assert "50.4" in (tmp_path / "out" / "repro.py").read_text()
    assert replayed(tmp_path / "out", fault)[0] is Verdict.FAIL


@pytest.mark.parametrize(
    ("kind", "verdict", "words"),
    [
        ("abort", Verdict.CRASHED, "the worker died"),
        ("hang", Verdict.TIMEOUT, "hung"),
        ("raise", Verdict.ERROR, "this kernel always fails"),
        ("unsupported", Verdict.UNSUPPORTED, "faulty has no"),
        ("compile", Verdict.ERROR, "cannot compile"),
    ],
)
def test_what_gives_no_result(
    kind: str, verdict: Verdict, words: str, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = reproduce(suite, tmp_path / "out", "linear", Fault(kind, LINEAR))
    assert (found.verdict, found.after) == (verdict, 2)
    assert words in found.reason
    shown = run_script(tmp_path / "out", capsys)
    assert "the device gave nothing" in shown
    assert words in shown
    assert replayed(tmp_path / "out", Fault(kind, LINEAR))[0] is verdict
    inputs = load_suite(tmp_path / "out").inputs(load_suite(tmp_path / "out").cases[0])
    assert not any(bool(tensor.any()) for tensor in inputs)


def test_a_case_that_does_not_fail_leaves_nothing(suite: Suite, tmp_path: Path) -> None:
    found = reproduce(suite, tmp_path / "out", "gelu", Fault("wrong", LINEAR))
    assert (found.folder, found.failed, found.verdict) == (None, False, Verdict.PASS)
    assert list(tmp_path.iterdir()) == []


def test_a_derived_case_needs_no_model_either(suite: Suite, tmp_path: Path) -> None:
    derived = with_variants(suite, Budget(cases=4))
    case = next(case for case in derived.cases if case.base and case.op == GELU)
    fault = Fault("wrong", GELU)
    found = reproduce(derived, tmp_path / "out", case.id, fault)
    assert found.failed
    assert read_record(tmp_path / "out").variant == case.variant
    stored = load_suite(tmp_path / "out")
    assert [(entry.id, entry.base) for entry in stored.cases] == [(case.id, "")]
    assert replayed(tmp_path / "out", fault)[0] is Verdict.FAIL


def test_names_of_cases(suite: Suite) -> None:
    first = suite.cases[0]
    assert case_of(suite, first.id) is first
    assert case_of(suite, "linear") is first
    derived = with_variants(suite, Budget(cases=3))
    assert case_of(derived, "linear").id == first.id
    assert case_of(derived, derived.cases[-1].id) is derived.cases[-1]
    with pytest.raises(UsageError, match=r"part of 6: "):
        case_of(derived, "~")
    with pytest.raises(UsageError, match="has no case 'nope'"):
        case_of(suite, "nope")
    with pytest.raises(UsageError, match=r"part of 2: linear-.*gelu-"):
        case_of(suite, "-")


def test_large_tensors_are_files_that_the_script_reads(
    tmp_path: Path, suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a reduction: nothing is tried in no seconds."""
    with on_mock(Fault("wrong", LINEAR)) as target:
        made = make_repro(suite, "linear", [target], tmp_path / "out", Limits(seconds=0))
    assert made.before == made.after == 1144
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "out").glob("*.bin")}
    assert sizes.keys() == {"inputs.bin", "expected.bin", "got.bin"}
    assert sizes["got.bin"] == 6 * 40 * 4
    assert "1,000 elements are from constants" in (tmp_path / "out" / "README.md").read_text()
    shown = run_script(tmp_path / "out", capsys)
    assert "the 16 most wrong of 240 elements" in shown
    assert "120 of 240 elements differ" not in shown  # float64 differs from float32 in nearly all of them


@pytest.mark.slow
def test_a_stranger_runs_it_without_tapestry(suite: Suite, tmp_path: Path) -> None:
    reproduce(suite, tmp_path / "out", "linear", Fault("wrong", LINEAR))
    code = (
        "import runpy, sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('tapestry', 'numpy', 'msgspec', 'safetensors'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Without())\n"
        f"sys.path.append({str(Path(torch.__file__).parents[1])!r})\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "ignore", "-c", code, str(tmp_path / "out" / "repro.py")],
        capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{LINEAR} on mock:0 with faulty: fail" in done.stdout
    assert "largest error 0.0099" in done.stdout


@pytest.mark.slow
def test_a_worker_that_really_dies_is_started_again(suite: Suite, tmp_path: Path) -> None:
    allow_loader()
    faulty_backend.simulate = False
    device = open_device("cpu", timeout=60.0)
    try:
        with Compiler(CompileCache()) as compiler:
            target = Target.of(Resident(device), FaultyBackend(Fault("abort", GELU, above=0.5)), compiler)
            found = make_repro(suite, "gelu", [target], tmp_path / "out", Limits(lost=6))
            assert found.verdict is Verdict.CRASHED
            assert found.after < found.before
            (again,) = replay_on(target, load_suite(tmp_path / "out")).results
            assert again.verdict is Verdict.CRASHED
    finally:
        device.close()
    assert str(tmp_path) not in found.reason


@pytest.mark.slow
def test_a_kernel_that_really_hangs_is_waited_for_less(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tapestry.suite.repro.make.PATIENCE", 3.0)
    allow_loader()
    faulty_backend.simulate = False
    device = open_device("cpu", timeout=6.0)
    try:
        with Compiler(CompileCache()) as compiler:
            target = Target.of(Resident(device), FaultyBackend(Fault("hang", GELU)), compiler)
            found = make_repro(suite, "gelu", [target], tmp_path / "out", Limits(lost=2))
        assert found.verdict is Verdict.TIMEOUT
        assert device.timeout == 6.0
        assert found.after < found.before
    finally:
        device.close()


def test_a_graph_of_several_calls_replays(tmp_path: Path, suite: Suite) -> None:
    """No carved case has several calls, but a suite may."""
    subject = subject_of_module(Net().eval(), torch.randn(3, 24))
    case = suite_of(subject, expected(subject), suite.cases[0])
    fault = Fault("wrong", GELU, after=LINEAR)
    found = reproduce(case, tmp_path / "out", "linear", fault)
    assert found.verdict is Verdict.FAIL
    assert found.after <= 4
    record = read_record(tmp_path / "out")
    assert (record.before.calls, record.after.calls) == (2, 2)
    assert replayed(tmp_path / "out", fault)[0] is Verdict.FAIL
    assert replayed(tmp_path / "out")[0] is Verdict.PASS


def test_what_fails_once_is_kept_as_it_was_seen(tmp_path: Path, suite: Suite) -> None:
    class Once(EagerMockDevice):
        """Spoils what its first artifact gives."""

        left = 1

        def _call(self, program: object, call: object) -> None:
            super()._call(program, call)  # type: ignore[arg-type]
            if self.left:
                self.left -= 1
                memory = self._memory[call.outputs[0].id]  # type: ignore[attr-defined]
                memory[:4] = b"\x00\x00\x80\x7f"

    with Compiler(CompileCache()) as compiler:
        target = Target.of(Resident(Once()), FaultyBackend(), compiler)
        found = make_repro(suite, "gelu", [target], tmp_path / "out")
    assert found.verdict is Verdict.FAIL
    assert found.before == found.after
    record = read_record(tmp_path / "out")
    assert not record.steady
    assert "inf" in record.reason
    assert "does not fail in the same way each time" in (tmp_path / "out" / "README.md").read_text()


def test_the_record_is_plain_json(suite: Suite, tmp_path: Path) -> None:
    """Infinite errors are null, not words that JSON lacks."""
    reproduce(suite, tmp_path / "out", "gelu", Fault("abort", GELU))
    text = (tmp_path / "out" / "repro.json").read_text()

    def refuse(word: str) -> None:
        raise AssertionError(word)

    document = json.loads(text, parse_constant=refuse)
    assert document["format"] == "tapestry-repro"
    assert set(document["versions"]) == {"tapestry", "torch", "numpy", "python", "system"}
    assert document["device"]["name"] == "mock:0"
