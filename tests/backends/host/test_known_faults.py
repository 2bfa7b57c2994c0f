"""docs/known-faults.md is what replaying finds, on the versions of the lock: nothing of it is coded in anywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.fault_models import MODELS
from support.host_bench import ready
from tapestry.numerics.verdict import Verdict
from tapestry.program.capture import capture
from tapestry.suite.carve import carve
from tapestry.suite.replay import replay

DOCUMENT = Path(__file__).parents[3] / "docs" / "known-faults.md"
BY_NAME = {factory.__name__: factory for factory in MODELS}


def listed() -> list[tuple[str, str, bool]]:
    """Model, backend and whether the table says that it is wrong there."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    head = next(line for line in lines if line.startswith("| model |"))
    backends = [cell.strip() for cell in head.strip("|").split("|")][1:]
    found: list[tuple[str, str, bool]] = []
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = re.fullmatch(r"`(\w+)`", cells[0])
        if name and name[1] in BY_NAME and len(cells) == len(backends) + 1:
            found += [(name[1], backend, cell != "right") for backend, cell in zip(backends, cells[1:], strict=True)]
    return found


def test_every_model_is_in_the_table() -> None:
    assert {name for name, _, _ in listed()} == BY_NAME.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend", "wrong"),
    [
        pytest.param(*entry, marks=[] if entry[2] else pytest.mark.thorough)
        for entry in listed()
        if entry[1] in ("onnxruntime", "openvino")
    ],
    ids=str,
)
def test_replaying_finds_what_is_listed(name: str, backend: str, wrong: bool, request: pytest.FixtureRequest) -> None:
    ready(backend, request.config)
    model, args = BY_NAME[name]()
    suite = carve(capture(model, args), [args])
    (result,) = replay(suite, "cpu", backend).results
    assert (result.verdict == Verdict.FAIL) == wrong, result.reason
