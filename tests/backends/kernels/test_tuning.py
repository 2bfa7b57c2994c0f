"""The schedule of a device: measured once, kept, and measured again when anything that it depends on has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from tapestry.backends.kernels.backend import Kernels
from tapestry.backends.kernels.schedule import FAMILIES, KernelOptions
from tapestry.errors import DeviceError, DeviceLostError
from tapestry.runtime.device import Buffer, Command, DeviceInfo, Launch, Limits, Loaded
from tapestry.runtime.module import Artifact, KernelModule

LIMITS = Limits(max_binding_bytes=1 << 27, max_bindings=8, max_grid=(65535,) * 3, max_invocations=256)


class Adapter:
    """A device that runs nothing: what takes how long is said by a table, by whether groups share memory."""

    def __init__(
        self, alone: float, shared: float, features: frozenset[str] = frozenset(), kind: str = "webgpu"
    ) -> None:
        dtypes = frozenset({"float32", "int32"})
        self.info = DeviceInfo(kind, f"{kind}:0", "a table", "driver 1", LIMITS, dtypes, features)
        self.generation = 0
        self.seconds = {False: alone, True: shared}
        self.large = alone
        self.error: Exception | None = None
        self.timed = 0
        self._shares: dict[int, bool] = {}
        self._large: dict[int, bool] = {}
        self.held = 0

    def alloc(self, nbytes: int) -> Buffer:
        self.held += 1
        return Buffer(self.held, nbytes)

    def free(self, buffer: Buffer) -> None:
        self.held -= 1

    def write(self, buffer: Buffer, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        assert len(data) == buffer.nbytes

    def load(self, module: KernelModule | Artifact) -> Loaded:
        assert isinstance(module, KernelModule)
        loaded = Loaded(len(self._shares), module.digest)
        self._shares[loaded.id] = "var<workgroup>" in module.source or "__local float" in module.source
        many = any(f"array<f32, {sums}>" in module.source for sums in (128, 256))
        self._large[loaded.id] = many and not self._shares[loaded.id]
        return loaded

    def unload(self, loaded: Loaded) -> None:
        del loaded

    def time(self, commands: Sequence[Command], repeats: int) -> list[float]:
        self.timed += 1
        (launch,) = commands
        assert isinstance(launch, Launch)
        if self.error is not None and self._shares[launch.loaded.id]:
            raise self.error
        seconds = self.seconds[self._shares[launch.loaded.id]]
        return [self.large if self._large[launch.loaded.id] else seconds] * repeats

    def restart(self) -> None:
        self.generation += 1


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tapestry" / "schedules"


def settled(device: Adapter, options: KernelOptions | None = None) -> dict[str, str]:
    return msgspec.to_builtins(Kernels().settled(options or KernelOptions(), device))


@pytest.mark.parametrize("stated", [frozenset({"software"}), frozenset()], ids=["software", "hardware"])
@pytest.mark.parametrize(("alone", "shared", "wanted"), [(1e-3, 5e-3, "invocation"), (5e-3, 1e-3, "workgroup")])
def test_the_faster_schedule_is_taken(stated: frozenset[str], alone: float, shared: float, wanted: str) -> None:
    found = settled(Adapter(alone, shared, stated))
    matmul = found.pop("matmul")
    assert matmul == wanted or (wanted, matmul) == ("invocation", "large")  # the table has one time for both
    assert found == dict.fromkeys(set(FAMILIES) - {"matmul"}, wanted)


def test_an_opencl_device_is_measured_too_but_for_large_tiles_on_a_processor() -> None:
    alone, shared = Adapter(1e-3, 5e-3, kind="opencl"), Adapter(5e-3, 1e-3, frozenset({"software"}), "opencl")
    assert settled(alone) == dict.fromkeys(FAMILIES, "invocation")
    assert settled(shared) == dict.fromkeys(FAMILIES, "workgroup")
    assert "large not used (the sums of a smaller tile fill" in Kernels().remarks(shared)


def test_what_is_nearly_as_fast_does_not_beat_what_the_adapter_says_of_itself() -> None:
    assert settled(Adapter(1.0e-3, 1.1e-3))["rows"] == "workgroup"
    assert settled(Adapter(1.1e-3, 1.0e-3, frozenset({"software"})))["rows"] == "invocation"


def test_a_schedule_that_was_asked_for_stays() -> None:
    asked = KernelOptions(matmul="workgroup", rows="workgroup")
    found = settled(Adapter(1e-3, 5e-3), asked)
    assert found == {"matmul": "workgroup", "rows": "workgroup", "matvec": "invocation", "attention": "invocation"}


def test_nothing_is_measured_where_nothing_is_open() -> None:
    device = Adapter(1e-3, 5e-3)
    settled(device, KernelOptions(*["workgroup"] * 4))
    assert device.timed == 0


def test_a_device_is_measured_once(folder: Path) -> None:
    first, second = Adapter(1e-3, 5e-3), Adapter(1e-3, 5e-3)
    assert settled(first) == settled(second)
    assert first.timed
    assert first.held == 0
    assert second.timed == 0
    assert len(list(folder.iterdir())) == 1


def shortened(data: bytes) -> bytes:
    return data[:-1]


def emptied(data: bytes) -> bytes:
    return data[:0]


def changed(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


@pytest.mark.parametrize("damage", [shortened, emptied, changed])
def test_a_damaged_entry_is_measured_again(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    settled(Adapter(1e-3, 5e-3))
    (file,) = folder.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    device = Adapter(5e-3, 1e-3)
    assert settled(device)["rows"] == "workgroup"
    assert device.timed
    again = Adapter(1.0, 1.0)
    assert settled(again)["rows"] == "workgroup"
    assert again.timed == 0


@pytest.mark.parametrize("change", [{"fingerprint": "driver 2"}, {"features": frozenset({"software"})}])
def test_another_driver_is_measured_anew(change: dict[str, object]) -> None:
    settled(Adapter(1e-3, 5e-3))
    device = Adapter(5e-3, 1e-3)
    device.info = msgspec.structs.replace(device.info, **change)
    assert settled(device)["rows"] == "workgroup"
    assert device.timed


def test_another_kernel_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    settled(Adapter(1e-3, 5e-3))
    monkeypatch.setattr("tapestry.backends.kernels.families.softmax._BLOCK", 32)
    device = Adapter(5e-3, 1e-3)
    assert settled(device)["rows"] == "workgroup"


def test_a_schedule_that_does_not_run_is_not_taken() -> None:
    device = Adapter(5e-3, 1e-3)
    device.error = DeviceError("webgpu:0: the source does not build")
    assert settled(device)["rows"] == "invocation"
    assert "not used (webgpu:0: the source does not build)" in Kernels().remarks(device)
    assert device.generation == 0


def test_a_schedule_that_loses_the_device_is_not_taken() -> None:
    device = Adapter(5e-3, 1e-3)
    device.error = DeviceLostError("webgpu:0: gone")
    assert settled(device)["rows"] == "invocation"
    assert device.generation == len(FAMILIES)


@pytest.mark.parametrize(
    ("features", "loops", "wanted"),
    [
        (frozenset({"software"}), 0, "large"),
        (frozenset({"software"}), 65_535, "workgroup"),
        (frozenset[str](), 0, "workgroup"),
    ],
)
def test_large_tiles_are_tried_where_they_may_pay(features: frozenset[str], loops: int, wanted: str) -> None:
    device = Adapter(5e-3, 3e-3, features)
    device.large = 1e-3
    device.info = msgspec.structs.replace(
        device.info, limits=msgspec.structs.replace(device.info.limits, max_loop_iterations=loops)
    )
    found = settled(device, KernelOptions(matvec="invocation", rows="invocation", attention="invocation"))
    assert found["matmul"] == wanted
    assert ("large not used" in Kernels().remarks(device)) is (wanted != "large")


def test_a_folder_that_cannot_be_written_costs_measuring_again(tmp_path: Path) -> None:
    (tmp_path / "tapestry").write_text("in the way")
    first, second = Adapter(1e-3, 5e-3), Adapter(1e-3, 5e-3)
    assert settled(first) == settled(second)
    assert second.timed == first.timed
