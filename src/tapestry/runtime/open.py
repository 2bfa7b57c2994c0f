"""Opening and listing devices: what the command line and the other layers call.

A device lives in a worker process, or behind an agent in one of that machine's; in-process is for final timing,
where the protocol's cost must not count.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import msgspec

from tapestry.errors import EnvironmentProblem, TapestryError, UsageError
from tapestry.runtime.browser.device import AnyTabDevice, OwnBrowserDevice, open_browser
from tapestry.runtime.device import Device
from tapestry.runtime.drivers.listing import DeviceListing
from tapestry.runtime.drivers.registry import local_kinds, open_driver
from tapestry.runtime.names import REMOTE_KINDS, DeviceName, parse_device_name
from tapestry.runtime.remote.device import RemoteDevice
from tapestry.runtime.worker.device import DEFAULT_TIMEOUT, WorkerDevice
from tapestry.runtime.worker.process import worker_command, worker_environment

#: Seconds that a driver may take to list its devices.
LIST_TIMEOUT = 30.0


#: Where the token of a remote device is looked for when its name has none.
TOKEN_VARIABLE = "TAPESTRY_TOKEN"

#: The tokens that names had in this process: what it stores and shows (a placement, say) names the device without.
_tokens: dict[DeviceName, str] = {}


AnyDevice = WorkerDevice | RemoteDevice | OwnBrowserDevice | AnyTabDevice


def open_device(name: str | DeviceName, *, timeout: float = DEFAULT_TIMEOUT) -> AnyDevice:
    """Opens a device in a worker process, here or (``ws://HOST:PORT/DEVICE?token=T``) behind an agent, or in a tab.

    ``timeout``: seconds for each request, then the worker is killed. A remote name without a token takes the one that
    this process last used for it, or that of the environment variable TAPESTRY_TOKEN. Raises UsageError for a name
    that is none and for a wrong token, EnvironmentProblem for one that cannot be opened.
    """
    parsed = parse_device_name(name) if isinstance(name, str) else name
    if parsed.kind in REMOTE_KINDS:
        return _open_remote(parsed, timeout)
    if parsed.kind == "browser":
        return open_browser(parsed, timeout=timeout)
    return WorkerDevice(_local(parsed), timeout=timeout)


def open_in_process(name: str | DeviceName) -> Device:
    """Opens a device in this process: no watchdog, and a crash of its driver is a crash of this process."""
    return open_driver(_local(parse_device_name(name) if isinstance(name, str) else name))


def list_devices() -> list[DeviceListing]:
    """The devices of this machine, and the kinds that have none with the reason. Drivers run in child processes."""
    return [listing for kind in local_kinds() for listing in _list_apart(kind)]


def look_at(name: str) -> DeviceListing:
    """One device by its name, opened for a moment; where that fails, the reason. UsageError for a name that is none."""
    parsed = parse_device_name(name)
    try:
        with open_device(parsed) as device:
            return DeviceListing(device.info.name, device.info.kind, device.info.description, True, "")
    except TapestryError as error:
        return DeviceListing(str(parsed), parsed.kind, "", False, str(error))


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


def _open_remote(name: DeviceName, timeout: float) -> RemoteDevice:
    token = name.token or _tokens.get(name) or os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise UsageError(
            f"expected a token for {name}: add ?token=T, which the agent showed when it was started, "
            f"or set {TOKEN_VARIABLE}"
        )
    device = RemoteDevice(replace(name, token=token), timeout=timeout)
    _tokens[name] = token
    return device


def _local(name: DeviceName) -> DeviceName:
    if name.remote:
        raise EnvironmentProblem(f"device {name} is not of this machine: it cannot be opened in this process")
    return name
