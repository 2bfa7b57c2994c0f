from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tapestry.errors import DeviceError, UnsupportedError, UsageError
from tapestry.runtime.device import Call, Command, CopyBuffer, Device, LogEntry
from tapestry.runtime.drivers import host
from tapestry.runtime.drivers.host import ALIGNMENT, register_loader_prefix, resolve_loader
from tapestry.runtime.module import ITEM_BYTES, Artifact, KernelModule
from tapestry.runtime.open import open_device, open_in_process


@pytest.fixture(params=["worker", "in-process"])
def cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(host, "_loader_prefixes", ["tapestry.backends."])
    register_loader_prefix("host_programs.")
    device: Device = open_device("cpu") if request.param == "worker" else open_in_process("cpu")
    yield device
    device.close()


def run(device: Device, *commands: Command) -> None:
    device.submit(commands)
    device.sync()


def test_artifacts_run_through_their_loader(cpu: Device) -> None:
    assert cpu.info.kind == "host"
    assert cpu.info.dtypes == set(ITEM_BYTES)
    a, b, out = cpu.alloc(12), cpu.alloc(12), cpu.alloc(12)
    cpu.write(a, np.array([1, 2, 3], np.float32).tobytes())
    cpu.write(b, np.array([4, 5, np.nan], np.float32).tobytes())
    loaded = cpu.load(Artifact("host_programs:load_multiply", b"2"))
    cpu.submit([Call(loaded, (a, b), (out,), "t"), CopyBuffer(out, a, 4, 4, 8)])
    np.testing.assert_array_equal(np.frombuffer(cpu.read(out, 12), np.float32), np.float32([8, 20, np.nan]))
    np.testing.assert_array_equal(np.frombuffer(cpu.read(a, 12), np.float32), np.float32([1, 2, 20]))
    assert cpu.launch_log() == [LogEntry("t", "call", 1)]
    assert len(cpu.time([Call(loaded, (a, b), (out,))], 3)) == 3


def test_empty_tensors_are_called_with_empty_views(cpu: Device) -> None:
    a, out = cpu.alloc(0), cpu.alloc(0)
    loaded = cpu.load(Artifact("host_programs:load_multiply", b"2"))
    cpu.write(a, b"")
    cpu.submit([Call(loaded, (a,), (out,), "t")])
    assert cpu.read(out, 0) == b""


def test_a_failing_artifact_is_the_devices_error(cpu: Device) -> None:
    loaded = cpu.load(Artifact("host_programs:load_failing", b""))
    out = cpu.alloc(4)
    with pytest.raises(DeviceError, match="ValueError: no such luck"):
        run(cpu, Call(loaded, (), (out,)))
    cpu.sync()


def test_a_failing_loader_is_the_devices_error(cpu: Device) -> None:
    with pytest.raises(DeviceError, match="load_multiply failed: ValueError"):
        cpu.load(Artifact("host_programs:load_multiply", b"not a number"))


@pytest.mark.parametrize(
    "loader",
    ["os:system", "subprocess:run", "tapestry.runtime.open:open_device", "host_programs_evil:load", "builtins:eval",
     "tapestry.backends_evil:load", "tapestry.backends", "host_programs:", "host_programs:a.b", ""],
)  # fmt: skip
def test_other_loaders_are_refused(cpu: Device, loader: str) -> None:
    with pytest.raises(UsageError, match=r"not allowed|is written"):
        cpu.load(Artifact(loader, b"true"))


def test_a_missing_loader_is_told(cpu: Device) -> None:
    with pytest.raises(UsageError, match="cannot be imported"):
        cpu.load(Artifact("host_programs:load_nothing", b""))


def test_kernels_are_unsupported(cpu: Device) -> None:
    with pytest.raises(UnsupportedError, match="artifacts, not opencl kernels"):
        cpu.load(KernelModule("opencl", "", ()))


@pytest.mark.parametrize("prefix", ["", ".", "os"])
def test_prefixes_are_packages(prefix: str) -> None:
    with pytest.raises(UsageError):
        register_loader_prefix(prefix)


def test_backends_may_load_by_default() -> None:
    with pytest.raises(UsageError, match="cannot be imported"):
        resolve_loader("tapestry.backends.no_such_module:load")


@pytest.mark.parametrize("nbytes", [1, 63, 64, 1000])
def test_memory_is_aligned(nbytes: int) -> None:
    driver = host.open_host(host.DeviceName("cpu"))
    memory = driver._create(nbytes)  # noqa: SLF001
    assert memory.nbytes == nbytes
    assert memory.ctypes.data % ALIGNMENT == 0


def test_too_much_memory_is_unsupported_with_the_limit(cpu: Device) -> None:
    with pytest.raises(UnsupportedError, match=f"{cpu.info.limits.max_buffer_bytes:,}"):
        cpu.alloc(1 << 52)
