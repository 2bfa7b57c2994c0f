"""Reading faults from files: what counts as one, and what is said of a file that has none."""

from pathlib import Path

import pytest

from tapestry.errors import FormatError, UsageError
from tapestry.suite.audit.faults import read_faults

PLAIN = """
from types import SimpleNamespace as Fault
def broken(args, kwargs):
    return args[0]
KEPT = {"a": Fault(name="a", fault_class="x", op="aten.relu.default", apply=broken)}
LISTED = [Fault(name="b", fault_class="x", op="", ops=("aten.mul.Tensor", "aten.relu.default"), apply=broken)]
alone = Fault(name="c", fault_class="y", op="aten.neg.default", also=["aten.abs.default"], apply=broken, note="n")
class NotOne:
    name, fault_class, op, apply = "d", "x", "aten.relu.default", broken
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_faults_are_found_wherever_a_file_keeps_them(tmp_path: Path) -> None:
    found = read_faults(written(tmp_path / "faults.py", PLAIN))
    assert [fault.name for fault in found.faults] == ["a", "b", "c"]
    assert found.faults[1].targets == ("aten.mul.Tensor", "aten.relu.default")
    assert found.faults[2].targets == ("aten.neg.default", "aten.abs.default")


def test_some_are_chosen_by_name(tmp_path: Path) -> None:
    path = written(tmp_path / "faults.py", PLAIN)
    assert [fault.name for fault in read_faults(path, ["c", "a"]).faults] == ["c", "a"]
    with pytest.raises(UsageError, match="has no fault 'z'; it has a, b, c"):
        read_faults(path, ["z"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "holds no fault"),
        ("raise ValueError('no')", "does not run: ValueError: no"),
        ("import nowhere_to_be_found", "does not run: ModuleNotFoundError"),
        ("def f(:", "does not run: SyntaxError"),
    ],
)
def test_a_file_without_faults_is_wrong_usage(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_faults(written(tmp_path / "faults.py", text))


def test_no_file_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no file"):
        read_faults(tmp_path / "nothing.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('op="aten.nothing.default", apply=print', "operator aten.nothing.default is not in torch"),
        ('op="relu", apply=print', "expected an operator as namespace.name.overload"),
        ('op="aten.relu.default", apply=3', "cannot be called"),
        ('op="", apply=print', "names no operator"),
    ],
)
def test_a_fault_that_cannot_be_one_says_why(tmp_path: Path, text: str, message: str) -> None:
    source = f'from types import SimpleNamespace\nf = SimpleNamespace(name="f", fault_class="x", {text})\n'
    with pytest.raises(FormatError, match=message):
        read_faults(written(tmp_path / "faults.py", source))
