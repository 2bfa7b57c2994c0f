"""Bundles on disk: whole or not there, and never in place of something else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.subjects import subject_of
from tapestry.errors import FormatError, UsageError
from tapestry.numerics.judgement import Metrics
from tapestry.suite.case import Case, Suite
from tapestry.suite.repro import bundle
from tapestry.suite.repro.attempt import expected
from tapestry.suite.repro.bundle import check_folder, read_record, write_bundle
from tapestry.suite.repro.record import DeviceRecord, Errors, ReproRecord, Size
from tapestry.suite.repro.single import suite_of

RECORD = ReproRecord(
    op="aten.relu.default", case="relu-0", variant="", source="net.py:3", device=DeviceRecord("cpu", "host", "", "1"),
    backend="eager", options="", fingerprint="1", verdict="fail", way="fail: values", reason="wrong",
    errors=Errors.of(Metrics(max_rel=float("inf"))), judged_by="exact", before=Size(9, 4, 1), after=Size(1, 0, 1),
    runs=3, seconds=1.0, steady=True, reductions={}, versions={},
)  # fmt: skip
FILES = {"README.md": b"hello", "repro.py": b"print(1)\n"}


def suite() -> Suite:
    subject = subject_of(torch.ops.aten.relu.default, torch.tensor([float("nan"), -0.0]))
    case = Case("relu-0", "", "aten.relu.default", "", "", "", "", (), 0, 0, (), (), ())
    return suite_of(subject, expected(subject), case)


def test_there_and_back(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    write_bundle(folder, RECORD, FILES, suite())
    found = read_record(folder)
    assert found.errors.max_rel is None
    assert (found.before, found.after, found.op) == (RECORD.before, RECORD.after, RECORD.op)
    assert (folder / "README.md").read_bytes() == b"hello"
    assert {path.name for path in folder.parent.iterdir()} == {"out"}
    (folder / "plain").touch()
    plain = (folder / "plain").stat().st_mode
    assert all(path.stat().st_mode == plain for path in folder.rglob("*") if path.is_file())


def test_an_old_bundle_is_replaced_whole(tmp_path: Path) -> None:
    write_bundle(tmp_path / "out", RECORD, {**FILES, "inputs.bin": b"1"}, suite())
    write_bundle(tmp_path / "out", RECORD, FILES, suite())
    assert not (tmp_path / "out" / "inputs.bin").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write_bundle(tmp_path / "out", RECORD, FILES, suite())
    assert read_record(tmp_path / "out").case == "relu-0"


@pytest.mark.parametrize("what", ["file", "folder", "other json", "broken json", "link"])
def test_something_else_is_never_replaced(tmp_path: Path, what: str) -> None:
    place = tmp_path / "out"
    if what == "file":
        place.write_text("mine")
    elif what == "link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir()
        content = {"folder": None, "other json": '{"format": "mine"}', "broken json": "{"}[what]
        (place / ("repro.json" if content else "mine.txt")).write_text(content or "mine")
    with pytest.raises(UsageError, match="got something else"):
        check_folder(place)
    with pytest.raises(UsageError, match="got something else"):
        write_bundle(place, RECORD, FILES, suite())
    assert not list(tmp_path.glob(".writing-*"))


def test_a_write_that_fails_leaves_the_old_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bundle(tmp_path / "out", RECORD, FILES, suite())

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle, "save_suite", full)
    with pytest.raises(UsageError, match="No space left"):
        write_bundle(tmp_path / "out", RECORD, {"README.md": b"new"}, suite())
    assert (tmp_path / "out" / "README.md").read_bytes() == b"hello"
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_records_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="got none"):
        read_record(tmp_path)
    (tmp_path / "repro.json").write_text('{"format": "tapestry-repro"}')
    with pytest.raises(FormatError, match="not the record"):
        read_record(tmp_path)
