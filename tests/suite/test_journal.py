"""The journal keeps every whole record whatever happens, belongs to one job and one process, and goes on after it."""

from __future__ import annotations

import math
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.errors import FormatError, UsageError
from tapestry.suite import journal as journal_module
from tapestry.suite.journal import Journal, remove


class Answer(msgspec.Struct):
    """Something a job keeps."""

    text: str
    value: float = 0.0
    extra: tuple[int, ...] = ()


def filled(folder: Path, count: int = 4, subject: str = "job") -> bytes:
    with Journal(folder, subject) as journal:
        for place in range(count):
            journal.put("case", f"key {place}", Answer(f"answer {place}", place / 3, tuple(range(place))))
    return (folder / "journal.bin").read_bytes()


def kept(folder: Path, count: int = 6) -> list[str]:
    with Journal(folder, "job") as journal:
        answers = [journal.get("case", f"key {place}", Answer) for place in range(count)]
    return [answer.text for answer in answers if answer is not None]


def test_answers_are_found_again(tmp_path: Path) -> None:
    with Journal(tmp_path / "deep" / "journal", "job") as journal:
        assert journal.get("case", "a", Answer) is None
        journal.put("case", "a", Answer("one"))
        journal.put("check", "a", Answer("two"))
        journal.put("case", "a", Answer("three"))
        assert journal.get("case", "a", Answer) == Answer("three")
    with Journal(tmp_path / "deep" / "journal", "job") as journal:
        assert journal.get("case", "a", Answer) == Answer("three")
        assert journal.get("check", "a", Answer) == Answer("two")
        assert journal.get("check", "b", Answer) is None
        assert journal.found == 2


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -0.0, 5e-324, 1e308])
def test_numbers_survive(tmp_path: Path, value: float) -> None:
    with Journal(tmp_path, "job") as journal:
        journal.put("case", "é \u2028", Answer("\x00\U0001f9f5", value))
    with Journal(tmp_path, "job") as journal:
        answer = journal.get("case", "é \u2028", Answer)
    assert answer is not None
    assert (answer.text, repr(answer.value)) == ("\x00\U0001f9f5", repr(value))


def test_an_answer_of_another_type_counts_as_none(tmp_path: Path) -> None:
    class Other(msgspec.Struct):
        number: int

    with Journal(tmp_path, "job") as journal:
        journal.put("case", "a", Answer("one"))
        assert journal.get("case", "a", Other) is None


def test_killed_at_any_byte(tmp_path: Path) -> None:
    """Cut at every offset: the whole records before the cut are there, and work goes on behind them."""
    data = filled(tmp_path / "whole")
    with Journal(tmp_path / "header", "job"):
        pass
    ends = [len((tmp_path / "header" / "journal.bin").read_bytes())]
    for count in range(1, 5):
        ends.append(len(filled(tmp_path / f"first {count}", count)))
    folder = tmp_path / "cut"
    folder.mkdir()
    for size in range(len(data) + 1):
        (folder / "journal.bin").write_bytes(data[:size])
        whole = max(sum(end <= size for end in ends) - 1, 0)
        with Journal(folder, "job") as journal:
            found = [journal.get("case", f"key {place}", Answer) for place in range(4)]
            assert [answer is not None for answer in found] == [place < whole for place in range(4)], size
            journal.put("case", "key 5", Answer("after"))
        assert kept(folder) == [*(f"answer {place}" for place in range(whole)), "after"], size


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.data())
def test_a_changed_byte_loses_its_record_only(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = filled(folder)
        ends = [len(filled(folder / f"first {count}", count)) for count in range(5)]
        place = data.draw(st.integers(0, len(whole) - 1))
        changed = bytearray(whole)
        changed[place] ^= data.draw(st.integers(1, 255))
        (folder / "journal.bin").write_bytes(changed)
        with Journal(folder, "job") as journal:
            damage = journal.damage
        hit = sum(end <= place for end in ends) - 1  # -1 is the header: whose journal it was is not known then
        want = [f"answer {number}" for number in range(4) if number != hit] if hit >= 0 else []
        assert kept(folder) == want
        assert "damaged and were dropped" in damage
        lost = ends[hit + 1] - ends[hit] if hit >= 0 else len(whole)
        assert damage.startswith(f"{lost:,} bytes")
        with Journal(folder, "job") as journal:
            assert journal.damage == "", "what is damaged is reported once"
            journal.put("case", f"key {max(hit, 0)}", Answer("again"))
        assert sorted(kept(folder)) == sorted([*want, "again"])


def test_damage_over_several_records(tmp_path: Path) -> None:
    whole = filled(tmp_path)
    ends = [len(filled(tmp_path / f"first {count}", count)) for count in range(5)]
    changed = whole[: ends[1] + 3] + bytes(500) + whole[ends[3] - 1 :]
    (tmp_path / "journal.bin").write_bytes(changed)
    assert kept(tmp_path) == ["answer 0", "answer 3"]


def test_a_damaged_length_asks_for_no_memory(tmp_path: Path) -> None:
    whole = filled(tmp_path)
    (tmp_path / "journal.bin").write_bytes(whole + b"\xff\xff\xff\xff" + b"\x00" * 40)
    assert kept(tmp_path) == [f"answer {place}" for place in range(4)]


def test_another_job_is_refused(tmp_path: Path) -> None:
    before = filled(tmp_path)
    with (
        pytest.raises(UsageError, match="belongs to another job: expected 'other', got 'job'"),
        Journal(tmp_path, "other"),
    ):
        pass
    assert (tmp_path / "journal.bin").read_bytes() == before
    assert len(kept(tmp_path)) == 4, "the lock was given back"


def test_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(journal_module, "_VERSION", 2)
        filled(tmp_path)
    with pytest.raises(FormatError, match="version 2"), Journal(tmp_path, "job"):
        pass


HOLDER = """
import sys
from pathlib import Path
from tapestry.suite.journal import Journal
with Journal(Path(sys.argv[1]), "job"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time(tmp_path: Path) -> None:
    filled(tmp_path)
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match="in use by another process"), Journal(tmp_path, "job"):
            pass
        with pytest.raises(UsageError, match="in use by another process"):
            remove(tmp_path)
        other.kill()
    assert len(kept(tmp_path)) == 4, "a killed process holds nothing"


def test_one_journal_at_a_time_in_one_process(tmp_path: Path) -> None:
    with Journal(tmp_path, "job"), pytest.raises(UsageError, match="in use"), Journal(tmp_path, "job"):
        pass


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "taken" / "journal.bin").mkdir(parents=True)
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "taken", Path("/proc/nowhere")):
        with pytest.raises(UsageError, match="cannot keep a journal"), Journal(folder, "job"):
            pass


def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path, "job") as journal:
        pass
    with pytest.raises(UsageError, match="not open"):
        journal.put("case", "a", Answer("one"))


def test_a_full_disk_loses_one_answer_and_no_other(tmp_path: Path) -> None:
    with Journal(tmp_path, "job") as journal:
        journal.put("case", "key 0", Answer("answer 0"))
        size = (tmp_path / "journal.bin").stat().st_size
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, before[1]))  # half a record fits
        try:
            with pytest.raises(UsageError, match="free space"):
                journal.put("case", "key 1", Answer("x" * 1000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert journal.get("case", "key 1", Answer) is None
        journal.put("case", "key 2", Answer("answer 2"))
    assert kept(tmp_path) == ["answer 0", "answer 2"]


def test_a_full_disk_at_the_start(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))
    try:
        with pytest.raises(UsageError), Journal(tmp_path, "job"):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert kept(tmp_path) == []


def test_removing(tmp_path: Path) -> None:
    remove(tmp_path / "missing")
    filled(tmp_path)
    remove(tmp_path)
    remove(tmp_path)
    assert kept(tmp_path) == []
