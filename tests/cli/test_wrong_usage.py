"""Wrong usage and missing things: exit code 2 or 3, one clear message that says what was expected, no traceback."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

from support.command import Ended, Tapestry
from tapestry.cli.app import app

pytestmark = pytest.mark.slow

COMMANDS = (
    *("carve", "replay", "repro", "audit", "migrate", "profile", "place", "explain", "agent", "devices", "backends"),
    "doctor",
)


def refused(ended: Ended, code: int, *words: str) -> None:
    assert ended.code == code, (ended.out, ended.err)
    text = ended.err
    assert "Traceback" not in text
    # torch.export may log before.
    assert any(line.startswith(("error: ", "Usage: ", "Error: ")) for line in text.splitlines())
    for word in words:
        assert word in text


def test_the_commands_are_those_tested() -> None:
    assert {command.name for command in app.registered_commands} == set(COMMANDS)
    assert [group.name for group in app.registered_groups] == ["kernel"]


@pytest.mark.parametrize("command", [(), *[(name,) for name in COMMANDS], ("kernel",), ("kernel", "new")])
def test_help(tapestry: Tapestry, command: tuple[str, ...]) -> None:
    ended = tapestry(*command, "--help")
    assert ended.code == 0
    assert "Usage: " in ended.out
    assert ended.err == ""
    assert max(map(len, ended.out.splitlines())) <= 80


def test_version(tapestry: Tapestry) -> None:
    import tapestry as package

    ended = tapestry("--version")
    assert (ended.code, ended.out.strip()) == (0, package.__version__)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], ["nope"]),
        (["migrate"], ["MODEL"]),
        (["place", "demo:minilm", "--budget", "-1"], ["--budget"]),
        (["place", "demo:minilm", "--seconds", "0"], ["--seconds"]),
        (["place", "demo:minilm", "--backend", "nobody"], ["nobody"]),
        (["migrate", "demo:minilm", "--nope"], ["--nope"]),
        (["migrate", "demo:minilm", "--to"], ["--to"]),
        (["carve", "demo:minilm", "--budget", "0"], ["--budget"]),
        (["carve", "demo:minilm", "--budget", "lots"], ["--budget"]),
        (["replay"], ["SUITE"]),
        (["audit", "--seconds", "soon"], ["--seconds"]),
    ],
)
def test_what_the_parser_refuses(tapestry: Tapestry, arguments: list[str], words: list[str]) -> None:
    ended = tapestry(*arguments)
    assert ended.code == 2
    assert "Traceback" not in ended.err
    for word in words:
        assert word in ended.err


def test_an_audit_needs_faults_that_can_be_read(tapestry: Tapestry, tmp_path: Path) -> None:
    refused(tapestry("audit"), 2, "--faults FILE.py")
    refused(tapestry("audit", "--faults", tmp_path / "none.py"), 2, "is no file")
    (tmp_path / "empty.py").write_text("x = 1\n")
    refused(tapestry("audit", "--faults", tmp_path / "empty.py"), 2, "holds no fault")
    refused(tapestry("audit", tmp_path / "none", "--faults", tmp_path / "empty.py"), 2, "expected a suite")


def test_carving_needs_a_model_or_operators(tapestry: Tapestry, tmp_path: Path) -> None:
    refused(tapestry("carve", "-o", tmp_path / "s"), 2, "expected a MODEL or --schema OP, got neither")
    refused(tapestry("carve", "zoo:bert", "--schema", "aten.add", "-o", tmp_path / "s"), 2, "got both")
    refused(tapestry("carve", "--schema", "aten.nothing_such", "-o", tmp_path / "s"), 2, "aten.nothing_such")


def test_an_older_replay_must_be_one(tapestry: Tapestry, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    refused(tapestry("replay", tmp_path, "--against", tmp_path / "none.json"), 2, "expected the JSON of a replay")
    refused(tapestry("replay", tmp_path, "--against", tmp_path / "old.json"), 2, "is not the JSON of a replay")


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("raises", ["raised ValueError: no weights here", "(line "]),
        ("leaves", ["raised SystemExit"]),
        ("number", ["expected the factory to return", "got int"]),
        ("tensor", ["expected args as a tuple", "got Tensor"]),
        ("words", ["keyword arguments as a dict", "got int"]),
        ("short", ["got a tuple of 1"]),
        ("nobody", ["expected a module or function first", "got int"]),
        ("nothing", ["expected args as a tuple", "got nothing"]),
        ("misfit", ["torch.export"]),
        ("dynamic", ["torch.export"]),
        ("absent", ["has no 'absent'", "small"]),
        ("constant", ["expected a function called 'constant'", "got int"]),
    ],
)
def test_factories_that_do_not_deliver(tapestry: Tapestry, factories: str, factory: str, words: list[str]) -> None:
    refused(tapestry("migrate", f"{factories}:{factory}", "--to", "cpu"), 2, *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", ["SyntaxError", "line 1"]),
        ("import nothing_here\n", ["nothing_here"]),
        ("1 / 0\n", ["ZeroDivision"]),
    ],
)
def test_files_that_do_not_load(tapestry: Tapestry, tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "model.py"
    path.write_text(text)
    refused(tapestry("carve", f"{path}:f", "-o", tmp_path / "suite"), 2, str(path), *words)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("foo", ["expected a model as", "'foo'"]),
        ("demo:nope", ["expected a model as", "demo:nope"]),
        ("here.py", ["without the name of a factory"]),
        ("here.py:f", ["expected a Python file at here.py", "nothing"]),
        ("gone.pt2", ["gone.pt2"]),
    ],
)
def test_models_that_are_none(tapestry: Tapestry, model: str, words: list[str]) -> None:
    refused(tapestry("migrate", model, "--to", "cpu"), 2, *words)


@pytest.mark.parametrize(
    ("device", "backend", "code", "words"),
    [
        ("gpu", "", 2, ["'gpu' is not a device name", "expected cpu, opencl"]),
        ("cpu:1", "", 2, ["there is one cpu"]),
        ("cpu", "fast", 2, ["expected one of the backends", "'fast'"]),
        ("cpu", "tvm", 2, ["tvm runs on", "not on cpu"]),
        ("ws://localhost:1/cpu?token=SECRET&x", "", 2, ["expected only ?token"]),
    ],
)
def test_targets_that_are_none(
    tapestry: Tapestry, factories: str, device: str, backend: str, code: int, words: list[str]
) -> None:
    pytest.importorskip("tvm" if backend == "tvm" else "torch")
    ended = tapestry("migrate", f"{factories}:small", "--to", device, "--backend", backend)
    refused(ended, code, *words)
    assert "SECRET" not in ended.err


@pytest.mark.parametrize("option", ["--json", "--report", "-o"])
@pytest.mark.parametrize("where", ["folder", "under a file", "/proc/nowhere.json"])
def test_files_that_cannot_be_written_are_told_before_the_work(
    tapestry: Tapestry, tmp_path: Path, option: str, where: str
) -> None:
    (tmp_path / "file").write_text("")
    path = {"folder": tmp_path, "under a file": tmp_path / "file" / "out.json"}.get(where, Path(where))
    # The model does not exist either: the output is looked at first.
    refused(tapestry("migrate", "none.py:f", "--to", "cpu", option, path), 2, f"cannot write {path}")


def test_a_suite_is_not_stored_over_something_else(tapestry: Tapestry, factories: str, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    refused(tapestry("carve", f"{factories}:small", "-o", tmp_path), 2, "got something else")
    assert (tmp_path / "precious").read_text() == "data"


def test_suites_that_are_none(tapestry: Tapestry, tmp_path: Path) -> None:
    refused(tapestry("replay", tmp_path, "--to", "cpu"), 2, "expected a suite")
    refused(tapestry("replay", tmp_path / "none", "--to", "cpu"), 2, "expected a suite")
    (tmp_path / "suite.json").write_text("{")
    refused(tapestry("replay", tmp_path, "--to", "cpu"), 2, "not a suite manifest")


def test_a_report_without_jinja2_is_told_before_the_work(
    tapestry: Tapestry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tapestry.cli.preflight.find_spec", lambda name: None)
    ended = tapestry("migrate", "none.py:f", "--to", "cpu", "--report", tmp_path / "r.html")
    refused(ended, 3, "pip install 'tapestry-ml[report]'")


def test_a_missing_extra_names_its_install_line(
    tapestry: Tapestry, monkeypatch: pytest.MonkeyPatch, factories: str
) -> None:
    real = builtins.__import__

    def blocked(name: str, *rest: object) -> object:
        if name == "pyopencl":
            raise ModuleNotFoundError("No module named 'pyopencl'", name="pyopencl")
        return real(name, *rest)  # type: ignore[arg-type]

    def fail(*args: object, **kwargs: object) -> None:
        blocked("pyopencl")

    monkeypatch.setattr("tapestry.runtime.open.open_device", fail)
    monkeypatch.setattr("tapestry.migration.workbench.open_device", fail)
    ended = tapestry("migrate", f"{factories}:small", "--to", "opencl", "--backend", "eager")
    refused(ended, 3, "pip install 'tapestry-ml[opencl]'")


def test_ctrl_c(tapestry: Tapestry, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tapestry.models.load.load_model", interrupt)
    refused(tapestry("migrate", "demo:minilm"), 130, "interrupted", "journal")
    ended = tapestry("carve", "demo:minilm", "-o", "nowhere-yet")
    refused(ended, 130, "interrupted")
    assert "journal" not in ended.err


def test_a_fault_of_ours_is_not_dressed_up(tapestry: Tapestry, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*args: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("tapestry.models.load.load_model", fault)
    with pytest.raises(KeyError):
        tapestry("migrate", "demo:minilm")
