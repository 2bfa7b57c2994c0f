"""Opening and listing devices: what the command line and the other layers call.

A device lives in a worker process; in-process is for final timing, where the protocol's cost must not count.
"""

from __future__ import annotations

import subprocess

import msgspec

from tapestry.errors import EnvironmentProblem
from tapestry.runtime.device import Device
from tapestry.runtime.drivers.listing import DeviceListing
from tapestry.runtime.drivers.registry import local_kinds, open_driver
from tapestry.runtime.names import DeviceName, parse_device_name
from tapestry.runtime.worker.device import DEFAULT_TIMEOUT, WorkerDevice
from tapestry.runtime.worker.process import worker_command, worker_environment

#: Seconds that a driver may take to list its devices.
LIST_TIMEOUT = 30.0


def open_device(name: str | DeviceName, *, timeout: float = DEFAULT_TIMEOUT) -> WorkerDevice:
    """Opens a device in a worker process. ``timeout``: seconds for each request, then the worker is killed.

    Raises UsageError for a name that is none, EnvironmentProblem for one that cannot be opened here.
    """
    return WorkerDevice(_parsed(name), timeout=timeout)


def open_in_process(name: str | DeviceName) -> Device:
    """Opens a device in this process: no watchdog, and a crash of its driver is a crash of this process."""
    return open_driver(_parsed(name))


def list_devices() -> list[DeviceListing]:
    """The devices of this machine, and the kinds that have none with the reason. Drivers run in child processes."""
    return [listing for kind in local_kinds() for listing in _list_apart(kind)]


def _list_apart(kind: str) -> list[DeviceListing]:
    try:
        done = subprocess.run(
            [*worker_command(), "--list", kind],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIST_TIMEOUT,
            env=worker_environment(),
            check=True,
        )
        return msgspec.json.decode(done.stdout, type=list[DeviceListing])
    except subprocess.TimeoutExpired:
        reason = f"listing took over {LIST_TIMEOUT:g} s"
    except subprocess.CalledProcessError as error:
        reason = f"listing failed with {error.returncode}: {error.stderr.decode('utf-8', 'replace').strip()[-500:]}"
    except msgspec.DecodeError as error:
        reason = f"listing gave no JSON: {error}"
    return [DeviceListing(kind, kind, "", False, reason)]


def _parsed(name: str | DeviceName) -> DeviceName:
    parsed = parse_device_name(name) if isinstance(name, str) else name
    if parsed.remote:
        raise EnvironmentProblem(f"device {parsed} cannot be opened: this release drives devices of this machine only")
    return parsed
