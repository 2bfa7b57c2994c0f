"""A Chromium whose page a test looks at, through the DevTools protocol (https://chromedevtools.github.io)."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tapestry.runtime.browser.chromium import Chromium


class Page:
    """The one page of a browser."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._last = 0

    def call(self, method: str, **parameters: object) -> Any:
        self._last += 1
        self._connection.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._connection.recv(30))
            if answer.get("id") == self._last:
                return answer["result"]

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self, name: str) -> str:
        """What the element with this id shows; nothing while the page is not there."""
        return str(self.evaluate(f"document.getElementById({name!r})?.innerText ?? ''"))

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)


@contextmanager
def page(url: str) -> Generator[Page]:
    """Opens ``url``; everything ends with the block."""
    browser = Chromium(url, ["--remote-debugging-port=0"])
    try:
        port_file = browser.profile / "DevToolsActivePort"
        wait_until(lambda: port_file.exists() and port_file.read_text().count("\n") >= 1)
        port = port_file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=10) as answer:
            targets = json.load(answer)
        (target,) = [entry for entry in targets if entry["type"] == "page"]
        with connect(target["webSocketDebuggerUrl"], max_size=None, proxy=None) as connection:
            yield Page(connection)
    finally:
        browser.kill()


def wait_until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Returns when the condition holds; fails when it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
