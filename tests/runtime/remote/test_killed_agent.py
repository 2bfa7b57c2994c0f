"""An agent that is killed in the middle of a job and started again: the job ends as if nothing had happened."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.migrating import blocks, blocks_suite, inputs
from support.serving import TOKEN, AgentProcess
from tapestry.migration.check import Checker
from tapestry.migration.migrate import migrate
from tapestry.placement.build import build
from tapestry.placement.placement import Placement
from tapestry.suite import on_target
from tapestry.suite.journal import Journal
from tapestry.suite.replay import replay

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.runtime.open._tokens", {})


@pytest.fixture
def agent() -> Iterator[AgentProcess]:
    with AgentProcess("cpu") as process:
        yield process


class Killing:
    """Tells of progress; kills the agent at these numbers of reports, and starts it again a moment later."""

    def __init__(self, agent: AgentProcess, *when: int) -> None:
        self.agent = agent
        self.when = set(when)
        self.reports = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        self.reports += what != "carving"
        if self.reports in self.when:
            self.when.discard(self.reports)
            self.agent.kill()
            threading.Timer(0.5, self.agent.start).start()


def counted(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> list[object]:
    """What calls of this function get, in a list that grows."""
    real, calls = getattr(where, name), []

    def call(*args: object, **kwargs: object) -> object:
        calls.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(where, name, call)
    return calls


def comparable(result: msgspec.Struct) -> object:
    """Without what a clock, or the device's name, makes different."""

    def bare(value: object) -> object:
        if isinstance(value, dict):
            left = ("seconds", "device", "target", "resumed", "mixed")
            return {key: bare(entry) for key, entry in value.items() if key not in left}
        return [bare(entry) for entry in value] if isinstance(value, list | tuple) else value

    return bare(msgspec.to_builtins(result))


def test_in_a_replay(agent: AgentProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = blocks_suite()
    want = replay(suite, "cpu", "eager")
    runs = counted(monkeypatch, on_target, "run_once")
    with Journal(tmp_path / "journal", "replay") as journal:
        got = replay(suite, agent.address, "eager", journal, Killing(agent, 2, 5))
    assert agent.starts == 3
    assert comparable(got) == comparable(want)
    assert all(entry.verdict == "pass" for entry in got.results)
    assert got.device == agent.name
    assert len(runs) <= len(suite.cases) + 2  # one more for each of the two that were on their way
    del runs[:]
    with Journal(tmp_path / "journal", "replay") as journal:
        assert comparable(replay(suite, agent.address, "eager", journal)) == comparable(want)
    assert not runs
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


def test_in_a_migration(agent: AgentProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, program), sets = blocks(), inputs(2)
    with migrate(program, "cpu", sets, "eager", suite=blocks_suite(), variants=0) as moved:
        want = comparable(moved.result)
    checks = counted(monkeypatch, Checker, "_check_one")
    killing = Killing(agent, 3, 9)
    # The steps report nothing, so this counts as the cases do: at the third and the ninth program run.
    monkeypatch.setattr(Checker, "_check_one", _reporting(Checker._check_one, killing))  # noqa: SLF001
    with migrate(program, agent.address, sets, "eager", suite=blocks_suite(), variants=0, journal=tmp_path) as moved:
        got = comparable(moved.result)
        placement = moved.placement
        repeated = len(checks) - moved.result.program_runs
    assert agent.starts == 3
    assert got == want
    assert repeated <= 2
    text = msgspec.json.encode(moved.result).decode()
    placement.save(tmp_path / "placement.json")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    assert TOKEN not in text
    executable = build(program, Placement.load(tmp_path / "placement.json"))
    executable(*sets[0])  # found by its name; this process knows the token
    executable.close()


def _reporting(check: Any, tell: Killing) -> Any:
    def call(*args: object) -> object:
        tell("checking", 0, 0)
        return check(*args)

    return call
