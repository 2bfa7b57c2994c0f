from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tapestry.errors import DeviceError, UnsupportedError, UsageError
from tapestry.runtime.bind import BINDING, BoundRegion, ConstantBytes
from tapestry.runtime.device import Buffer, Call, Command, CopyBuffer, Device, DeviceStats, LogEntry
from tapestry.runtime.drivers import host
from tapestry.runtime.drivers.host import ALIGNMENT, register_loader_prefix, resolve_loader
from tapestry.runtime.module import ITEM_BYTES, Artifact, Compiled, ConstantDecl, KernelModule, TensorDecl
from tapestry.runtime.open import open_device, open_in_process
from tapestry.runtime.resident import Resident

pytestmark = pytest.mark.slow


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


SCALE = Artifact("host_programs:load_scale", b"", binds=True)


def floats(device: Device, *values: float) -> Buffer:
    buffer = device.alloc(4 * len(values))
    device.write(buffer, np.array(values, np.float32).tobytes())
    return buffer


def read(device: Device, buffer: Buffer) -> list[float]:
    return np.frombuffer(device.read(buffer, buffer.nbytes), np.float32).tolist()


def test_constants_are_bound_once_and_again_when_they_change(cpu: Device) -> None:
    loaded = cpu.load(SCALE)
    two, three, x, out = floats(cpu, 2), floats(cpu, 3), floats(cpu, 1, -1), floats(cpu, 0, 0)
    run(cpu, Call(loaded, (two,), ()))
    calls = [Call(loaded, (constant, x), (out,)) for constant in (two, three)]
    for _ in range(2):
        for call, factor in zip(calls, (2, 3), strict=True):
            run(cpu, call)
            assert read(cpu, out) == [factor, -factor]
    cpu.write(two, np.float32(5).tobytes())
    run(cpu, calls[0])
    assert read(cpu, out) == [5, -5]
    run(cpu, CopyBuffer(three, two, 4), calls[0])
    assert read(cpu, out) == [3, -3]
    run(cpu, Call(loaded, (three, two), (two,)), calls[0])  # an output that is somebody's constant
    assert read(cpu, out) == [9, -9]


def test_binding_happens_once_for_each_set_of_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(host, "_loader_prefixes", ["host_programs."])
    import host_programs

    monkeypatch.setattr(host_programs, "bindings", [])
    with_constants: Device = open_in_process("cpu")
    loaded = with_constants.load(SCALE)
    two, three, x, out = (floats(with_constants, value) for value in (2, 3, 1, 0))
    for _ in range(3):
        for constant in (two, three):
            run(with_constants, Call(loaded, (constant, x), (out,)))
    assert host_programs.bindings == [2, 3]
    with_constants.free(two)
    run(with_constants, Call(loaded, (three, x), (out,)))
    assert host_programs.bindings == [2, 3]
    with_constants.restart()
    loaded, three, x, out = with_constants.load(SCALE), *(floats(with_constants, value) for value in (3, 1, 0))
    run(with_constants, Call(loaded, (three, x), (out,)))
    assert host_programs.bindings == [2, 3, 3]
    with_constants.close()


@pytest.mark.parametrize("opener", [open_device, open_in_process], ids=["worker", "in-process"])
def test_a_region_hands_its_constants_over_when_it_is_bound(
    opener: Callable[[str], Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(host, "_loader_prefixes", ["host_programs."])
    device = opener("cpu")
    decl = TensorDecl((1,), "float32", "float32")
    compiled = Compiled("test", SCALE, (decl,) * 3, (0, 1), (2,), constants=(ConstantDecl(0, "input", 0),))
    with pytest.raises(DeviceError, match="not a number to scale with"):
        BoundRegion(compiled, Resident(device), lambda place: ConstantBytes.of(np.float32("nan").tobytes()))
    assert device.stats() == DeviceStats()
    bound = BoundRegion(compiled, Resident(device), lambda place: ConstantBytes.of(np.float32(4).tobytes()))
    assert [entry.tag for entry in device.launch_log()] == [BINDING]
    x, out = floats(device, 3), floats(device, 0)
    run(device, *bound.commands([None, x], [out], "t"))
    assert read(device, out) == [12]
    device.restart()
    device.launch_log(clear=True)
    x, out = floats(device, 5), floats(device, 0)
    commands = bound.commands([None, x], [out], "t")
    assert [entry.tag for entry in device.launch_log()] == [BINDING], "again before the run, whose time it is not"
    run(device, *commands)
    assert read(device, out) == [20]
    device.close()
