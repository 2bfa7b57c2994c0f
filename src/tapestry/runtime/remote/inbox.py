"""What has arrived on a channel and waits for its turn: read by a thread of its own, bounded in bytes.

While a command keeps the device busy, this goes on reading, so that the connection's pings are answered and its end
is noticed at once. Not here: carrying anything out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tapestry.errors import TapestryError
from tapestry.runtime.protocol.asking import MESSAGE_BYTES
from tapestry.runtime.protocol.framing import Channel, Frame, ProtocolError


class Inbox:
    """Frames in the order they came. Over ``capacity`` bytes it stops reading until some are taken.

    ``on_end`` is called, in the reading thread, as soon as the other side is gone; what waits is dropped. After a
    frame that breaks the protocol, ``get`` still gives what came before it.
    """

    def __init__(self, channel: Channel, capacity: int, on_end: Callable[[], None]) -> None:
        self._channel = channel
        self._capacity = capacity
        self._on_end = on_end
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._ended = False
        self._reason: TapestryError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="tapestry-inbox", daemon=True)
        self._thread.start()

    def get(self) -> Frame | None:
        """The next frame; None when no more will come: ``reason`` then says why, unless the end was in order."""
        with self._changed:
            while not self._frames and not self._ended:
                self._changed.wait()
            if not self._frames:
                return None
            frame = self._frames.popleft()
            self._bytes -= _weight(frame)
            self._changed.notify_all()
            return frame

    @property
    def reason(self) -> TapestryError | None:
        return self._reason

    def stop(self) -> None:
        """Take nothing more. The channel must be closed too, to end the thread."""
        with self._changed:
            self._ended = True
            self._frames.clear()
            self._changed.notify_all()

    def _read(self) -> None:
        try:
            while self._has_room():
                frame = self._channel.receive()
                if frame is None:
                    break
                with self._changed:
                    self._frames.append(frame)
                    self._bytes += _weight(frame)
                    self._changed.notify_all()
        except ProtocolError as error:
            self._reason = error
            self._end()
            return
        except TapestryError as error:
            self._reason = error
        self.stop()
        self._on_end()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        """Wait until another frame fits; False when nobody takes them any more."""
        with self._changed:
            while self._bytes > self._capacity and not self._ended:
                self._changed.wait()
            return not self._ended


def _weight(frame: Frame) -> int:
    return len(frame.header) + memoryview(frame.payload).nbytes + MESSAGE_BYTES
