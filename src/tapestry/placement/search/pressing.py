"""Ctrl-C as something that can be asked for later, besides the KeyboardInterrupt that it raises."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noticing() -> Generator[Callable[[], bool]]:
    """Gives whether Ctrl-C was pressed inside the block. It raises KeyboardInterrupt as ever.

    Only the main thread is told of signals; in another one the answer is always no.
    """
    seen = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: seen
    finally:
        signal.signal(signal.SIGINT, before)
