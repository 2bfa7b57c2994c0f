"""The WebGPU driver on a real adapter. Kernels here are the tests' own."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tapestry.errors import (
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
    EnvironmentProblem,
    UnsupportedError,
    UsageError,
)
from tapestry.runtime.device import Buffer, Command, CopyBuffer, Device, DeviceStats, Launch, LogEntry
from tapestry.runtime.drivers.webgpu.driver import STAGING_BYTES, WebGpuDriver
from tapestry.runtime.module import Artifact, KernelDecl, KernelModule, Scalar
from tapestry.runtime.open import list_devices, open_device, open_in_process
from tapestry.runtime.worker.device import WorkerDevice

AXPY = """
struct Scalars { a: f32, n: i32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> s: Scalars;
@compute @workgroup_size(4)
fn axpy(@builtin(global_invocation_id) id: vec3u) {
  let i = i32(id.x);
  if (i < s.n) { y[i] = s.a * x[i] + y[i]; }
}
"""
PLACE = """
@group(0) @binding(0) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(3, 2)
fn place(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u,
         @builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  let i = id.x + 3 * groups.x * (id.y + 2 * groups.y * id.z);
  out[i] = group.x + 10 * local.x + 100 * group.y + 1000 * local.y + 10000 * group.z;
}
"""
BUMP = """
@group(0) @binding(0) var<storage, read_write> x: array<i32>;
@compute @workgroup_size(1) fn bump() { x[0] += 1; }
"""
ROUNDS = """
@group(0) @binding(0) var<storage, read_write> made: array<i32>;
@group(0) @binding(1) var<uniform> most: vec4i;
@compute @workgroup_size(1)
fn rounds() {
  var count = 0;
  for (var i = 0; i < most.x; i++) { count = select(count, i, i > 0) + 1; }
  made[0] = count;
}
"""
SUM = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<workgroup> part: array<f32, 64>;
@compute @workgroup_size(64)
fn sum(@builtin(local_invocation_index) i: u32) {
  part[i] = x[i];
  workgroupBarrier();
  if (i == 0) { var s = 0.0; for (var k = 0u; k < 64u; k++) { s += part[k]; } y[0] = s; }
}
"""
ACCESS = {"axpy": ("rx", AXPY), "place": ("w", PLACE), "bump": ("x", BUMP), "rounds": ("x", ROUNDS), "sum": ("rw", SUM)}
MODULE = KernelModule("wgsl", "", tuple(KernelDecl(name, access, text) for name, (access, text) in ACCESS.items()))
ONE = (1, 1, 1)

pytestmark = pytest.mark.webgpu


@pytest.fixture(params=["worker", "in-process"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device: Device = open_device("webgpu:0") if request.param == "worker" else open_in_process("webgpu:0")
    yield device
    device.close()


@pytest.fixture
def worker() -> Iterator[WorkerDevice]:
    with open_device("webgpu:0") as device:
        yield device


@pytest.fixture
def driver() -> Iterator[WebGpuDriver]:
    device = open_in_process("webgpu:0")
    assert isinstance(device, WebGpuDriver)
    yield device
    device.close()


def upload(device: Device, values: np.ndarray) -> Buffer:
    buffer = device.alloc(values.nbytes)
    device.write(buffer, values.tobytes())
    return buffer


def run(device: Device, *commands: Command) -> None:
    device.submit(commands)
    device.sync()


def download(device: Device, buffer: Buffer, dtype: type = np.float32) -> np.ndarray:
    return np.frombuffer(device.read(buffer, buffer.nbytes), dtype)


def test_it_says_what_it_is(device: Device) -> None:
    info = device.info
    assert (info.kind, info.name) == ("webgpu", "webgpu:0")
    assert len(info.fingerprint) == 64
    assert info.fingerprint == open_in_process("webgpu").info.fingerprint
    assert info.dtypes == {"float32", "int32", "uint32"}
    # The specification's smallest limits.
    assert info.limits.max_invocations >= 256
    assert info.limits.max_binding_bytes >= 128 << 20
    assert info.limits.max_bindings >= 8
    assert min(info.limits.max_grid) >= 65_535


def test_launches_run_in_order_with_scalars(device: Device) -> None:
    x = upload(device, np.arange(10, dtype=np.float32))
    y = upload(device, np.ones(10, np.float32))
    loaded = device.load(MODULE)
    args = (x, y, Scalar("float32", 2.0), Scalar("int32", 7))
    launch = Launch(loaded, "axpy", args, (3, 1, 1), (4, 1, 1), "a")
    device.submit([launch, CopyBuffer(y, x, 40), launch])
    first = np.where(np.arange(10) < 7, 2 * np.arange(10) + 1, 1).astype(np.float32)
    assert download(device, x).tolist() == first.tolist()
    assert download(device, y).tolist() == np.where(np.arange(10) < 7, 3 * first, first).tolist()
    assert device.launch_log() == [LogEntry("a", "axpy", 2)]


def test_scalars_differ_by_their_bits(device: Device) -> None:
    """Bind groups are kept by the scalars' bytes: 0.0 and -0.0 are equal numbers."""
    x, y = upload(device, np.full(4, np.inf, np.float32)), upload(device, np.zeros(4, np.float32))
    loaded = device.load(MODULE)
    one = upload(device, np.ones(4, np.float32))
    for a, want in ((1.0, 1.0), (-0.0, 1.0), (0.0, 1.0), (2.0, 3.0)):
        run(device, Launch(loaded, "axpy", (one, y, Scalar("float32", a), Scalar("int32", 4)), ONE, (4, 1, 1)))
        assert download(device, y).tolist() == [want] * 4
    assert download(device, x).tolist() == [np.inf] * 4


def test_grid_and_block_mean_groups_and_invocations(device: Device) -> None:
    out = device.alloc(4 * 6 * 6 * 2)
    device.submit([Launch(device.load(MODULE), "place", (out,), (2, 3, 2), (3, 2, 1))])
    z, y, x = np.meshgrid(np.arange(2), np.arange(6), np.arange(6), indexing="ij")
    want = x // 3 + 10 * (x % 3) + 100 * (y // 2) + 1000 * (y % 2) + 10000 * z
    assert download(device, out, np.uint32).tolist() == want.ravel().tolist()


def test_ten_thousand_increments_in_one_batch_all_count(device: Device) -> None:
    """Each launch reads what the one before wrote, so a lost or reordered launch shows."""
    counter = upload(device, np.zeros(1, np.int32))
    launch = Launch(device.load(MODULE), "bump", (counter,), ONE, ONE, "many")
    device.submit([launch] * 10_000)
    device.sync()
    assert download(device, counter, np.int32).tolist() == [10_000]
    assert device.launch_log() == [LogEntry("many", "bump", 10_000)]


def test_workgroup_memory_and_barriers(device: Device) -> None:
    x, y = upload(device, np.arange(64, dtype=np.float32)), device.alloc(4)
    device.submit([Launch(device.load(MODULE), "sum", (x, y), ONE, (64, 1, 1))])
    assert download(device, y).tolist() == [2016.0]  # integers below 2**24: exact in any order


def test_zero_sizes(device: Device) -> None:
    empty, also = device.alloc(0), device.alloc(0)
    device.write(empty, b"")
    assert device.read(empty, 0) == b""
    loaded = device.load(MODULE)
    args = (empty, also, Scalar("float32", 1.0), Scalar("int32", 0))
    nothing = Launch(loaded, "axpy", args, (0, 1, 1), (4, 1, 1), "zero")
    device.submit([nothing, Launch(loaded, "axpy", args, ONE, (4, 1, 1), "zero"), CopyBuffer(empty, also, 0)])
    device.sync()
    assert device.launch_log() == [LogEntry("zero", "axpy", 2)]
    assert device.stats() == DeviceStats(2, 0, 1)
    assert len(device.time([nothing], 2)) == 2


@pytest.mark.parametrize(("nbytes", "offset"), [(1, 0), (3, 1), (4, 2), (6, 3), (5, 4), (1, 11)])
def test_bytes_that_are_no_whole_words(device: Device, nbytes: int, offset: int) -> None:
    before = np.arange(100, 112, dtype=np.uint8)
    buffer = upload(device, before)
    data = bytes(range(nbytes))
    device.write(buffer, data, offset)
    want = before.tobytes()[:offset] + data + before.tobytes()[offset + nbytes :]
    assert device.read(buffer, 12) == want
    assert device.read(buffer, nbytes, offset) == data
    other = upload(device, np.zeros(12, np.uint8))
    device.submit([CopyBuffer(buffer, other, nbytes, offset, 12 - nbytes)])
    assert device.read(other, 12) == bytes(12 - nbytes) + data


def test_a_copy_within_one_buffer(device: Device) -> None:
    buffer = upload(device, np.arange(8, dtype=np.int32))
    device.submit([CopyBuffer(buffer, buffer, 16, 0, 16)])
    assert download(device, buffer, np.int32).tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_reads_larger_than_the_staging_buffer(driver: WebGpuDriver) -> None:
    values = np.arange(STAGING_BYTES // 4 + 5, dtype=np.int32)  # in two pieces
    buffer = upload(driver, values)
    assert np.array_equal(download(driver, buffer, np.int32), values)


def test_times_are_seconds_and_leave_no_trace_in_the_log(device: Device) -> None:
    n = 1 << 20
    x, y = device.alloc(4 * n), device.alloc(4 * n)
    args = (x, y, Scalar("float32", 1.0), Scalar("int32", n))
    launch = Launch(device.load(MODULE), "axpy", args, (1 << 15, 1, 1), (4, 1, 1))
    start = time.perf_counter()
    times = device.time([launch] * 5, 3)
    with_copy = device.time([launch, CopyBuffer(y, x, 4 * n)], 1)
    wall = time.perf_counter() - start
    assert len(times) == 3
    assert 0 < sum(times) + with_copy[0] < wall
    assert min(times) > 5 * 4e-6  # a million fused multiply-adds take no less anywhere
    assert device.launch_log() == []


def test_a_source_that_does_not_build_quotes_the_compiler(device: Device) -> None:
    broken = KernelModule("wgsl", BUMP.replace("x[0]", "nonsense"), (KernelDecl("bump", "x"),))
    messages = []
    for _ in range(2):
        with pytest.raises(DeviceError, match="nonsense") as caught:
            device.load(broken)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]  # reasons are compared
    assert device.stats() == DeviceStats()
    with pytest.raises(DeviceError, match="does not build"):
        device.load(KernelModule("wgsl", "fn f() { return 1; }", ()))


def test_a_declaration_must_fit_the_source(device: Device) -> None:
    with pytest.raises(DeviceError, match=r"no kernel.*absent"):
        device.load(KernelModule("wgsl", BUMP, (KernelDecl("absent", "x"),)))
    with pytest.raises(DeviceError, match="does not build"):  # it writes what the declaration says it reads
        device.load(KernelModule("wgsl", BUMP, (KernelDecl("bump", "r"),)))
    text = "const w = 4; " + BUMP.replace("size(1)", "size(w)")
    with pytest.raises(DeviceError, match="expected numbers"):
        device.load(KernelModule("wgsl", text, (KernelDecl("bump", "x"),)))


def test_other_modules_are_unsupported(device: Device) -> None:
    with pytest.raises(UnsupportedError, match="'opencl'"):
        device.load(KernelModule("opencl", "", ()))
    with pytest.raises(UnsupportedError, match="artifacts"):
        device.load(Artifact("tapestry.backends.x:load", b""))


def test_arguments_are_checked(device: Device) -> None:
    x, y = device.alloc(40), device.alloc(40)
    loaded = device.load(MODULE)
    wrong: list[tuple[tuple[Buffer | Scalar, ...], type[Exception]]] = [
        ((x, y, Scalar("float32", 1), Scalar("int32", 2**31)), UsageError),
        ((x, y, Scalar("float32", 1), Scalar("int32", 1.5)), UsageError),
        ((x, y, Scalar("float32", 1), Scalar("int64", 1)), UnsupportedError),
        ((x, x, Scalar("float32", 1), Scalar("int32", 1)), UnsupportedError),  # written, and bound twice
    ]
    for arguments, error in wrong:
        with pytest.raises(error):
            run(device, Launch(loaded, "axpy", arguments, ONE, (4, 1, 1)))
    with pytest.raises(UsageError, match="workgroups of"):
        run(device, Launch(loaded, "bump", (x,), ONE, (2, 1, 1)))
    run(device, Launch(loaded, "bump", (x,), ONE, ONE))  # an error leaves the device as it was


def test_limits_are_named(device: Device) -> None:
    limits = device.info.limits
    with pytest.raises(UnsupportedError, match=f"{limits.max_buffer_bytes:,}"):
        device.alloc(limits.max_buffer_bytes + 1)
    x = device.alloc(4)
    loaded = device.load(MODULE)
    with pytest.raises(UnsupportedError, match=f"{limits.max_grid[0] + 1:,} workgroups.*{limits.max_grid[0]:,}"):
        device.submit([Launch(loaded, "bump", (x,), (limits.max_grid[0] + 1, 1, 1), ONE)])
    wide = device.alloc(limits.max_binding_bytes + 4)
    with pytest.raises(UnsupportedError, match=f"{limits.max_binding_bytes:,}"):
        device.submit([Launch(loaded, "bump", (wide,), ONE, ONE)])
    hungry = BUMP.replace("x[0] += 1;", "m[x[1]][0].x = 1.0; workgroupBarrier(); x[0] = i32(m[x[2]][1].y);")
    hungry += f"var<workgroup> m: array<array<vec2<f32>, 2>, {limits.workgroup_memory_bytes // 16 + 1}>;"
    with pytest.raises(
        UnsupportedError, match=rf"workgroup memory, over the limit of {limits.workgroup_memory_bytes:,}"
    ):
        device.load(KernelModule("wgsl", hungry, (KernelDecl("bump", "x"),)))


def test_a_restart_forgets_everything(device: Device) -> None:
    buffer, loaded = upload(device, np.ones(4, np.int32)), device.load(MODULE)
    device.restart()
    assert device.generation == 1
    device.free(buffer)
    device.unload(loaded)
    assert device.stats() == DeviceStats()
    counter = upload(device, np.zeros(1, np.int32))
    device.submit([Launch(device.load(MODULE), "bump", (counter,), ONE, ONE)])
    assert download(device, counter, np.int32).tolist() == [1]


def test_a_freed_buffer_leaves_no_bind_group(driver: WebGpuDriver) -> None:
    """Ten thousand short-lived buffers: what a launch kept for each must go with it."""
    loaded = driver.load(MODULE)
    kernel = driver._programs[loaded.id]["bump"]  # noqa: SLF001
    for _ in range(50):
        buffer = upload(driver, np.zeros(1, np.int32))
        driver.submit([Launch(loaded, "bump", (buffer,), ONE, ONE)] * 2)
        assert len(kernel.groups) == 1
        assert download(driver, buffer, np.int32).tolist() == [2]
        driver.free(buffer)
    assert not kernel.groups


def test_a_lost_device_says_so_until_it_is_opened_again(driver: WebGpuDriver) -> None:
    buffer = upload(driver, np.zeros(1, np.int32))
    # What wgpu-py does when its library reports a loss.
    logging.getLogger("wgpu").error("The WGPU device was lost (Unknown):\nthe adapter was unplugged")
    for action in (driver.sync, lambda: driver.read(buffer, 4), lambda: driver.load(MODULE)):
        with pytest.raises(DeviceLostError, match="unplugged"):
            action()
    driver.restart()
    assert download(driver, upload(driver, np.ones(1, np.int32)), np.int32).tolist() == [1]


def test_the_adapter_is_probed_for_loops_that_end_early(device: Device) -> None:
    """What it says is what happens: one round more than the limit is not made, as many are."""
    limit = device.info.limits.max_loop_iterations
    rounds = limit or 1 << 17
    loaded, counter = device.load(MODULE), device.alloc(4)
    for asked in (rounds, rounds + 1):
        run(device, Launch(loaded, "rounds", (counter, Scalar("int32", asked)), ONE, ONE))
        assert download(device, counter, np.int32).tolist() == [rounds if limit else asked]


def test_a_kernel_that_takes_too_long_is_killed_by_the_watchdog(worker: WorkerDevice) -> None:
    """lavapipe ends loops by itself, so time is spent in many launches."""
    worker.timeout = 1.5
    counter = upload(worker, np.zeros(1, np.int32))
    launch = Launch(worker.load(MODULE), "rounds", (counter, Scalar("int32", 65_000)), (65_535, 1, 1), ONE)
    start = time.monotonic()
    with pytest.raises(DeviceTimeoutError, match="webgpu:0 did not answer"):
        run(worker, *[launch] * 100)
    assert time.monotonic() - start < 15
    worker.timeout = 60
    worker.restart()
    assert download(worker, upload(worker, np.ones(2, np.int32)), np.int32).tolist() == [1, 1]


def test_it_is_listed() -> None:
    listed = {listing.name: listing for listing in list_devices()}
    assert listed["webgpu:0"].ready
    assert listed["webgpu:0"].kind == "webgpu"
    assert listed["webgpu:0"].description


def test_a_number_too_high_is_told() -> None:
    for opener in (open_device, open_in_process):
        with pytest.raises(UsageError, match=r"no webgpu:77.*webgpu:0"):
            opener("webgpu:77")


def test_what_is_missing_names_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import wgpu

    with monkeypatch.context() as patch:
        patch.setattr(wgpu.gpu, "enumerate_adapters_sync", list)
        with pytest.raises(EnvironmentProblem, match="apt-get install mesa-vulkan-drivers"):
            open_in_process("webgpu")
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'tapestry-ml\[webgpu\]'"):
        open_in_process("webgpu")
