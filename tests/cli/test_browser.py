"""A tab as a target of the command line: a model is moved into it, and a suite is replayed there beside the host."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from support.command import Tapestry

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SCHEMA = Path(__file__).parents[2] / "docs" / "schema"


def document(path: Path, name: str) -> dict[str, object]:
    found = json.loads(path.read_text())
    jsonschema.Draft202012Validator(json.loads((SCHEMA / f"{name}.json").read_text())).validate(found)
    return found


def test_a_model_moves_into_a_tab(tapestry: Tapestry, factories: str, tmp_path: Path) -> None:
    ended = tapestry("migrate", f"{factories}:small", "--to", "browser", "--variants", "0", "--fresh",
                     "--json", tmp_path / "out.json")  # fmt: skip
    assert ended.code == 0, ended.err
    found = document(tmp_path / "out.json", "migrate")
    assert found["target"] == "browser"
    coverage = found["coverage"]
    assert isinstance(coverage, dict)
    assert coverage["compute_nodes"] == 1.0
    check = found["check"]
    assert isinstance(check, dict)
    assert check["good"]


def test_devices_side_by_side(tapestry: Tapestry, factories: str, tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    ended = tapestry("carve", f"{factories}:small", "-o", suite, "--variants", "0", "--parts", "0")
    assert ended.code == 0, ended.err
    ended = tapestry("replay", suite, "--to", "cpu", "--to", "browser", "--fresh", "--json", tmp_path / "out.json")
    assert ended.code == 0, ended.err
    assert "Side by side" in ended.out
    assert "of 3 operators differ between the devices" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    found = document(tmp_path / "out.json", "replay")
    devices = found["devices"]
    assert isinstance(devices, list)
    assert [entry["device"] for entry in devices] == ["cpu", "browser"]
    assert all(entry["verdicts"]["pass"] == 3 for entry in devices)
    differing = found["differing"]
    assert isinstance(differing, list)
    assert {entry["differs"] for entry in differing} <= {"verdict", "error"}
