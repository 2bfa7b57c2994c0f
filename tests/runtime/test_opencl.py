"""The OpenCL driver on a real device. Kernels here are the tests' own."""

from __future__ import annotations

import os
import signal
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
from tapestry.runtime.module import Artifact, KernelDecl, KernelModule, Scalar
from tapestry.runtime.open import list_devices, open_device, open_in_process
from tapestry.runtime.worker.device import WorkerDevice

SOURCE = """
__kernel void axpy(__global const float* x, __global float* y, float a, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] = a * x[i] + y[i];
}
__kernel void place(__global int* out) {
  int i = get_global_id(0) + get_global_size(0) * (get_global_id(1) + get_global_size(1) * get_global_id(2));
  out[i] = get_group_id(0) + 10 * get_local_id(0) + 100 * get_group_id(1) + 1000 * get_local_id(1)
         + 10000 * get_group_id(2) + 100000 * get_local_id(2);
}
__kernel void relu(__global const float* x, __global float* y) {
  int i = get_global_id(0);
  y[i] = x[i] > 0.0f || isnan(x[i]) ? x[i] : 0.0f;
}
__kernel void spin(__global volatile int* flag) { while (flag[0] == 0) { } flag[1] = 1; }
__kernel void wild(__global float* x) { __global float* p = (__global float*)(16 + (size_t)x[0]); p[0] = 1.0f; }
__kernel void bump(__global int* x) { x[0] += 1; }
__kernel void sum(__global const float* x, __global float* y) {
  __local float part[64];
  int i = get_local_id(0);
  part[i] = x[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (i == 0) { float s = 0.0f; for (int k = 0; k < 64; k++) s += part[k]; y[0] = s; }
}
"""
ACCESS = {"axpy": "rx", "place": "w", "relu": "rw", "spin": "x", "wild": "x", "bump": "x", "sum": "rw"}
MODULE = KernelModule("opencl", SOURCE, tuple(KernelDecl(name, access) for name, access in ACCESS.items()))
ONE = (1, 1, 1)

pytestmark = pytest.mark.opencl


@pytest.fixture(params=["worker", "in-process"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device: Device = open_device("opencl:0") if request.param == "worker" else open_in_process("opencl:0")
    yield device
    device.close()


@pytest.fixture
def worker() -> Iterator[WorkerDevice]:
    with open_device("opencl:0") as device:
        yield device


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
    assert (info.kind, info.name) == ("opencl", "opencl:0")
    assert len(info.fingerprint) == 64
    assert info.fingerprint == open_in_process("opencl").info.fingerprint
    assert {"float32", "int32", "int64", "bool"} <= info.dtypes
    assert ("float64" in info.dtypes) == ("fp64" in info.features)
    assert ("float16" in info.dtypes) == ("fp16" in info.features)
    assert info.limits.max_invocations > 0
    assert info.limits.max_buffer_bytes > 0
    assert info.limits.max_bindings > 8


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


def test_grid_and_block_mean_groups_and_invocations(device: Device) -> None:
    grid, block = (2, 3, 2), (3, 2, 1)
    out = device.alloc(4 * 6 * 6 * 2)
    device.submit([Launch(device.load(MODULE), "place", (out,), grid, block)])
    z, y, x = np.meshgrid(np.arange(2), np.arange(6), np.arange(6), indexing="ij")
    want = x // 3 + 10 * (x % 3) + 100 * (y // 2) + 1000 * (y % 2) + 10000 * z
    assert download(device, out, np.int32).tolist() == want.ravel().tolist()


def test_ten_thousand_increments_in_one_batch_all_count(device: Device) -> None:
    """Each launch reads what the one before wrote, so a lost or reordered launch shows."""
    counter = upload(device, np.zeros(1, np.int32))
    launch = Launch(device.load(MODULE), "bump", (counter,), ONE, ONE, "many")
    start = time.perf_counter()
    device.submit([launch] * 10_000)
    device.sync()
    print(f"10,000 launches on {type(device).__name__}: {time.perf_counter() - start:.3f} s")
    assert download(device, counter, np.int32).tolist() == [10_000]
    assert device.launch_log() == [LogEntry("many", "bump", 10_000)]


def test_workgroup_memory_and_barriers(device: Device) -> None:
    x, y = upload(device, np.arange(64, dtype=np.float32)), device.alloc(4)
    device.submit([Launch(device.load(MODULE), "sum", (x, y), ONE, (64, 1, 1))])
    assert download(device, y).tolist() == [2016.0]  # integers below 2**24: exact in any order


def test_nan_and_infinities_pass(device: Device) -> None:
    values = np.float32([np.nan, -np.inf, np.inf, -0.0, 1e-45, -1.0])
    x, y = upload(device, values), device.alloc(24)
    device.submit([Launch(device.load(MODULE), "relu", (x, y), (6, 1, 1), ONE)])
    got = download(device, y)
    assert np.isnan(got[0])
    assert got[1:4].tolist() == [0.0, np.inf, 0.0]
    assert got[5] == 0.0


def test_zero_sizes(device: Device) -> None:
    empty, also = device.alloc(0), device.alloc(0)
    assert empty.nbytes == 0
    device.write(empty, b"")
    assert device.read(empty, 0) == b""
    loaded = device.load(MODULE)
    args = (empty, also, Scalar("float32", 1.0), Scalar("int32", 0))
    device.submit(
        [
            Launch(loaded, "axpy", args, (0, 1, 1), (4, 1, 1), "zero"),
            Launch(loaded, "axpy", args, ONE, (4, 1, 1), "zero"),
            CopyBuffer(empty, also, 0),
        ]
    )
    device.sync()
    assert device.launch_log() == [LogEntry("zero", "axpy", 2)]
    assert device.stats() == DeviceStats(2, 0, 1)
    assert len(device.time([Launch(loaded, "axpy", args, (0, 1, 1), (4, 1, 1))], 2)) == 2


def test_times_are_seconds_and_leave_no_trace_in_the_log(device: Device) -> None:
    n = 1 << 20
    x, y = device.alloc(4 * n), device.alloc(4 * n)
    args = (x, y, Scalar("float32", 1.0), Scalar("int32", n))
    launch = Launch(device.load(MODULE), "axpy", args, (n // 64, 1, 1), (64, 1, 1))
    start = time.perf_counter()
    times = device.time([launch] * 5, 3)
    wall = time.perf_counter() - start
    assert len(times) == 3
    assert 0 < sum(times) < wall
    assert device.launch_log() == []


def test_a_source_that_does_not_build_quotes_the_compiler(device: Device) -> None:
    broken = KernelModule("opencl", "__kernel void f(__global float* x) { x[0] = nonsense; }", (KernelDecl("f", "w"),))
    messages = []
    for _ in range(2):
        with pytest.raises(DeviceError, match="nonsense") as caught:
            device.load(broken)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]  # no random file name: reasons are compared
    assert device.stats() == DeviceStats()
    endless = KernelModule("opencl", "".join(f"int f{i}(void) {{ return g{i}; }}\n" for i in range(2000)), ())
    with pytest.raises(DeviceError, match="does not build") as caught:
        device.load(endless)
    assert len(str(caught.value)) < 6000


def test_declared_kernels_must_exist(device: Device) -> None:
    with pytest.raises(DeviceError, match=r"no kernel.*absent"):
        device.load(KernelModule("opencl", SOURCE, (KernelDecl("absent", "r"),)))


def test_other_modules_are_unsupported(device: Device) -> None:
    with pytest.raises(UnsupportedError, match="'wgsl'"):
        device.load(KernelModule("wgsl", "", ()))
    with pytest.raises(UnsupportedError, match="artifacts"):
        device.load(Artifact("tapestry.backends.x:load", b""))


def test_arguments_are_checked(device: Device) -> None:
    x = device.alloc(40)
    loaded = device.load(MODULE)
    device.submit([Launch(loaded, "axpy", (x, x, Scalar("float32", 1), Scalar("int32", 0)), ONE, ONE)])
    wrong: list[tuple[tuple[Scalar, ...], type[Exception]]] = [
        ((Scalar("float32", 1),), UsageError),  # would leave the earlier n in place
        ((Scalar("float32", 1), Scalar("int32", 2**31)), UsageError),
        ((Scalar("float32", 1), Scalar("int32", 1.5)), UsageError),
        ((Scalar("float32", 1), Scalar("int64", 1)), DeviceError),
        ((Scalar("bfloat16", 1), Scalar("int32", 1)), UnsupportedError),
    ]
    for scalars, error in wrong:
        with pytest.raises(error):
            run(device, Launch(loaded, "axpy", (x, x, *scalars), ONE, ONE))
    device.sync()


def test_limits_are_named(device: Device) -> None:
    limits = device.info.limits
    with pytest.raises(UnsupportedError, match=f"{limits.max_buffer_bytes:,}"):
        device.alloc(limits.max_buffer_bytes + 1)
    x = device.alloc(4)
    with pytest.raises(UnsupportedError, match=f"{limits.max_block[0]:,}"):
        device.submit([Launch(device.load(MODULE), "bump", (x,), ONE, (limits.max_block[0] + 1, 1, 1))])
    hungry = f"__kernel void h(__global int* x) {{ __local int s[{limits.workgroup_memory_bytes}]; "
    hungry += "s[get_local_id(0)] = x[0]; barrier(CLK_LOCAL_MEM_FENCE); x[1] = s[x[2]]; }"
    loaded = device.load(KernelModule("opencl", hungry, (KernelDecl("h", "x"),)))
    y = device.alloc(16)
    with pytest.raises(
        UnsupportedError, match=rf"workgroup memory, over the limit of {limits.workgroup_memory_bytes:,}"
    ):
        run(device, Launch(loaded, "h", (y,), ONE, ONE))


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


def test_an_endless_kernel_is_killed_by_the_watchdog(worker: WorkerDevice) -> None:
    worker.timeout = 1.5
    flag = upload(worker, np.zeros(2, np.int32))
    worker.submit([Launch(worker.load(MODULE), "spin", (flag,), ONE, ONE)])
    start = time.monotonic()
    with pytest.raises(DeviceTimeoutError, match="opencl:0 did not answer 'read'"):
        worker.read(flag, 8)
    assert 1.4 < time.monotonic() - start < 10
    worker.timeout = 60
    worker.restart()
    flag = upload(worker, np.ones(2, np.int32))
    worker.submit([Launch(worker.load(MODULE), "spin", (flag,), ONE, ONE)])
    assert download(worker, flag, np.int32).tolist() == [1, 1]


def test_a_wild_pointer_costs_the_worker(worker: WorkerDevice) -> None:
    x = upload(worker, np.zeros(1, np.float32))
    worker.submit([Launch(worker.load(MODULE), "wild", (x,), ONE, ONE)])
    with pytest.raises(DeviceLostError, match="killed by SIGSEGV"):
        worker.sync()
    worker.restart()
    worker.sync()


def test_an_interrupt_does_not_reach_the_worker(worker: WorkerDevice) -> None:
    """Building a program makes LLVM install its own handler for it."""
    worker.load(MODULE)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGINT)
    time.sleep(0.2)
    worker.sync()


def test_it_is_listed() -> None:
    listed = {listing.name: listing for listing in list_devices()}
    assert listed["cpu"].ready
    assert listed["opencl:0"].ready
    assert listed["opencl:0"].kind == "opencl"
    assert listed["opencl:0"].description


def test_a_number_too_high_is_told(device: Device) -> None:
    for opener in (open_device, open_in_process):
        with pytest.raises(UsageError, match=r"no opencl:77.*opencl:0"):
            opener("opencl:77")


def test_a_missing_pyopencl_names_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'tapestry-ml\[opencl\]'"):
        open_in_process("opencl")
