"""The benchmarks compute what they say, and what they measure is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.eager_device import EagerMockDevice
from tapestry.errors import DeviceError, UnsupportedError
from tapestry.profiling import benchmarks
from tapestry.profiling.benchmarks import Rate, arithmetic_rates, copy_bytes, fastest
from tapestry.profiling.roofs import measured_roofs
from tapestry.runtime.device import Call, Device, DeviceInfo, Launch, Limits
from tapestry.runtime.open import open_device


class SmallDevice(EagerMockDevice):
    """Takes no large buffers, so that measuring it is quick; counts what it copies and calls."""

    def __init__(self, fingerprint: str = "1") -> None:
        super().__init__()
        self._info = DeviceInfo("mock", "mock:0", "", fingerprint, Limits(max_buffer_bytes=4 << 20), self._info.dtypes)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "_BUDGET", 0.01)
    monkeypatch.setattr(benchmarks, "_PRODUCT", 64)


def test_measured_once_and_kept(tmp_path: Path) -> None:
    device = SmallDevice()
    found = measured_roofs(device, tmp_path)
    assert found.bytes_per_second > 0
    assert found.flops_per_second > 0
    assert found.copy_bytes == 4 << 20
    assert found.arithmetic == "PyTorch's product of 64 by 64 matrices"
    assert device.stats().bytes == device.stats().modules == 0
    started = len(device.started)
    assert measured_roofs(device, tmp_path) == found
    assert len(device.started) == started
    measured_roofs(device, tmp_path, fresh=True)
    assert len(device.started) > started


def test_another_driver_is_measured_anew(tmp_path: Path) -> None:
    measured_roofs(SmallDevice(), tmp_path)
    device = SmallDevice("2")
    measured_roofs(device, tmp_path)
    assert device.started


@pytest.mark.parametrize("damage", [b"", b"{", b'{"bytes_per_second": 0}'])
def test_a_damaged_entry_is_measured_anew(tmp_path: Path, damage: bytes) -> None:
    measured_roofs(SmallDevice(), tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    assert measured_roofs(SmallDevice(), tmp_path).bytes_per_second > 0


def test_a_folder_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert measured_roofs(SmallDevice(), file / "folder").bytes_per_second > 0


def test_the_fastest_counts_and_one_that_fails_does_not() -> None:
    def fails() -> Rate:
        raise DeviceError("no such instruction")

    ways = [lambda: Rate(2.0, "slow"), fails, lambda: Rate(3.0, "fast")]
    assert fastest(iter(ways), SmallDevice()).name == "fast"
    with pytest.raises(DeviceError, match="no such instruction"):
        fastest(iter([fails]), SmallDevice())
    with pytest.raises(UnsupportedError, match="no roof benchmark"):
        fastest(iter([]), SmallDevice())


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(), 128 << 20),
        (Limits(max_buffer_bytes=(100 << 20) + 5), 96 << 20),
        (Limits(max_binding_bytes=5 << 20), 5 << 20),
        (Limits(memory_bytes=1 << 30), 64 << 20),
    ],
)
def test_the_copied_buffer_fits(limits: Limits, expected: int) -> None:
    assert copy_bytes(DeviceInfo("opencl", "opencl:0", "", "1", limits)) == expected


@pytest.fixture(
    params=[pytest.param("opencl", marks=pytest.mark.opencl), pytest.param("webgpu", marks=pytest.mark.webgpu)]
)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = open_device(request.param)
    yield opened
    opened.close()


def test_chains_compute_every_link(device: Device) -> None:
    """A compiler that left links out would make the roof too high."""
    kernels = list(benchmarks.kernels(device.info, "chain"))
    assert len(kernels) >= 4
    given = np.array([0.99, 0.01, *(place / 64 for place in range(62))], np.float32)
    for kernel in kernels:
        source, made = device.alloc(256), device.alloc(4 * 64)
        device.write(source, given.tobytes())
        loaded = device.load(kernel.module)
        device.submit([Launch(loaded, "chain", (source, made), (1, 1, 1), (64, 1, 1))])
        found = np.frombuffer(device.read(made, 4 * 64), np.float32)
        # Rounding: each of 512 links adds half an ulp, and pulls what was wrong before towards 1 by a hundredth, so
        # that about 50 ulp of 6e-8 are left; then 12 · width terms are added.
        np.testing.assert_allclose(found, _chained(given, kernel.width), rtol=1e-5)


def _chained(given: np.ndarray, width: int) -> np.ndarray:
    """The same in float64: what 64 invocations write."""
    wide = given.astype(np.float64)
    first = {1: wide[2:3], 4: wide[4:8], 8: wide[8:16]}[width]
    begin = first[None, :] + np.arange(64)[:, None] / 256
    scales = np.array([1 - k / 16 for k in range(benchmarks.CHAINS)])
    x = begin[:, :, None] * scales
    for _ in range(benchmarks.ROUNDS * benchmarks.LINKS):
        x = x * wide[0] + wide[1]
    return x.sum((1, 2))


def test_copies_copy(device: Device) -> None:
    nbytes = 17 << 20
    (kernel,) = benchmarks.kernels(device.info, "copy")
    source, target = device.alloc(32 << 20), device.alloc(32 << 20)
    benchmarks.fill(device, source, target)
    assert device.read(source, 256, nbytes) == bytes(range(256))
    loaded = device.load(kernel.module)
    device.write(target, bytes(16))
    device.submit([Launch(loaded, "copy", (source, target), ((32 << 20) // 16 // 64 // 2, 2, 1), (64, 1, 1))])
    for place in (0, nbytes, (32 << 20) - 256):
        assert device.read(target, 256, place) == bytes(range(256))


def test_the_host_multiplies_and_copies(tmp_path: Path) -> None:
    device = open_device("cpu")
    try:
        rates = [way() for way in arithmetic_rates(device)]
        assert [rate.name for rate in rates] == ["PyTorch's product of 64 by 64 matrices"]
        view = benchmarks.view_of(16, device.info)
        source, target = device.alloc(64), device.alloc(64)
        device.write(source, bytes(range(64)))
        device.submit([Call(device.load(view), (source,), (target,))])
        assert device.read(target, 64) == bytes(range(64))
    finally:
        device.close()
