"""Devices in child processes: what a hang or a crash costs. The mock driver's faults are real here."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from support.mock_device import mock_module, register_mock_driver
from tapestry.errors import DeviceError, DeviceLostError, DeviceTimeoutError, UsageError
from tapestry.runtime.device import Buffer, Device, DeviceStats, Launch, LogEntry
from tapestry.runtime.drivers.registry import DriverEntry, register_driver
from tapestry.runtime.module import Scalar
from tapestry.runtime.open import open_device
from tapestry.runtime.worker.device import WorkerDevice
from tapestry.runtime.worker.process import worker_environment

pytestmark = pytest.mark.slow

ONE = (1, 1, 1)


def run_fault(device: WorkerDevice, fault: str) -> bytes:
    loaded, buffer = device.load(mock_module(fault)), device.alloc(8)
    device.submit([Launch(loaded, fault, (buffer,), ONE, ONE)])
    return device.read(buffer, 8)


def still_works(device: WorkerDevice) -> None:
    loaded, buffer = device.load(mock_module("fill")), device.alloc(8)
    device.submit([Launch(loaded, "fill", (buffer, Scalar("float32", 2.5)), ONE, ONE, "again")])
    assert np.frombuffer(device.read(buffer, 8), np.float32).tolist() == [2.5, 2.5]
    assert LogEntry("again", "fill", 1) in device.launch_log()


def is_alive(pid: int) -> bool:
    """Whether the process exists, a zombie included."""
    return Path(f"/proc/{pid}").exists()


def is_running(pid: int) -> bool:
    """Whether the process runs; a dead orphan that its new parent has not buried yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def stops_running(pid: int, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_running(pid)


def test_a_worker_is_a_device(mock_worker: WorkerDevice) -> None:
    assert isinstance(mock_worker, Device)
    assert mock_worker.info.name == "mock:0"
    assert mock_worker.generation == 0
    still_works(mock_worker)
    assert mock_worker.ping() < 10


def test_a_hung_kernel_costs_the_worker_not_the_job(mock_worker: WorkerDevice) -> None:
    pid = mock_worker.pid
    assert pid is not None
    mock_worker.timeout = 0.5
    start = time.monotonic()
    with pytest.raises(DeviceTimeoutError, match=r"mock:0 did not answer 'read' within 0\.5 s"):
        run_fault(mock_worker, "hang")
    assert time.monotonic() - start < 20
    assert not is_alive(pid)
    with pytest.raises(DeviceTimeoutError, match=r"call restart\(\)"):
        mock_worker.sync()
    mock_worker.timeout = 10
    mock_worker.restart()
    assert mock_worker.generation == 1
    still_works(mock_worker)


@pytest.mark.parametrize(
    ("fault", "how"),
    [("segfault", "killed by SIGSEGV"), ("abort", "killed by SIGABRT"), ("exit", "exited with code 7")],
)
def test_a_crash_is_named_and_costs_the_worker_only(mock_worker: WorkerDevice, fault: str, how: str) -> None:
    pid = mock_worker.pid
    assert pid is not None
    with pytest.raises(DeviceLostError, match=how) as caught:
        run_fault(mock_worker, fault)
    assert not isinstance(caught.value, DeviceTimeoutError)
    assert f"mock driver: about to {fault}" in str(caught.value)  # its last words
    assert not is_alive(pid)
    mock_worker.restart()
    still_works(mock_worker)


def test_a_failed_kernel_costs_nothing(mock_worker: WorkerDevice) -> None:
    pid = mock_worker.pid
    with pytest.raises(DeviceError, match="kernel raise failed") as caught:
        run_fault(mock_worker, "raise")
    assert not isinstance(caught.value, DeviceLostError)
    still_works(mock_worker)
    assert mock_worker.pid == pid


def test_a_corrupting_kernel_is_not_noticed_here(mock_worker: WorkerDevice) -> None:
    assert run_fault(mock_worker, "corrupt") == b"\0\0\0\0\0\0\0\x41"


def test_handles_die_with_the_worker(mock_worker: WorkerDevice) -> None:
    old = mock_worker.alloc(8)
    mock_worker.restart()
    mock_worker.free(old)
    with pytest.raises(UsageError, match="before a restart"):
        mock_worker.write(old, b"x")
    with pytest.raises(UsageError, match="never allocated"):
        mock_worker.write(Buffer(10**6, 8), b"x")
    assert mock_worker.stats() == DeviceStats()


def test_freed_buffers_are_freed_over_there(mock_worker: WorkerDevice) -> None:
    buffers = [mock_worker.alloc(100) for _ in range(50)]
    assert mock_worker.stats() == DeviceStats(50, 5000, 0)
    for buffer in buffers[:30]:
        mock_worker.free(buffer)
    assert mock_worker.stats() == DeviceStats(20, 2000, 0)


def test_megabytes_travel_unharmed(mock_worker: WorkerDevice) -> None:
    data = np.random.default_rng(1).bytes(20 << 20)  # more than two payloads
    buffer = mock_worker.alloc(len(data))
    mock_worker.write(buffer, data)
    assert mock_worker.read(buffer, len(data)) == data


def test_close_leaves_no_process_and_no_zombie(mock_worker: WorkerDevice) -> None:
    pid = mock_worker.pid
    assert pid is not None
    mock_worker.close()
    assert not is_alive(pid)
    mock_worker.close()
    with pytest.raises(DeviceLostError, match="closed"):
        mock_worker.sync()


def test_a_forgotten_worker_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.runtime.drivers.registry._registered", {})
    register_mock_driver()
    device = open_device("mock")
    pid = device.pid
    assert pid is not None
    del device
    gc.collect()
    assert not is_alive(pid)


def test_ctrl_c_does_not_reach_the_worker(mock_worker: WorkerDevice) -> None:
    assert mock_worker.pid is not None
    assert os.getsid(mock_worker.pid) != os.getsid(0)
    os.kill(mock_worker.pid, signal.SIGINT)
    still_works(mock_worker)


PARENT = """
import os, sys, threading
from support.mock_device import mock_module, register_mock_driver
from tapestry.runtime.device import Launch
from tapestry.runtime.open import open_device
register_mock_driver()
device = open_device("mock")
# Started from a thread that ends: the worker must outlive the thread, not the process.
threads = []
def start():
    threads.append(open_device("mock"))
thread = threading.Thread(target=start); thread.start(); thread.join()
threads[0].sync()
loaded, buffer = device.load(mock_module("hang")), device.alloc(4)
device.submit([Launch(loaded, "hang", (buffer,), (1, 1, 1), (1, 1, 1))])
sys.stdout.write(f"{device.pid} {threads[0].pid}\\n"); sys.stdout.flush()
END
"""


@pytest.mark.parametrize("end", ["os.abort()", "os._exit(0)", "sys.exit(0)"])
def test_workers_end_with_their_parent(end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT.replace("END", end)],
        env=worker_environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    for pid in pids:
        assert stops_running(pid)


def test_a_driver_that_cannot_be_opened_says_so_and_leaves_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.runtime.drivers.registry._registered", {})
    register_driver(DriverEntry("mock", "support.mock_device:no_such_factory"))
    with pytest.raises(DeviceError, match="no_such_factory"):
        open_device("mock")
    gc.collect()
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children]
    assert not [command for command in commands if b"no_such_factory" in command]


def test_drivers_are_never_found_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.runtime.drivers.registry._registered", {})
    with pytest.raises(UsageError, match="has a driver already"):
        register_driver(DriverEntry("cpu", "support.mock_device:open_mock"))
