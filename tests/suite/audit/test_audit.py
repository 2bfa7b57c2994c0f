"""Auditing in worker processes: what is found, what survives and why, and faults that take their process down."""

from pathlib import Path

import pytest
import torch

from tapestry.program.capture import capture
from tapestry.suite.audit.run import audit
from tapestry.suite.carve import carve
from tapestry.suite.journal import Journal
from tapestry.suite.store import save_suite

HEAD = """
import os, time
from types import SimpleNamespace
import torch
FAULTS = {}
def fault(fn):
    FAULTS[fn.__name__] = SimpleNamespace(
        name=fn.__name__, fault_class="kind", op="aten.relu.default", apply=lambda args, kwargs: fn(*args, **kwargs))
"""

FAULTS = {
    "drops_nan": "return torch.relu(torch.nan_to_num(self, 0.0, float('inf'), -float('inf')))",
    "leaky": "return torch.where(self < 0, 0.01 * self, self)",
    "right": "return torch.relu(self)",
    "another_zero": "result = torch.relu(self)\n    return torch.where(result == 0, -result, result)",
    "raises_on_nothing": "if self.numel() == 0: raise RuntimeError('zero bytes')\n    return torch.relu(self)",
    "not_written_for_any": "return self.no_such_thing()",
    "aborts": "os.abort()",
    "hangs": "time.sleep(1000)",
}


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    path = tmp_path / "faults.py"
    bodies = "\n".join(f"@fault\ndef {name}(self):\n    {body}" for name, body in FAULTS.items())
    path.write_text(HEAD + bodies + "\n")
    return path


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    inputs = torch.linspace(-3, 3, 32).view(4, 8)
    program = capture(torch.relu, (inputs,), name="relu")
    save_suite(carve(program, [(inputs,)]), tmp_path / "suite")
    return tmp_path / "suite"


@pytest.mark.slow
def test_what_is_found_and_what_survives(tmp_path: Path, faults: Path, suite: Path) -> None:
    with Journal(tmp_path / "journal", "audit") as journal:
        result = audit(suite, faults, journal=journal)
    found = {entry.fault: entry for entry in result.results}
    assert {name for name, entry in found.items() if entry.killed} == {
        "drops_nan",
        "leaky",
        "raises_on_nothing",
        "aborts",
        "hangs",
    }
    assert found["drops_nan"].by.endswith("nan")
    assert found["hangs"].verdict == "timeout"
    assert found["aborts"].verdict == "crashed"
    assert found["raises_on_nothing"].verdict == "error"
    assert "the right one in all" in found["right"].why
    assert found["not_written_for_any"].cases == 0
    assert result.by_class["kind"].killed == 5
    assert {entry.fault for entry in result.survivors} == {"right", "another_zero", "not_written_for_any"}
    with Journal(tmp_path / "journal", "audit") as journal:
        again = audit(suite, faults, journal=journal)
        assert journal.found == len(FAULTS)
    assert again == result


@pytest.mark.slow
def test_without_variants_less_is_found(faults: Path, suite: Path) -> None:
    result = audit(suite, faults, ["drops_nan", "leaky"], variants=False)
    assert [entry.killed for entry in result.results] == [False, True]
