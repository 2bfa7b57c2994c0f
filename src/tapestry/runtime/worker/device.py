"""The parent's side of a worker: a Device that lives in a child process, with a watchdog.

Every request has ``timeout`` seconds, and more where constants are bound before it. A worker that does not answer in
time is killed, one that ends is buried; ``restart()`` starts a fresh one.
"""

from __future__ import annotations

from tapestry.errors import DeviceLostError, DeviceTimeoutError, TapestryError
from tapestry.runtime.drivers.host import loader_prefixes
from tapestry.runtime.drivers.registry import registered_drivers, require_driver
from tapestry.runtime.names import DeviceName
from tapestry.runtime.protocol.client import ProtocolDevice
from tapestry.runtime.protocol.framing import (
    Channel,
    ChannelClosedError,
    ChannelTimeoutError,
    FrameLimits,
    SocketChannel,
)
from tapestry.runtime.worker.process import WorkerProcess

#: Seconds for one request; a kernel's first launch may compile it.
DEFAULT_TIMEOUT = 60.0
#: Seconds for starting the interpreter and opening the device.
START_TIMEOUT = 60.0
#: Characters of a worker's stderr quoted in an error.
QUOTED = 2000


class WorkerDevice(ProtocolDevice):
    """A local device in a child process. Errors: see Device; EnvironmentProblem when it cannot be opened."""

    def __init__(
        self, name: DeviceName, *, timeout: float = DEFAULT_TIMEOUT, start_timeout: float = START_TIMEOUT
    ) -> None:
        require_driver(name)
        super().__init__(str(name), timeout=timeout, start_timeout=start_timeout)
        self._process: WorkerProcess | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        """The worker's process id, None when there is no worker."""
        return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """End the worker now, from any thread: whoever waits for it learns that the device is lost."""
        process = self._process
        if process is not None:
            process.strike()

    def _connect(self) -> Channel:
        arguments = [f"--driver={entry}" for entry in registered_drivers()]
        arguments += [f"--loader-prefix={prefix}" for prefix in loader_prefixes()]
        self._process = WorkerProcess(arguments)
        return SocketChannel(self._process.connection, FrameLimits())

    def _abandon(self, reason: TapestryError, during: str) -> DeviceLostError:
        process, self._process = self._process, None
        if process is None:
            return DeviceLostError(f"{self._device_name}: the worker is gone ({reason})")
        if isinstance(reason, ChannelTimeoutError):
            process.kill()
            allowed = self._start_timeout if during == "hello" else self._patience
            what = " (constants were being bound)" if self._binding else ""
            text = f"{self._device_name} did not answer {during!r} within {allowed:g} s{what}; its worker was killed"
            return DeviceTimeoutError(text + _quote(process.last_words()))
        if not isinstance(reason, ChannelClosedError):
            process.kill()
            return DeviceLostError(f"{self._device_name}: {reason} during {during!r}; its worker was killed")
        how = process.wait_for_exit(2.0)
        process.kill()
        text = f"{self._device_name}: the worker {how} during or before {during!r} ({reason})"
        return DeviceLostError(text + _quote(process.last_words()))

    def _disconnect(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop()


def _quote(words: str) -> str:
    return f"; its last words:\n{words[-QUOTED:]}" if words else ""
