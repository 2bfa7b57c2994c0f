"""What goes wrong around a browser: it is killed, hangs, is not installed; tabs close and come back."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.fake_tab import free_port
from tapestry.errors import ConnectionLostError, DeviceLostError, DeviceTimeoutError, EnvironmentProblem
from tapestry.runtime.browser import shared
from tapestry.runtime.browser.chromium import VARIABLE, Chromium, find_chromium, list_browser
from tapestry.runtime.browser.device import AnyTabDevice, OwnBrowserDevice
from tapestry.runtime.device import DeviceStats, Launch
from tapestry.runtime.module import KernelDecl, KernelModule
from tapestry.runtime.names import DeviceName
from tapestry.runtime.open import list_devices, open_device

ENDLESS = """
@group(0) @binding(0) var<storage, read_write> x: array<atomic<u32>>;
@compute @workgroup_size(1) fn endless() { while (atomicLoad(&x[0]) == 0) { atomicAdd(&x[1], 1); } }
"""
ONE = (1, 1, 1)


def group(pid: int) -> set[int]:
    """The processes of the browser that leads this group, without the dead that nobody has looked after yet."""
    found = set()
    for entry in glob.glob("/proc/[0-9]*/stat"):
        try:
            fields = Path(entry).read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            found.add(int(entry.split("/")[2]))
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def works(device: OwnBrowserDevice | AnyTabDevice) -> bool:
    buffer = device.alloc(4)
    device.write(buffer, b"good")
    return device.read(buffer, 4) == b"good"


@pytest.mark.browser
@pytest.mark.slow
def test_a_browser_of_our_own_lives_as_long_as_its_device() -> None:
    folders = set(glob.glob(f"{tempfile.gettempdir()}/tapestry-browser-*"))
    device = open_device("browser")
    assert isinstance(device, OwnBrowserDevice)
    pid = device.pid
    assert pid is not None
    assert works(device)
    assert device.info.name == "browser"
    assert len(group(pid)) > 1
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"token" not in command  # everybody on the machine can read it
    device.close()
    assert device.pid is None
    assert group(pid) == set()
    assert set(glob.glob(f"{tempfile.gettempdir()}/tapestry-browser-*")) <= folders
    with pytest.raises(DeviceLostError, match="closed"):
        device.sync()


@pytest.mark.browser
@pytest.mark.slow
def test_a_killed_browser_is_lost_and_comes_back() -> None:
    with OwnBrowserDevice(DeviceName("browser")) as device:
        browser = device._chromium  # noqa: SLF001
        assert browser is not None
        os.kill(browser.pid, signal.SIGKILL)
        assert wait_for(lambda: not browser.running)
        with pytest.raises(DeviceLostError, match="Chromium was killed") as caught:
            device.sync()
        assert not isinstance(caught.value, ConnectionLostError | DeviceTimeoutError)
        with pytest.raises(DeviceLostError, match="is gone"):
            device.alloc(4)
        device.restart()
        assert device.generation == 1
        assert works(device)


@pytest.mark.browser
@pytest.mark.slow
def test_a_lost_gpu_is_told_as_lost() -> None:
    """Chromium's GPU process dies, as with a driver's crash; the tab lives on and says so."""
    with OwnBrowserDevice(DeviceName("browser")) as device:
        assert device.pid is not None
        (gpu,) = [
            pid for pid in group(device.pid) if b"--type=gpu-process" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        buffer = device.alloc(4)
        os.kill(gpu, signal.SIGKILL)
        with pytest.raises(DeviceLostError, match="device is lost") as caught:
            device.read(buffer, 4)
        assert not isinstance(caught.value, ConnectionLostError | DeviceTimeoutError)
        device.restart()
        assert works(device)


@pytest.mark.browser
@pytest.mark.slow
def test_a_kernel_that_never_ends_costs_the_browser_and_nothing_else() -> None:
    with OwnBrowserDevice(DeviceName("browser")) as device:
        pid = device.pid
        assert pid is not None
        loaded = device.load(KernelModule("wgsl", ENDLESS, (KernelDecl("endless", "x"),)))
        x = device.alloc(8)
        device.write(x, bytes(8))
        device.timeout = 2.0
        device.submit([Launch(loaded, "endless", (x,), ONE, ONE)])
        start = time.monotonic()
        with pytest.raises(DeviceTimeoutError, match=r"'read' within 2 s.*Chromium was killed"):
            device.read(x, 8)
        assert time.monotonic() - start < 15
        assert group(pid) == set()
        device.timeout = 60.0
        device.restart()
        assert works(device)
        assert device.stats() == DeviceStats(1, 4, 0)


@pytest.mark.browser
@pytest.mark.slow
def test_no_browser_outlives_its_owner() -> None:
    """Also where the owner is killed and can clean nothing up."""
    text = (
        "import sys, time; from tapestry.runtime.open import open_device\n"
        "device = open_device('browser'); print(device.pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert group(pid)
    profile = Path(f"/proc/{pid}/cmdline").read_text().partition("--user-data-dir=")[2].partition("\0")[0]
    folder = Path(profile).parent
    assert folder.name.startswith("tapestry-browser-")
    assert folder.exists()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert wait_for(lambda: not group(pid))
    assert not folder.exists()


@pytest.mark.browser
@pytest.mark.slow
def test_a_device_that_is_not_closed_does_not_keep_the_interpreter() -> None:
    text = "from tapestry.runtime.open import open_device; device = open_device('browser'); print(device.pid)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    assert wait_for(lambda: not group(int(done.stdout)))
    assert done.stderr == ""


@pytest.mark.browser
@pytest.mark.slow
def test_a_tab_closed_and_another_opened() -> None:
    port = free_port()
    with shared.kept(port):
        host = shared.enter(port)
        shared.leave(port)
        first = Chromium(host.url)
        said: list[str] = []
        with AnyTabDevice(DeviceName("browser", port=port), start_timeout=60, announce=said.append) as device:
            assert works(device)
            first.kill()
            with pytest.raises(ConnectionLostError, match=r"restart\(\) waits for a tab again"):
                device.sync()
            with pytest.raises(DeviceLostError, match="is gone"):
                device.alloc(4)
            second = Chromium(host.url)
            device.restart()
            assert works(device)
            assert device.generation == 1
            second.kill()


@pytest.mark.browser
@pytest.mark.slow
def test_a_page_finds_the_next_host_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open page with a fixed token goes on from one command to the next."""
    monkeypatch.setenv(shared.TOKEN_VARIABLE, "fixed")
    port = free_port()
    name = DeviceName("browser", port=port)
    with shared.kept(port):
        host = shared.enter(port)
        shared.leave(port)
        chromium = Chromium(host.url)
        with AnyTabDevice(name, start_timeout=60) as device:
            assert works(device)
    with AnyTabDevice(name, start_timeout=30, announce=lambda _: None) as device:
        assert works(device)
    chromium.kill()


def test_a_missing_browser_is_a_problem_with_the_install_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for action in (find_chromium, list_browser, lambda: open_device("browser")):
        with pytest.raises(EnvironmentProblem, match="apt-get install chromium"):
            action()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(EnvironmentProblem, match=f"{VARIABLE} names .*absent"):
        find_chromium()


def test_the_named_browser_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("chromium", "mine"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find_chromium() == str(tmp_path / "chromium")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
    assert find_chromium() == str(tmp_path / "mine")


def test_a_browser_that_ends_at_once_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\necho no display here >&2\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setenv(VARIABLE, str(broken))
    with pytest.raises(EnvironmentProblem, match=r"(?s)it ended.*no display here"):
        OwnBrowserDevice(DeviceName("browser"), start_timeout=20)


@pytest.mark.browser
def test_it_is_listed() -> None:
    listed = {listing.name: listing for listing in list_devices()}
    assert listed["browser"].ready
    assert listed["browser"].kind == "webgpu"
