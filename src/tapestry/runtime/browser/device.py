"""The client's side of a browser device: a tab of a Chromium of our own, or any tab that opens the agent page.

What runs in a tab cannot be stopped: a request that takes too long costs the connection, and the Chromium if it is
ours. ``restart()`` starts a fresh one, or waits for a tab again.
"""

from __future__ import annotations

import sys
import time
from abc import abstractmethod
from collections.abc import Callable

from tapestry.errors import ConnectionLostError, DeviceLostError, DeviceTimeoutError, EnvironmentProblem, TapestryError
from tapestry.runtime.browser import shared
from tapestry.runtime.browser.chromium import Chromium
from tapestry.runtime.browser.host import TabHost
from tapestry.runtime.names import DeviceName
from tapestry.runtime.protocol.client import ProtocolDevice
from tapestry.runtime.protocol.framing import Channel, ChannelClosedError, ChannelTimeoutError
from tapestry.runtime.remote.channel import WebSocketChannel

#: Seconds for one request.
DEFAULT_TIMEOUT = 60.0
#: Seconds for starting Chromium and opening its device; for somebody to open the page and for its device.
START_TIMEOUT = 60.0
TAB_TIMEOUT = 300.0
#: Seconds that an open page gets to come by itself before its address is announced.
AT_ONCE = 1.5


class TabDevice(ProtocolDevice):
    """What both kinds of browser device share. Errors: see Device; EnvironmentProblem when it cannot be opened."""

    def __init__(self, name: DeviceName, *, timeout: float, start_timeout: float) -> None:
        super().__init__(str(name), timeout=timeout, start_timeout=start_timeout)
        self._tab: WebSocketChannel | None = None
        self._start()

    def _connect(self) -> Channel:
        self._tab = self._take_tab(self._start_timeout)
        return self._tab

    def _abandon(self, reason: TapestryError, during: str) -> DeviceLostError:
        text = f"{reason} during or before {during!r}"
        if isinstance(reason, ChannelTimeoutError):
            allowed = self._start_timeout if during == "hello" else self._patience
            text = f"it did not answer {during!r} within {allowed:g} s"
        kind = self._kind_of_loss(reason)
        self._disconnect()
        return kind(f"{self._device_name}: {text}; {self._given_up}")

    def _kind_of_loss(self, reason: TapestryError) -> type[DeviceLostError]:
        return DeviceTimeoutError if isinstance(reason, ChannelTimeoutError) else DeviceLostError

    def _disconnect(self) -> None:
        tab, self._tab = self._tab, None
        if tab is not None:
            tab.cut()

    @property
    @abstractmethod
    def _given_up(self) -> str:
        """What becomes of the tab once the device is lost, for the message."""

    @abstractmethod
    def _take_tab(self, seconds: float) -> WebSocketChannel:
        """A connection to a tab. EnvironmentProblem when there is none within ``seconds``."""


class OwnBrowserDevice(TabDevice):
    """``browser``: a tab of a Chromium that lives and dies with the device."""

    def __init__(
        self, name: DeviceName, *, timeout: float = DEFAULT_TIMEOUT, start_timeout: float = START_TIMEOUT
    ) -> None:
        self._host: TabHost | None = None
        self._chromium: Chromium | None = None
        super().__init__(name, timeout=timeout, start_timeout=start_timeout)

    @property
    def pid(self) -> int | None:
        """The browser's process id, None when there is none."""
        return None if self._chromium is None else self._chromium.pid

    @property
    def _given_up(self) -> str:
        return "its Chromium was killed"

    def _take_tab(self, seconds: float) -> WebSocketChannel:
        self._host = TabHost()
        self._chromium = Chromium(self._host.url)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._chromium.running:
            tab = self._host.take(min(0.5, max(0.0, deadline - time.monotonic())))
            if tab is not None:
                return tab
        how = f"its page did not connect within {seconds:g} s" if self._chromium.running else "it ended"
        words = self._chromium.last_words()
        self._disconnect()
        raise EnvironmentProblem(f"Chromium was started for {self._device_name}, but {how}; its last words:\n{words}")

    def _disconnect(self) -> None:
        super()._disconnect()
        chromium, self._chromium = self._chromium, None
        host, self._host = self._host, None
        if chromium is not None:
            chromium.kill()
        if host is not None:
            host.close()


class AnyTabDevice(TabDevice):
    """``browser@PORT``: the next tab, of any browser, that opens the page at http://localhost:PORT/.

    ``announce`` is given the address to open, with its token; it goes to standard error unless said otherwise.
    """

    def __init__(
        self,
        name: DeviceName,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        start_timeout: float = TAB_TIMEOUT,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        self._port = name.port
        self._announce = announce or _to_stderr
        self._host: TabHost | None = None
        try:
            super().__init__(name, timeout=timeout, start_timeout=start_timeout)
        except BaseException:
            self._leave_host()
            raise

    @property
    def url(self) -> str:
        """The address to open. DeviceLostError once the device is closed."""
        if self._host is None:
            raise DeviceLostError(f"device {self._device_name} is closed; call restart() or open it again")
        return self._host.url

    def restart(self) -> None:
        with shared.kept(self._port):  # an open page finds the same host again
            super().restart()

    def close(self) -> None:
        super().close()
        self._leave_host()

    @property
    def _given_up(self) -> str:
        return "restart() waits for a tab again"

    def _kind_of_loss(self, reason: TapestryError) -> type[DeviceLostError]:
        """A tab that is closed says nothing about its device, whose loss it would have told."""
        return ConnectionLostError if isinstance(reason, ChannelClosedError) else super()._kind_of_loss(reason)

    def _take_tab(self, seconds: float) -> WebSocketChannel:
        host = self._entered()
        tab = host.take(min(seconds, AT_ONCE))
        if tab is None:
            self._announce(f"{self._device_name} waits for a tab: open {host.url}")
            tab = host.take(seconds)
        if tab is None:
            raise EnvironmentProblem(
                f"no tab has opened the page at http://localhost:{host.port}/ within {seconds:g} s"
            )
        return tab

    def _entered(self) -> TabHost:
        if self._host is None:
            self._host = shared.enter(self._port)
        return self._host

    def _leave_host(self) -> None:
        if self._host is not None:
            self._host = None
            shared.leave(self._port)


def open_browser(name: DeviceName, *, timeout: float = DEFAULT_TIMEOUT) -> OwnBrowserDevice | AnyTabDevice:
    """Opens ``browser`` or ``browser@PORT``. ``timeout``: seconds for each request.

    EnvironmentProblem when Chromium, the library for WebSockets, WebGPU or a tab is missing.
    """
    return AnyTabDevice(name, timeout=timeout) if name.port else OwnBrowserDevice(name, timeout=timeout)


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
