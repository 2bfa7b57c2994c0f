"""Costs on disk: kept, shared, and never in the way of a search."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.placement.search.store import VERSION, Answer, CostKey, CostStore

KEY = CostKey("latency", "r" * 64, "eager 1", "precision=float32", "mock-1", 2, "values")


def test_an_answer_is_found_again_by_another_store(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "costs.sqlite"
    with CostStore(path) as store:
        assert store.get(KEY) is None
        store.put(KEY, Answer(1.5e-6))
        assert store.get(KEY) == Answer(1.5e-6)
    with CostStore(path) as again:
        assert again.get(KEY) == Answer(1.5e-6)
        assert (len(again), again.hits, again.misses, again.messages) == (1, 1, 0, [])


def test_a_refusal_is_kept_with_its_reason(tmp_path: Path) -> None:
    with CostStore(tmp_path / "costs.sqlite") as store:
        store.put(KEY, Answer(refused="the worker did not answer within 5 s"))
        assert store.get(KEY) == Answer(0.0, "the worker did not answer within 5 s")


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("quantity", "error"), ("region", "q" * 64), ("backend", "eager 2"), ("options", "precision=float16"),
        ("device", "mock-2"), ("threads", 4), ("data", "others"),
    ],
)  # fmt: skip
def test_every_part_of_the_key_counts(tmp_path: Path, part: str, other: object) -> None:
    with CostStore(tmp_path / "costs.sqlite") as store:
        store.put(KEY, Answer(1.0))
        values = {name: getattr(KEY, name) for name in KEY.__struct_fields__}
        assert store.get(CostKey(**values | {part: other})) is None


@settings(max_examples=30, deadline=None)
@given(st.floats(min_value=0, max_value=1e6, allow_nan=False))
def test_numbers_come_back_as_they_were(number: float) -> None:
    with TemporaryDirectory() as folder, CostStore(Path(folder) / "costs.sqlite") as store:
        store.put(KEY, Answer(number))
        assert store.get(KEY) == Answer(number)


Spoil = Callable[[Path], None]


def _text(path: Path) -> None:
    path.write_bytes(b"this is no database, and longer than a header of one hundred bytes" * 20)


def _cut(path: Path) -> None:
    with CostStore(path) as store:
        for size in range(400):
            store.put(CostKey("boundary", str(size), "a", "", "b", 1), Answer(float(size)))
    path.write_bytes(path.read_bytes()[:5000])


def _newer(path: Path) -> None:
    CostStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()


def _foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks (address TEXT)")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(_text, "damaged"), (_cut, "damaged"), (_newer, "update tapestry-ml"), (_foreign, "another program")],
)
def test_an_unusable_file_is_left_alone_and_a_fresh_one_made_beside_it(
    tmp_path: Path, spoil: Spoil, words: str
) -> None:
    path = tmp_path / "costs.sqlite"
    spoil(path)
    before = path.read_bytes()
    for _ in range(2):
        with CostStore(path) as store:
            assert len(store.messages) == 1
            assert str(path) in store.messages[0]
            assert words in store.messages[0]
            assert "beside it" in store.messages[0]
            assert store.path == tmp_path / "costs.2.sqlite"
            store.put(KEY, Answer(2.0))
    with CostStore(path) as again:
        assert again.get(KEY) == Answer(2.0)
    assert path.read_bytes() == before


def test_damage_found_while_open_moves_on_to_a_fresh_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite"
    with CostStore(path) as store:
        for size in range(400):
            store.put(CostKey("boundary", str(size), "a", "", "b", 1), Answer(float(size)))
    with CostStore(path) as store:
        # Another one writes, so that the pages that this one remembers no longer count.
        with CostStore(path) as other:
            other.put(CostKey("boundary", "other", "a", "", "b", 1), Answer(1.0))
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(bytes(path.stat().st_size - 4096))
        store.put(KEY, Answer(3.0))
        assert store.get(KEY) == Answer(3.0)
        assert "damaged" in store.messages[0]


def test_where_no_file_can_be_written_costs_live_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with CostStore(tmp_path / "file" / "costs.sqlite") as store:
        store.put(KEY, Answer(4.0))
        assert store.get(KEY) == Answer(4.0)
        assert "forgotten at the end" in store.messages[0]
        assert store.path is None


def test_two_processes_write_at_once_and_a_killed_one_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite"
    code = (
        "import sys, os, signal\nfrom pathlib import Path\n"
        "from tapestry.placement.search.store import Answer, CostKey, CostStore\n"
        "store = CostStore(Path(sys.argv[1]))\n"
        "for place in range(50):\n"
        "    store.put(CostKey('latency', sys.argv[2] + str(place), 'b', '', 'd', 1), Answer(1.0))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in ("one", "two")]
    for child in children:
        assert child.wait(timeout=100) == -9
    with CostStore(path) as store:
        assert (len(store), store.messages) == (100, [])
