"""The client's side: a Device behind an agent, which is found again after its connection broke.

Not here: the agent, and how names are parsed (runtime.names).
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace

import msgspec

from tapestry.errors import (
    ConnectionLostError,
    DeviceLostError,
    DeviceTimeoutError,
    EnvironmentProblem,
    TapestryError,
    UsageError,
)
from tapestry.extras import missing
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.names import DeviceName
from tapestry.runtime.protocol.client import ProtocolDevice
from tapestry.runtime.protocol.framing import Channel, FrameLimits
from tapestry.runtime.protocol.messages import DeviceBusyError
from tapestry.runtime.remote.channel import WebSocketChannel, connection_options

#: Seconds for connecting, opening the device and the handshake.
START_TIMEOUT = 60.0
#: Seconds for the connection itself.
CONNECT_TIMEOUT = 10.0
#: Seconds that ``restart`` looks for the agent, if nothing else is said.
RECONNECT_SECONDS = 60.0
#: Seconds beyond the device's time for an answer to arrive: the agent's own watchdog comes first.
GRACE_SECONDS = 15.0
#: Seconds between two attempts to reconnect: the first, and the longest.
FIRST_WAIT = 0.1
LONGEST_WAIT = 3.0


class RemoteDevice(ProtocolDevice):
    """A device behind an agent. ``timeout``: seconds for each request, after which the agent gives its worker up.

    Where the connection breaks, requests raise ConnectionLostError; ``restart`` then looks for the agent again for
    ``reconnect`` seconds. Raises EnvironmentProblem when there is no agent or its device cannot be opened,
    DeviceBusyError when someone else has it, UsageError for a wrong token. No message holds the token.
    """

    def __init__(
        self,
        name: DeviceName,
        *,
        timeout: float,
        start_timeout: float = START_TIMEOUT,
        reconnect: float = RECONNECT_SECONDS,
    ) -> None:
        super().__init__(name.target, name.token, timeout=timeout, start_timeout=start_timeout)
        self._name = replace(name, token="")
        self._reconnect = reconnect
        self._session = os.urandom(8).hex()
        self._connection = ExitStack()
        self._start()

    @property
    def info(self) -> DeviceInfo:
        """As the agent says; ``name`` is the address by which the device is reached from here, without its token."""
        assert self._info is not None, "the handshake sets it before anyone has this object"
        return self._info

    def restart(self) -> None:
        """Find the agent again and open a fresh device there. DeviceLostError when that takes over ``reconnect`` s."""
        with self._lock:
            self.close()
            self._generation += 1
            deadline = time.monotonic() + self._reconnect
            wait = FIRST_WAIT
            while (problem := self._try_start()) is not None:
                if time.monotonic() + wait > deadline:
                    raise DeviceLostError(
                        f"{self._name}: no connection again within {self._reconnect:g} s: {problem}"
                    ) from problem
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)

    def _try_start(self) -> TapestryError | None:
        """What stood in the way, if it may pass by itself. What may not is raised."""
        try:
            self._start()
        except (_UnreachableError, DeviceBusyError, ConnectionLostError) as error:
            return error
        return None

    def _start(self) -> None:
        try:
            super()._start()
        except _UnreachableError:
            raise
        except (UsageError, EnvironmentProblem) as error:
            raise type(error)(f"{self._name}: {error}") from None
        assert self._info is not None, "the handshake has set it"
        self._info = msgspec.structs.replace(self._info, name=str(self._name))

    @property
    def _patience(self) -> float:
        return super()._patience + GRACE_SECONDS

    def _connect(self) -> Channel:
        host = f"[{self._name.host}]" if ":" in self._name.host else self._name.host
        where = f"{host}:{self._name.port}"
        try:
            from websockets.exceptions import InvalidStatus, WebSocketException
            from websockets.sync.client import connect
        except ModuleNotFoundError as error:
            raise missing(error, f"the device {self._name}") or error from error
        stack = ExitStack()
        try:
            connection = stack.enter_context(
                connect(
                    f"{self._name.kind}://{where}/",
                    open_timeout=CONNECT_TIMEOUT,
                    user_agent_header=None,
                    proxy=None,
                    **connection_options(),
                )
            )
        except InvalidStatus as error:
            said = bytes(error.response.body or b"")[:500].decode("utf-8", "replace").strip()
            raise EnvironmentProblem(
                f"{where} refused the connection with status {error.response.status_code}: {said or 'without a word'}"
            ) from None
        except (OSError, TimeoutError, WebSocketException, EOFError) as error:
            raise _UnreachableError(
                f"there is no agent at {where} ({_why(error)}): start one there with `tapestry agent`, "
                "and check address and port"
            ) from None
        self._connection = stack
        return WebSocketChannel(connection, FrameLimits())

    def _abandon(self, reason: TapestryError, during: str) -> DeviceLostError:
        self._disconnect()
        if isinstance(reason, DeviceTimeoutError):
            return DeviceTimeoutError(f"{self._name}: {reason}")
        if isinstance(reason, DeviceLostError):
            return DeviceLostError(f"{self._name}: {reason}")
        return ConnectionLostError(f"{self._name}: the connection was lost during or before {during!r}: {reason}")

    def _disconnect(self) -> None:
        self._connection.close()


class _UnreachableError(EnvironmentProblem):
    """Nobody answers at the address now; someone may later."""


def _why(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
