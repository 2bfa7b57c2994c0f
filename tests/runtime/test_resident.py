from __future__ import annotations

import numpy as np
import pytest

from support.loopback import LoopbackDevice
from support.mock_device import MockDevice, mock_module
from tapestry.errors import DeviceError, UsageError
from tapestry.runtime.device import DeviceStats
from tapestry.runtime.resident import Resident


def test_what_is_the_same_is_there_once_and_goes_with_its_last_user() -> None:
    device = MockDevice()
    resident = Resident(device)
    made: list[str] = []

    def make() -> bytes:
        made.append("x")
        return b"12345678"

    module = mock_module()
    assert resident.module(module) == resident.module(mock_module())
    assert resident.constant("weights", make) == resident.constant("weights", make)
    assert (device.loads, made) == (1, ["x"])
    assert device.stats() == DeviceStats(1, 8, 1)
    resident.release_module(module.digest)
    resident.release_constant("weights")
    assert device.stats() == DeviceStats(1, 8, 1)
    resident.release_module(module.digest)
    resident.release_constant("weights")
    assert device.stats() == DeviceStats()
    assert resident.digests == (frozenset(), frozenset())
    with pytest.raises(UsageError, match="too often"):
        resident.release_constant("weights")
    with pytest.raises(UsageError, match="never acquired"):
        resident.buffer("weights")


def test_a_restart_brings_everything_back_on_demand() -> None:
    device = LoopbackDevice(MockDevice())
    resident = Resident(device)
    values = np.arange(4, dtype=np.float32).tobytes()
    loaded, buffer = resident.module(mock_module()), resident.constant("w", lambda: values)
    device.restart()
    assert device.stats() == DeviceStats()
    again = resident.buffer("w")
    assert again != buffer
    assert device.read(again, 16) == values
    assert device.stats() == DeviceStats(1, 16, 0)
    assert resident.loaded(mock_module().digest) != loaded
    assert resident.constant("w", lambda: values) == again
    resident.release_constant("w")
    resident.release_constant("w")
    assert device.stats() == DeviceStats(0, 0, 1)


def test_release_after_a_restart_frees_nothing_twice() -> None:
    device = MockDevice()
    resident = Resident(device)
    resident.module(mock_module())
    resident.constant("w", lambda: b"1234")
    device.restart()
    resident.release_module(mock_module().digest)
    resident.release_constant("w")
    assert device.stats() == DeviceStats()


def test_what_failed_has_no_user() -> None:
    device = MockDevice(memory_bytes=4)
    resident = Resident(device)
    with pytest.raises(DeviceError):
        resident.module(mock_module(source="syntax error"))
    with pytest.raises(DeviceError, match="out of memory"):
        resident.constant("w", lambda: b"12345")
    assert resident.digests == (frozenset(), frozenset())
    assert device.stats() == DeviceStats()
