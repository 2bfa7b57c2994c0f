"""What ``tapestry devices`` shows of one device. Plain data, so that it can come out of a child process."""

from __future__ import annotations

import msgspec


class DeviceListing(msgspec.Struct, frozen=True):
    """One device, or one kind that has none here. ``reason`` says what to install or change when not ``ready``."""

    name: str
    kind: str
    description: str
    ready: bool
    reason: str
