"""Compiling: what is cached and under which key, damaged entries, and compilers that crash, hang or talk."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from support.compiling_backend import CompilingBackend, How
from tapestry.backends.base import Options
from tapestry.backends.cache import CompileCache, Refused, cache_key, replace_file
from tapestry.backends.compiler import Compiler
from tapestry.errors import CompileError, UnsupportedError
from tapestry.program.graph import Call, Graph, GraphInput, Ref, TensorSpec
from tapestry.runtime.device import DeviceInfo, Limits
from tapestry.runtime.module import Compiled

pytestmark = pytest.mark.slow

INFO = DeviceInfo("mock", "mock:0", "a device", "mock-1", Limits(max_bindings=8), frozenset({"float32"}))


def graph(size: int = 2) -> Graph:
    spec = TensorSpec((size,), (1,), torch.float32)
    call = Call("n0", torch.ops.aten.relu.default, (Ref("i0"),), (), (spec,))
    return Graph((GraphInput("i0", spec),), (call,), (Ref("n0"),))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One line per job that a compiler really did."""
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("TAPESTRY_TEST_LOG", str(path))
    return path


def jobs(log: Path) -> int:
    return len(log.read_text().splitlines())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def compiler(folder: Path) -> Iterator[Compiler]:
    with Compiler(CompileCache(folder), workers=1) as made:
        yield made


def test_compiled_once_over_processes(folder: Path, log: Path) -> None:
    backend = CompilingBackend()
    for round_ in range(3):
        with Compiler(CompileCache(folder)) as compiler:
            for _ in range(3):
                found = compiler.compile(backend, graph(), INFO, How())
            assert compiler.cache.hits == (1 if round_ else 0)
        assert isinstance(found, Compiled)
    assert jobs(log) == 1


def test_refusals_are_kept_and_faults_are_not(folder: Path, log: Path) -> None:
    backend = CompilingBackend()
    for act, error, words in (
        ("unsupported", UnsupportedError, "not this one"),
        ("error", CompileError, "line 3"),
        ("raise", CompileError, "compiling failed: ValueError: a bug in the compiler"),
    ):
        before = jobs(log)
        for _ in range(2):
            with Compiler(CompileCache(folder)) as compiler, pytest.raises(error, match=words):
                compiler.compile(backend, graph(), INFO, How(act))
        assert jobs(log) - before == (2 if act == "raise" else 1)


def _others() -> dict[str, tuple[CompilingBackend, Graph, DeviceInfo, Options]]:
    newer = CompilingBackend()
    newer.version = "2"  # type: ignore[misc]
    replace = msgspec.structs.replace
    base = CompilingBackend()
    return {
        "version": (newer, graph(), INFO, How()),
        "graph": (base, graph(3), INFO, How()),
        "options": (base, graph(), INFO, How(note="fast")),
        "fingerprint": (base, graph(), replace(INFO, fingerprint="mock-2"), How()),
        "kind": (base, graph(), replace(INFO, kind="opencl"), How()),
        "limits": (base, graph(), replace(INFO, limits=Limits(max_bindings=9)), How()),
        "dtypes": (base, graph(), replace(INFO, dtypes=frozenset({"float32", "float16"})), How()),
        "features": (base, graph(), replace(INFO, features=frozenset({"subgroups"})), How()),
    }


def test_everything_that_shapes_a_region_is_in_its_key(compiler: Compiler) -> None:
    keys = {compiler.key(*entry) for entry in _others().values()}
    keys.add(compiler.key(CompilingBackend(), graph(), INFO, How()))
    assert len(keys) == len(_others()) + 1
    second = msgspec.structs.replace(INFO, name="mock:1", description="its twin")
    assert compiler.key(CompilingBackend(), graph(), second, How()) == compiler.key(
        CompilingBackend(), graph(), INFO, How()
    )


def test_the_order_of_dtypes_does_not_count() -> None:
    names = [f"type{number}" for number in range(20)]
    one = msgspec.structs.replace(INFO, dtypes=frozenset(names))
    other = msgspec.structs.replace(INFO, dtypes=frozenset(reversed(names)))
    assert cache_key("k", "f", "o", one) == cache_key("k", "f", "o", other)


DAMAGES = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "only the digest": lambda data: data[:32],
    "a flipped bit": lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    "longer": lambda data: data + b"\0",
    "another format": lambda data: b"{}" * 40,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_a_miss(folder: Path, damage: str) -> None:
    cache = CompileCache(folder)
    key = cache_key("k", "f", "o", INFO)
    entry = Refused("error", "a reason that is long enough to be damaged")
    cache.put(key, entry)
    assert cache.get(key) == entry
    (file,) = (path for path in folder.rglob("*") if path.is_file())
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    assert cache.get(key) is None
    cache.put(key, entry)
    assert cache.get(key) == entry
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 1


def test_a_valid_checksum_over_nonsense_is_a_miss(folder: Path) -> None:
    import hashlib

    cache = CompileCache(folder)
    key = cache_key("k", "f", "o", INFO)
    cache.put(key, Refused("error", ""))
    (file,) = (path for path in folder.rglob("*") if path.is_file())
    for body in (b"\xc1", msgspec.msgpack.encode({"type": "unknown"}), msgspec.msgpack.encode([1, 2])):
        file.write_bytes(hashlib.sha256(body).digest() + body)
        assert cache.get(key) is None


def test_a_folder_that_cannot_be_written_costs_only_the_caching(tmp_path: Path, log: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        with Compiler(CompileCache(tmp_path / "file" / "cache")) as compiler:
            assert isinstance(compiler.compile(CompilingBackend(), graph(), INFO, How()), Compiled)
    assert jobs(log) == 2


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.mkdir()
    with pytest.raises(OSError, match=r"."):
        replace_file(target, b"data")
    assert list(tmp_path.iterdir()) == [target]


WRITER = """
import sys
from pathlib import Path
from tapestry.backends.cache import CompileCache, Refused
cache = CompileCache(Path(sys.argv[1]))
for number in range(300):
    cache.put("ab" * 32, Refused("error", sys.argv[2] * 5000))
    found = cache.get("ab" * 32)
    assert found is not None and len(set(found.reason)) == 1 and len(found.reason) == 5000, found
"""


def test_two_processes_at_once(folder: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(folder), letter], stderr=subprocess.PIPE, text=True)
        for letter in "xy"
    ]
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("abort", r"died \(signal SIGABRT\): compiler: internal error"),
        ("exit", r"died \(exit code 3\)"),
        ("hang", "did not finish within 4 s"),
    ],
)
def test_a_compiler_that_dies_costs_one_job(folder: Path, act: str, words: str) -> None:
    backend = CompilingBackend()
    with Compiler(CompileCache(folder), workers=1, timeout=4.0) as compiler:
        jobs_ = [compiler.start(backend, graph(), INFO, How(how, note)) for how, note in
                 (("work", "a"), (act, "b"), ("work", "c"), ("print", "d"), ("work", "e"))]  # fmt: skip
        with pytest.raises(CompileError, match=words):
            jobs_[1].result(60)
        for number in (0, 2, 3, 4):
            assert isinstance(jobs_[number].result(60), Compiled)


def test_closing_while_a_compiler_hangs(folder: Path, log: Path) -> None:
    compiler = Compiler(CompileCache(folder), workers=1)
    hanging = compiler.start(CompilingBackend(), graph(), INFO, How("hang"))
    waiting = compiler.start(CompilingBackend(), graph(3), INFO, How())
    limit = time.monotonic() + 60
    while not jobs(log):
        assert time.monotonic() < limit
        time.sleep(0.02)
    pid = int(log.read_text().split()[0])
    begin = time.monotonic()
    compiler.close()
    assert time.monotonic() - begin < 10
    with pytest.raises(CompileError, match="closed"):
        hanging.result(1)
    assert waiting.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    compiler.close()


def test_closing_before_a_child_has_started(folder: Path) -> None:
    for _ in range(3):
        compiler = Compiler(CompileCache(folder), workers=2)
        futures = [compiler.start(CompilingBackend(), graph(size), INFO, How("hang")) for size in (2, 3, 4)]
        thread = threading.Thread(target=compiler.close)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        assert all(future.done() for future in futures)


class Elsewhere(CompilingBackend):
    """Of a module that no other process can import, as one that was loaded from a file."""

    name = "elsewhere"


Elsewhere.__module__ = "tapestry_model_of_a_user"


def test_a_backend_that_the_child_cannot_import(compiler: Compiler) -> None:
    class Local(CompilingBackend):
        name = "local"

    with pytest.raises(CompileError, match=r"cannot import .*Local.*isolated = False"):
        compiler.compile(Local(), graph(), INFO, How())
    with pytest.raises(CompileError, match="Elsewhere"):
        compiler.compile(Elsewhere(), graph(), INFO, How())


def test_a_backend_in_this_process(compiler: Compiler) -> None:
    class Here(CompilingBackend):
        name = "here"
        isolated = False

    assert isinstance(compiler.compile(Here(), graph(), INFO, How()), Compiled)
    with pytest.raises(CompileError, match="here failed: ValueError: a bug"):
        compiler.compile(Here(), graph(), INFO, How("raise"))
    with pytest.raises(UnsupportedError, match="not this one"):
        compiler.compile(Here(), graph(), INFO, How("unsupported"))


def test_what_a_compiler_forks_off_ends_with_it(folder: Path, log: Path) -> None:
    with Compiler(CompileCache(folder), workers=1) as compiler:
        compiler.compile(CompilingBackend(), graph(), INFO, How("fork"))
        _, forked = map(int, log.read_text().split())
        os.kill(forked, 0)
    until = time.monotonic() + 20
    while _alive(forked) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _alive(forked)


def _alive(process: int) -> bool:
    """Running, and no zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_forgotten_compiler_ends_its_process(folder: Path, log: Path) -> None:
    compiler = Compiler(CompileCache(folder), workers=1)
    compiler.compile(CompilingBackend(), graph(), INFO, How())
    process = int(log.read_text())
    os.kill(process, 0)
    del compiler
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
