"""Sleeping threads are asked for where it is not too late, and never against what the user has said."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tapestry.runtime import openmp
from tapestry.runtime.openmp import let_threads_sleep

_OPEN = """
import os, sys
from tapestry.runtime.open import open_in_process
open_in_process("cpu").close()
assert "torch" not in sys.modules
print(os.environ["OMP_WAIT_POLICY"])
"""


def test_a_device_opened_before_torch_makes_them_sleep() -> None:
    environment = {name: value for name, value in os.environ.items() if name != openmp.VARIABLE}
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-P", "-c", _OPEN], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["PASSIVE"]


@pytest.mark.parametrize(("chosen", "sleep"), [("passive", True), ("ACTIVE", False)])
def test_the_users_choice_stays(monkeypatch: pytest.MonkeyPatch, chosen: str, sleep: bool) -> None:
    monkeypatch.setenv(openmp.VARIABLE, chosen)
    assert let_threads_sleep() is sleep
    assert os.environ[openmp.VARIABLE] == chosen


def test_after_torch_it_is_too_late_and_nothing_is_pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(openmp.VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert not let_threads_sleep()
    assert openmp.VARIABLE not in os.environ
