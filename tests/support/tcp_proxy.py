"""A TCP proxy that cuts, slows down and freezes what passes through it, as networks do."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Proxy:
    """Forwards connections to ``target`` on this machine. ``bytes_per_second`` and ``delay`` hold in each direction."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.bytes_per_second = 0.0
        self.delay = 0.0
        #: While set, bytes are taken and not passed on: both sides see an open connection.
        self.frozen = False
        self.forwarded = [0, 0]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    def cut(self) -> None:
        """Break all connections; new ones may be made."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        # Waking accept() is what shutting down is for; closing alone would leave it waiting.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self._connections += [near, far]
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=self._forward, args=(far, near, 1), daemon=True)
        back.start()
        self._forward(near, far, 0)
        back.join()
        near.close()
        far.close()

    def _forward(self, source: socket.socket, sink: socket.socket, way: int) -> None:
        frozen = self.frozen  # a connection made while the network is down stays useless
        with contextlib.suppress(OSError):
            while data := source.recv(65536 if not self.bytes_per_second else 8192):
                frozen = frozen or self.frozen
                if frozen:
                    continue
                time.sleep(self.delay + (len(data) / self.bytes_per_second if self.bytes_per_second else 0))
                self.forwarded[way] += len(data)
                sink.sendall(data)
        for connection in (source, sink):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
