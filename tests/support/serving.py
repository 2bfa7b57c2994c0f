"""Agents for tests: in this process on a mock device, and as processes of their own that can be killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tapestry.runtime.names import DeviceName, parse_device_name
from tapestry.runtime.open import open_device
from tapestry.runtime.remote.agent import QUOTA_BYTES, Agent, AgentOptions
from tapestry.runtime.remote.device import RemoteDevice
from tapestry.runtime.remote.guard import Guard

#: As long as a real one, and easy to look for.
TOKEN = "SECRET-token-of-the-tests-0123"


@contextmanager
def serving(
    device: str = "mock", *, guard: Guard | None = None, quota_bytes: int = QUOTA_BYTES, lines: list[str] | None = None
) -> Iterator[Agent]:
    """An agent in this process. What it tells people is added to ``lines``."""
    told: list[str] = [] if lines is None else lines
    options = AgentOptions(
        parse_device_name(device), TOKEN, ("127.0.0.1", 0), guard or Guard.of((), (), False), quota_bytes
    )
    agent = Agent(options, told.append)
    try:
        yield agent
    finally:
        agent.stop()


def address(agent: Agent, device: str = "mock:0", token: str = TOKEN, port: int | None = None) -> str:
    """The name by which a client reaches the agent's device."""
    return f"ws://127.0.0.1:{port or agent.address[1]}/{device}?token={token}"


@contextmanager
def connected(
    agent: Agent, *, timeout: float = 10, port: int | None = None, reconnect: float = 20
) -> Iterator[RemoteDevice]:
    """The agent's device, through another port where one is given."""
    name = parse_device_name(address(agent, str(agent.options.device), port=port))
    device = RemoteDevice(name, timeout=timeout, reconnect=reconnect)
    try:
        yield device
    finally:
        device.close()


def opened(name: str, **options: float) -> RemoteDevice:
    """As users open one."""
    device = open_device(name, **options)
    assert isinstance(device, RemoteDevice)
    return device


class AgentProcess:
    """``tapestry agent`` on a free port, which it has again after ``kill`` and ``start``."""

    def __init__(self, device: str, *options: str) -> None:
        self.port = free_port()
        self.name = str(DeviceName("ws", 0, "127.0.0.1", self.port, device))
        self._command = [
            *(
                sys.executable,
                "-P",
                "-c",
                "from tapestry.cli import main; main()",
                "agent",
                "--device",
                device,
                "--token",
                TOKEN,
            ),
            *("--listen", f"127.0.0.1:{self.port}", *options),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def address(self) -> str:
        return f"{self.name}?token={TOKEN}"

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it without waiting."""
        self.starts += 1
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        """Until it listens."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise TimeoutError("the agent does not listen")

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(10)

    def __enter__(self) -> AgentProcess:
        self.start()
        try:
            self.wait()
        except TimeoutError:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def without_token(texts: Sequence[str]) -> bool:
    """Whether the secret is in none of them."""
    return all(TOKEN not in text for text in texts)
