"""One host for each port of this process: devices named ``browser@PORT`` share it, the last one's end is its end.

Not here: what a host does (host.py).
"""

from __future__ import annotations

import os
import secrets
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from tapestry.runtime.browser.host import TabHost

#: A fixed token, so that an open page goes on from one command to the next. Otherwise each process has a new one.
TOKEN_VARIABLE = "TAPESTRY_BROWSER_TOKEN"

_lock = threading.Lock()
_hosts: dict[int, TabHost] = {}
_uses: Counter[int] = Counter()
_token = secrets.token_urlsafe(24)


def enter(port: int) -> TabHost:
    """The host on a port, for one use more. EnvironmentProblem when the port cannot be had."""
    with _lock:
        if port not in _hosts:
            _hosts[port] = TabHost(port, os.environ.get(TOKEN_VARIABLE) or _token)
        _uses[port] += 1
        return _hosts[port]


def leave(port: int) -> None:
    """One use has ended."""
    with _lock:
        _uses[port] -= 1
        if _uses[port] == 0:
            _hosts.pop(port).close()


@contextmanager
def kept(port: int) -> Generator[None]:
    """The host on a port does not end within, whoever leaves it."""
    enter(port)
    try:
        yield
    finally:
        leave(port)
