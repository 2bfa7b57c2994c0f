"""Trying again after the connection to a device broke, which says nothing about what was running on it.

Not here: what a device did itself (a crash, a hang), which is a verdict and never tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tapestry.errors import ConnectionLostError
from tapestry.runtime.device import Device

ResultT = TypeVar("ResultT")

#: Runs of one piece of work: where the connection breaks each time, the work may be what breaks it.
TRIES = 3


def until_connected(devices: Sequence[Device], run: Callable[[], ResultT]) -> ResultT:
    """Run, and after a ConnectionLostError restart the devices and run again, up to TRIES times altogether.

    The last ConnectionLostError is raised as it is, and the devices are then still to be restarted. DeviceLostError
    when the connection does not come back.
    """
    for _ in range(TRIES - 1):
        try:
            return run()
        except ConnectionLostError:
            for device in devices:
                device.restart()
    return run()
