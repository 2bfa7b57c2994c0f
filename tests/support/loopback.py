"""A protocol client and a session face to face in one process: the wire without sockets, processes or time."""

from __future__ import annotations

from collections import deque

from tapestry.errors import DeviceLostError, TapestryError
from tapestry.runtime.device import Device
from tapestry.runtime.protocol.client import ProtocolDevice
from tapestry.runtime.protocol.framing import Channel, ChannelClosedError, Frame, FrameLimits, join_frame, parse_frame
from tapestry.runtime.protocol.messages import ServerLimits
from tapestry.runtime.protocol.session import Session
from tapestry.runtime.protocol.store import ModuleStore


class LoopbackChannel:
    """Hands each frame, as bytes, to a session and queues what it answers. ``sent`` are all frames so far."""

    def __init__(self, session: Session) -> None:
        self.limits = FrameLimits()
        self.session = session
        self.sent: list[Frame] = []
        self._answers: deque[Frame] = deque()

    def send(self, frame: Frame, deadline: float | None = None) -> None:
        if self.session.finished:
            raise ChannelClosedError("the session has ended")
        self.sent.append(frame)
        answer = self.session.handle(parse_frame(join_frame(frame), self.session.limits))
        if answer is not None:
            self._answers.append(parse_frame(join_frame(answer), self.limits))

    def receive(self, deadline: float | None = None) -> Frame | None:
        return self._answers.popleft() if self._answers else None

    def close(self) -> None:
        self.session.close()


class LoopbackDevice(ProtocolDevice):
    """A device behind a session. Each connection gets a new session over the same device and module store."""

    def __init__(
        self, device: Device, *, token: str = "", server_token: str = "", limits: ServerLimits | None = None
    ) -> None:
        super().__init__("mock:0", token, timeout=1.0, start_timeout=1.0)
        self.device = device
        self.store = ModuleStore()
        self.asked_for: list[str] = []
        self._server_token = server_token
        self._server_limits = limits
        self.channel: LoopbackChannel | None = None
        self._start()

    def _connect(self) -> Channel:
        def opener(name: str) -> Device:
            self.asked_for.append(name)
            self.device.restart()
            return self.device

        session = Session(opener, token=self._server_token, limits=self._server_limits, store=self.store)
        self.channel = LoopbackChannel(session)
        return self.channel

    def _abandon(self, reason: TapestryError, during: str) -> DeviceLostError:
        return DeviceLostError(f"{during}: {reason}")

    def _disconnect(self) -> None:
        if self.channel is not None:
            self.channel.close()
