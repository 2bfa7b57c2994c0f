"""Stored suites: equal after a round trip, replaced in one step, and refused when a single byte is wrong."""

from __future__ import annotations

import json
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.eager import same_bits
from tapestry.errors import FormatError, UsageError
from tapestry.program.capture import capture
from tapestry.suite import store
from tapestry.suite.carve import carve
from tapestry.suite.case import LeftOut, Suite
from tapestry.suite.store import load_suite, save_suite

PICKLE = b"(dVformat\nVtapestry-suite\ns."


def carved(value: float) -> Suite:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.t().exp(),
            x[:1].expand(3, 3) + x[1:4],
            x.sum() > 0,
            x.bfloat16() * 2,
            x[:0] * 2,
            torch.complex(x, x) + 1,
        )

    inputs = [(torch.full((4, 3), value),), (torch.full((4, 3), float("nan")),)]
    suite = carve(capture(model, (torch.ones(4, 3),)), inputs)
    return replace(suite, left_out=(*suite.left_out, LeftOut("k", "aten.exp.default", 3, "a reason")))


@pytest.fixture(scope="module")
def suite() -> Suite:
    return carved(2.0)


@pytest.fixture(scope="module")
def other() -> Suite:
    return carved(5.0)


def files(path: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in path.iterdir()}


def assert_equal(one: Suite, another: Suite) -> None:
    assert (one.info, one.cases, one.left_out) == (another.info, another.cases, another.left_out)
    assert one.tensors.keys() == another.tensors.keys()
    assert all(same_bits(one.tensors[digest], another.tensors[digest]) for digest in one.tensors)


def test_round_trip(suite: Suite, tmp_path: Path) -> None:
    written = save_suite(suite, tmp_path / "deep" / "suite")
    again = load_suite(tmp_path / "deep" / "suite")
    assert_equal(again, suite)
    assert written == sum(len(data) for data in files(tmp_path / "deep" / "suite").values())
    for case in suite.cases:
        for one, another in zip(suite.inputs(case), again.inputs(case), strict=True):
            assert same_bits(one, another)
            assert one.stride() == another.stride()


def test_an_empty_suite(suite: Suite, tmp_path: Path) -> None:
    empty = Suite(suite.info, (), {})
    save_suite(empty, tmp_path / "suite")
    assert_equal(load_suite(tmp_path / "suite"), empty)


def test_tensors_that_share_memory_and_have_strides(suite: Suite, tmp_path: Path) -> None:
    memory = torch.arange(12.0)
    tensors = {"a": memory, "b": memory[2:5], "c": memory.view(3, 4).t(), "d": memory[:0], "e": torch.zeros(0)}
    loose = Suite(suite.info, (), tensors)
    save_suite(loose, tmp_path / "suite")
    assert_equal(load_suite(tmp_path / "suite"), loose)


def test_nothing_else_is_left_behind_and_the_folder_is_readable(suite: Suite, other: Suite, tmp_path: Path) -> None:
    path = tmp_path / "suite"
    for entry in (suite, other, other, suite):
        save_suite(entry, path)
        assert_equal(load_suite(path), entry)
        assert len(files(path)) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["suite"]
    assert path.stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_empty_folder_may_be_used(suite: Suite, tmp_path: Path) -> None:
    save_suite(suite, tmp_path)
    assert_equal(load_suite(tmp_path), suite)


# -- what is damaged


def test_any_changed_byte_is_found(suite: Suite, tmp_path: Path) -> None:
    """Every byte at the start of the manifest, and bytes all over the rest of it and the tensors."""
    save_suite(Suite(suite.info, suite.cases[:1], suite.tensors, suite.left_out), tmp_path / "suite")
    manifest, tensors = tmp_path / "suite" / "suite.json", next((tmp_path / "suite").glob("tensors-*"))
    whole = manifest.read_bytes()
    for place in [*range(400), *range(400, len(whole), 5)]:
        changed = bytearray(whole)
        changed[place] = ord(" ") if changed[place] == ord("\n") else changed[place] ^ 1
        manifest.write_bytes(changed)
        with pytest.raises(FormatError):
            load_suite(tmp_path / "suite")
    manifest.write_bytes(whole)
    data = tensors.read_bytes()
    for place in [*range(12), *range(12, len(data), max(1, len(data) // 40)), len(data) - 1]:
        changed = bytearray(data)
        changed[place] ^= 128
        tensors.write_bytes(changed)
        with pytest.raises(FormatError):
            load_suite(tmp_path / "suite")


def test_truncated_files(suite: Suite, tmp_path: Path) -> None:
    save_suite(suite, tmp_path / "suite")
    for name, data in files(tmp_path / "suite").items():
        file = tmp_path / "suite" / name
        for size in [0, 1, 7, 8, 20, len(data) // 2, len(data) - 1]:
            file.write_bytes(data[:size])
            with pytest.raises(FormatError):
                load_suite(tmp_path / "suite")
        file.write_bytes(data + b"\n")
        with pytest.raises(FormatError):
            load_suite(tmp_path / "suite")
        file.write_bytes(data)
    assert_equal(load_suite(tmp_path / "suite"), suite)


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b"{}", b"\xff\xfe\x00", b"[" * 100_000, b'{"format": "other", "version": 1}',
     b'{"format": "tapestry-suite", "version": "one"}', b'{"format": "tapestry-suite", "version": 1}',
     PICKLE],
)  # fmt: skip
def test_other_manifests(suite: Suite, tmp_path: Path, content: bytes) -> None:
    save_suite(suite, tmp_path / "suite")
    (tmp_path / "suite" / "suite.json").write_bytes(content)
    with pytest.raises(FormatError):
        load_suite(tmp_path / "suite")


def test_a_newer_version_says_so(suite: Suite, tmp_path: Path) -> None:
    save_suite(suite, tmp_path / "suite")
    manifest = tmp_path / "suite" / "suite.json"
    manifest.write_text(json.dumps({"format": "tapestry-suite", "version": 3, "anything": "else"}))
    with pytest.raises(FormatError, match="got version 3; update tapestry-ml"):
        load_suite(tmp_path / "suite")


def test_a_manifest_names_no_file_elsewhere(suite: Suite, tmp_path: Path) -> None:
    save_suite(suite, tmp_path / "suite")
    manifest, tensors = tmp_path / "suite" / "suite.json", next((tmp_path / "suite").glob("tensors-*"))
    outside = tmp_path / tensors.name
    tensors.rename(outside)
    with pytest.raises(FormatError, match="incomplete"):
        load_suite(tmp_path / "suite")
    forged = manifest.read_bytes().replace(tensors.name.encode(), f"../{tensors.name}".encode())
    manifest.write_bytes(forged)
    with pytest.raises(FormatError):
        load_suite(tmp_path / "suite")


def test_a_pickle_is_never_opened(suite: Suite, tmp_path: Path) -> None:
    bomb = f"cposix\nmkdir\n(V{tmp_path / 'ran'}\ntR.".encode()  # a pickle that makes a folder when it is opened
    save_suite(suite, tmp_path / "suite")
    for name in files(tmp_path / "suite"):
        (tmp_path / "suite" / name).write_bytes(bomb)
        with pytest.raises(FormatError):
            load_suite(tmp_path / "suite")
    assert not (tmp_path / "ran").exists()


def test_what_is_no_suite(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("missing", "file", "empty"):
        with pytest.raises(UsageError, match="expected a suite"):
            load_suite(tmp_path / name)


# -- what goes wrong while writing


def test_something_else_is_not_overwritten(suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "folder"):
        with pytest.raises(UsageError, match="choose another path"):
            save_suite(suite, path)
    with pytest.raises(UsageError, match="cannot store"):
        save_suite(suite, tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "notes").read_text() == "mine"


def test_an_unwritable_place(suite: Suite) -> None:
    with pytest.raises(UsageError, match="cannot store"):
        save_suite(suite, Path("/proc/nowhere/suite"))


class Stop(BaseException):
    """Stands for an interrupt."""


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Stop(), MemoryError()])
@pytest.mark.parametrize("step", ["save_file", "file_sha256", "_move", "second _move"])
def test_a_failure_anywhere_leaves_the_old_suite(
    suite: Suite, other: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    for path in (tmp_path / "old", tmp_path / "new"):
        if path.name == "old":
            save_suite(suite, path)
        calls = iter([step.startswith("second"), False])

        def fail(
            *args: object, original: object = getattr(store, step.rsplit(maxsplit=1)[-1]), calls: object = calls
        ) -> object:
            if next(calls):  # pyright: ignore
                return original(*args)  # pyright: ignore
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(store, step.rsplit(maxsplit=1)[-1], fail)
            with pytest.raises(UsageError if isinstance(error, OSError) else type(error)):
                save_suite(other, path)
    assert_equal(load_suite(tmp_path / "old"), suite)
    assert len(files(tmp_path / "old")) == 2
    assert not (tmp_path / "new").exists()


def test_a_killed_process_leaves_the_old_suite_or_the_new_one(suite: Suite, other: Suite, tmp_path: Path) -> None:
    """Killed before the manifest is replaced, or right after it."""
    path = tmp_path / "suite"
    for moves, expected in ((1, suite), (2, other)):
        save_suite(suite, path)
        done = iter(range(3))

        def killed(*args: Path, original: object = store._move, moves: int = moves, done: object = done) -> None:  # noqa: SLF001
            if next(done) == moves:  # pyright: ignore
                os.kill(os.getpid(), signal.SIGKILL)
            original(*args)  # pyright: ignore

        child = os.fork()
        if child == 0:
            store._move = killed  # noqa: SLF001
            store._clean = lambda *args: os.kill(os.getpid(), signal.SIGKILL)  # noqa: SLF001
            save_suite(other, path)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert len(files(path)) > 2, "it was killed in the middle"
        assert_equal(load_suite(path), expected)
    save_suite(suite, path)
    assert len(files(path)) == 2, "the next save clears what the killed one left"


def test_a_full_disk(suite: Suite, other: Suite, tmp_path: Path) -> None:
    """A file size limit makes the operating system refuse the writes themselves."""
    save_suite(suite, tmp_path / "suite")
    big = Suite(other.info, other.cases, {**other.tensors, "big": torch.zeros(1 << 18)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, before[1]))
    try:
        with pytest.raises(UsageError, match="cannot store"):
            save_suite(big, tmp_path / "suite")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_equal(load_suite(tmp_path / "suite"), suite)
    assert len(files(tmp_path / "suite")) == 2
