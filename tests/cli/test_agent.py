"""``tapestry agent`` as a process: what it shows, what it warns of, and that its token is seen once."""

from __future__ import annotations

import json
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.command import Tapestry
from tapestry.cli.commands.agent import parse_address
from tapestry.errors import EnvironmentProblem, UsageError
from tapestry.runtime.open import open_device

pytest.importorskip("websockets")
pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-P", "-c", "from tapestry.cli import main; main()", "agent", "--device", "cpu")


class Running:
    """An agent's process, with the line that it shows."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(60), "it shows nothing"
        self.shown = process.stdout.readline().strip()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """End it; its exit code and what it said."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said


@contextmanager
def running(*options: object) -> Iterator[Running]:
    process = subprocess.Popen(
        [*COMMAND, *map(str, options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield Running(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=10)


def test_a_token_is_made_up_and_shown_once_in_a_name_to_paste(tmp_path: Path) -> None:
    with running("--listen", "127.0.0.1:0", "--json", tmp_path / "out.json") as agent:
        match = re.fullmatch(r"(ws://127\.0\.0\.1:\d+/cpu)\?token=([\w-]{32})", agent.shown)
        assert match is not None, agent.shown
        name, token = match.groups()
        with open_device(agent.shown) as device:
            assert device.info.name == name
            device.sync()
        with pytest.raises(UsageError, match="token"):
            open_device(f"{name}?token={token[::-1]}")
        document = json.loads((tmp_path / "out.json").read_text())
        assert (document["command"], document["device"], document["address"]) == ("agent", "cpu", name)
        code, said = agent.stop()
    assert code == 0
    assert token not in said + (tmp_path / "out.json").read_text()
    assert "warning" not in said
    assert "connected from 127.0.0.1" in said
    assert "is gone" in said
    assert "Traceback" not in said


def test_a_given_token_is_not_shown_at_all() -> None:
    with running("--listen", "[::1]:0", "--token", "A-given-token-0123456789") as agent:
        assert re.fullmatch(r"ws://\[::1\]:\d+/cpu\?token=…", agent.shown)
        with open_device(agent.shown.replace("…", "A-given-token-0123456789")) as device:
            device.sync()
        code, said = agent.stop(signal.SIGINT)
    assert code == 130
    assert "A-given" not in said
    assert "interrupted" in said


def test_beyond_loopback_it_warns() -> None:
    with running("--listen", "0.0.0.0:0", "--token", "short", "--allow-native") as agent:
        assert "0.0.0.0" not in agent.shown
        _, said = agent.stop()
    assert "warning: 0.0.0.0 is reached from other machines" in said
    assert "anything this user can do" in said
    assert "has 5 characters" in said


def test_devices_looks_at_one_by_its_name(tapestry: Tapestry, tmp_path: Path) -> None:
    with running("--listen", "127.0.0.1:0") as agent:
        token = agent.shown.partition("token=")[2]
        gone = agent.shown.replace("127.0.0.1", "127.0.0.2").replace(token, "another-token")
        ended = tapestry("devices", agent.shown, gone, "--json", tmp_path / "out.json")
    assert ended.code == 0, ended.err
    here, there = json.loads((tmp_path / "out.json").read_text())["devices"]
    assert (here["name"], here["kind"], here["ready"]) == (agent.shown.partition("?")[0], "host", True)
    assert not there["ready"]
    assert "no agent at 127.0.0.2" in there["reason"]
    assert "token" not in ended.out + (tmp_path / "out.json").read_text()


def test_stopping_takes_the_workers_along() -> None:
    with running("--listen", "127.0.0.1:0") as agent:
        device = open_device(agent.shown)
        children = subprocess.run(
            ["pgrep", "-P", str(agent.process.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        assert children
        agent.stop()
        deadline = time.monotonic() + 5
        while any(Path(f"/proc/{child}").exists() for child in children):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        device.close()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--device", "gpu"], 2, ["'gpu' is not a device name"]),
        (["--device", "ws://h:1/cpu"], 2, ["a device of its own machine"]),
        (["--device", "cpu", "--listen", "8790"], 2, ["expected --listen HOST:PORT"]),
        (["--device", "cpu", "--listen", "127.0.0.1:99999"], 2, ["expected --listen HOST:PORT"]),
        (["--device", "cpu", "--listen", "192.0.2.77:8790"], 3, ["cannot listen on 192.0.2.77:8790"]),
        (["--device", "cpu", "--token", ""], 2, ["expected a token of 1 to 1,024 characters"]),
        (["--device", "cpu", "--quota", "0"], 2, ["--quota"]),
        (["--device", "cuda:0"], 3, ["cuda"]),
        ([], 2, ["--device"]),
    ],
)
def test_what_it_refuses(tapestry: Tapestry, arguments: list[str], code: int, words: list[str]) -> None:
    ended = tapestry("agent", *arguments)
    assert ended.code == code, ended.err
    for word in words:
        assert word in ended.err


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:1", ("127.0.0.1", 1)), ("[::1]:0", ("::1", 0)), ("lab.example:65535", ("lab.example", 65535))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":1", "a", "a:", "a:b", "::1:5", "a:-1", "a:65536", "a:1.5", "a: 1"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="expected --listen"):
        parse_address(text)


def test_two_agents_at_one_port() -> None:
    with running("--listen", "127.0.0.1:0") as agent:
        port = agent.shown.partition("/cpu")[0].rpartition(":")[2]
        done = subprocess.run(
            [*COMMAND, "--listen", f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == EnvironmentProblem.exit_code
    assert "choose another address with --listen" in done.stderr
