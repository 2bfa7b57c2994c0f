"""What commands write as JSON is what docs/schema says, and docs/schema is current."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest

from support.command import Tapestry
from tapestry.cli.documents import DOCUMENTS
from tapestry.cli.schema import schemas
from tapestry.placement.placement import Placement

pytestmark = pytest.mark.slow

SCHEMA = Path(__file__).parents[2] / "docs" / "schema"


def validated(path: Path, name: str) -> dict[str, object]:
    document = json.loads(path.read_text())
    jsonschema.Draft202012Validator(json.loads((SCHEMA / f"{name}.json").read_text())).validate(document)
    assert document["version"] == 1
    assert document["command"] == name
    return document


def test_the_schemas_are_current() -> None:
    stored = {path.name: path.read_text() for path in SCHEMA.glob("*.json")}
    assert stored == schemas(), "run: python -m tapestry.cli.schema docs/schema"
    for text in stored.values():
        jsonschema.Draft202012Validator.check_schema(json.loads(text))


def test_migrate(tapestry: Tapestry, factories: str, tmp_path: Path) -> None:
    paths = {name: tmp_path / "deep" / name for name in ("out.json", "placement.json", "report.html")}
    ended = tapestry(
        "migrate", f"{factories}:small", "--to", "cpu", "--journal", tmp_path / "journal", "--json", paths["out.json"],
        "-o", paths["placement.json"], "--report", paths["report.html"],
    )  # fmt: skip
    assert ended.code == 0, ended.err
    document = validated(paths["out.json"], "migrate")
    assert document["coverage"]["compute_nodes"] == 1.0  # type: ignore[index]
    assert document["journal"] == str(tmp_path / "journal")
    assert max(map(len, ended.out.splitlines())) <= 80
    for title in ("Replayed on cpu with eager", "On cpu, counted from the driver's launch log"):
        assert f"\n{title}\n" in f"\n{ended.out}"
    for path in paths.values():
        assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert {entry.name for entry in (tmp_path / "deep").iterdir()} == set(paths)

    again = tapestry(
        "migrate", f"{factories}:small", "--to", "cpu", "--journal", tmp_path / "journal", "--json", paths["out.json"]
    )
    assert again.code == 0
    resumed = validated(paths["out.json"], "migrate")
    assert all(step["resumed"] for step in resumed["steps"])  # type: ignore[index, union-attr]
    assert resumed["program_runs"] == 1  # the final check

    other = tapestry("migrate", f"{factories}:steps", "--to", "cpu", "--journal", tmp_path / "journal")
    assert other.code == 2
    assert "belongs to another job" in other.err
    assert "--journal" in other.err


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_model_of_several_calls_with_state(tapestry: Tapestry, factories: str, tmp_path: Path) -> None:
    ended = tapestry("migrate", f"{factories}:steps", "--to", "cpu", "--fresh", "--json", tmp_path / "out.json")
    assert ended.code == 0, ended.err
    assert validated(tmp_path / "out.json", "migrate")["program"]["state"] == 1  # type: ignore[index]


def test_carve_and_replay(tapestry: Tapestry, factories: str, tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    ended = tapestry("carve", f"{factories}:small", "-o", suite, "--json", tmp_path / "carve.json")
    assert ended.code == 0, ended.err
    carved = validated(tmp_path / "carve.json", "carve")
    assert carved["variants"] > 20  # type: ignore[operator]
    assert carved["cases"] - carved["variants"] - carved["parts"] == 3  # type: ignore[operator]
    ended = tapestry("replay", suite, "--to", "cpu", "--to", "cpu", "--json", tmp_path / "replay.json")
    assert ended.code == 0, ended.err
    replayed = validated(tmp_path / "replay.json", "replay")
    (device,) = replayed["devices"]  # type: ignore[misc]
    assert device["verdicts"]["pass"] == device["cases"] == carved["cases"]
    assert device["variants"] == carved["variants"]
    assert set(device["verdicts"]) == {"pass", "fail", "unsupported", "undefined", "error", "crashed", "timeout"}
    assert max(map(len, ended.out.splitlines())) <= 80


def test_explain(tapestry: Tapestry, factories: str, tmp_path: Path) -> None:
    command = ["explain", f"{factories}:small", "gelu", "--to", "cpu", "--backend", "eager", "--backend", "tvm"]
    ended = tapestry(*command, "--json", tmp_path / "out.json")
    assert ended.code == 0, ended.err
    validated(tmp_path / "out.json", "explain")


def test_profile(tapestry: Tapestry, factories: str, tmp_path: Path) -> None:
    report, placement = tmp_path / "report.html", tmp_path / "placement.json"
    ended = tapestry(
        "profile", f"{factories}:small", "--to", "cpu", "--json", tmp_path / "out.json", "--report", report
    )
    assert ended.code == 0, ended.err
    document = validated(tmp_path / "out.json", "profile")
    assert {row["ops"][0] for row in document["regions"]} == {  # type: ignore[index, union-attr]
        "aten.linear.default", "aten.gelu.default", "aten.layer_norm.default",
    }  # fmt: skip
    assert document["roofs"]["bytes_per_second"] > 0  # type: ignore[index, operator]
    assert "tapestry profile" in report.read_text()
    assert max(map(len, ended.out.splitlines())) <= 80

    ended = tapestry("migrate", f"{factories}:small", "--to", "cpu", "--fresh", "-o", placement)
    assert ended.code == 0, ended.err
    ended = tapestry(
        "profile", f"{factories}:small", "--to", "cpu", "--placement", placement, "--json", tmp_path / "out.json"
    )
    assert ended.code == 0, ended.err
    (row,) = validated(tmp_path / "out.json", "profile")["regions"]  # type: ignore[misc]
    assert len(row["ops"]) == 3


@pytest.mark.slow
def test_place(tapestry: Tapestry, factories: str, tmp_path: Path) -> None:
    placement = tmp_path / "placement.json"
    command = ["place", f"{factories}:small", "--backend", "eager", "--seconds", "60", "-o", placement]
    ended = tapestry(*command, "--json", tmp_path / "out.json")
    assert ended.code == 0, ended.err
    document = validated(tmp_path / "out.json", "place")
    assert [entry["backend"] for entry in document["singles"]] == ["eager"]  # type: ignore[index, union-attr]
    assert document["error"]["held_out"] <= 1e-5  # type: ignore[index, operator]
    assert max(map(len, ended.out.splitlines())) <= 80
    assert Placement.load(placement).format == "tapestry-placement"


@pytest.mark.parametrize("command", ["devices", "backends"])
def test_listings(tapestry: Tapestry, command: str, tmp_path: Path) -> None:
    ended = tapestry(command, "--json", tmp_path / "out.json")
    assert ended.code == 0, ended.err
    validated(tmp_path / "out.json", command)
    assert max(map(len, ended.out.splitlines())) <= 80


@pytest.mark.slow
@pytest.mark.opencl
def test_doctor(tapestry: Tapestry, tmp_path: Path) -> None:
    ended = tapestry("doctor", "--json", tmp_path / "out.json")
    assert ended.code in (0, 3), ended.err
    document = validated(tmp_path / "out.json", "doctor")
    assert ended.code == (0 if all(check["state"] == "good" for check in document["checks"]) else 3)  # type: ignore[index, union-attr]


def test_json_to_standard_output(tapestry: Tapestry, tmp_path: Path) -> None:
    """A path that is no regular file is written to, never replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    ended = tapestry("backends", "--json", pipe)
    assert ended.code == 0, ended.err
    assert json.loads(os.read(reader, 1 << 20))["command"] == "backends"
    os.close(reader)
    assert pipe.is_fifo()


def test_every_document_is_described() -> None:
    assert {path.stem for path in SCHEMA.glob("*.json")} == set(DOCUMENTS)
