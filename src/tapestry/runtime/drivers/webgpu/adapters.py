"""Which WebGPU adapters this machine has, what they can take, and a device of one with all its limits asked for.

Not here: memory, kernels, commands (the other modules of this package).
"""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tapestry.errors import DeviceError, EnvironmentProblem, UsageError
from tapestry.runtime.device import DeviceInfo, Limits
from tapestry.runtime.drivers.listing import DeviceListing

INSTALL = "pip install 'tapestry-ml[webgpu]'"
#: On Linux the adapter of the processor itself; elsewhere the system brings Metal or Direct3D 12.
SYSTEM_DRIVER = "on Debian and Ubuntu: apt-get install mesa-vulkan-drivers"

#: The APIs that carry all of WebGPU. OpenGL carries part of it, and shows each Vulkan adapter a second time.
_BACKENDS = ("Vulkan", "Metal", "D3D12")
#: What a kernel may store and be passed: WGSL has 32-bit types, and float16 only in an extension.
_DTYPES = frozenset({"float32", "int32", "uint32"})
_FEATURES = {"shader-f16": "fp16", "timestamp-query": "timestamps"}
#: Asked for as the adapter has them; without that a device has the specification's smallest.
_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-bindings-per-bind-group",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-size-y",
    "max-compute-workgroup-size-z",
    "max-compute-workgroup-storage-size",
    "max-compute-workgroups-per-dimension",
)


@dataclass
class Opened:
    """A device and its queue. ``lost`` becomes the reason when the device is gone."""

    device: Any
    queue: Any
    lost: str = ""


def import_wgpu() -> ModuleType:
    """wgpu-py with its native library. EnvironmentProblem with the install line."""
    try:
        import wgpu
    except (ImportError, OSError, RuntimeError) as error:
        raise EnvironmentProblem(f"WebGPU needs wgpu, which cannot be imported ({error}): {INSTALL}") from error
    return wgpu


def adapters(wgpu: Any) -> list[Any]:
    """The adapters in the order of their numbers. EnvironmentProblem when there is none."""
    try:
        every = wgpu.gpu.enumerate_adapters_sync()
    except (RuntimeError, OSError) as error:
        raise EnvironmentProblem(f"WebGPU finds no adapter ({error}); {SYSTEM_DRIVER}") from error
    found = [adapter for adapter in every if adapter.info["backend_type"] in _BACKENDS]
    if not found:
        raise EnvironmentProblem(f"WebGPU finds no adapter of {', '.join(_BACKENDS)}; {SYSTEM_DRIVER}")
    return found


def pick(wgpu: Any, index: int) -> Any:
    """Adapter number ``index``; UsageError for one that is not there."""
    found = adapters(wgpu)
    if index >= len(found):
        raise UsageError(f"there is no webgpu:{index}: this machine has webgpu:0 to webgpu:{len(found) - 1}")
    return found[index]


def list_webgpu() -> list[DeviceListing]:
    """Every adapter, in the order of their numbers. EnvironmentProblem when there is none."""
    found = adapters(import_wgpu())
    return [
        DeviceListing(f"webgpu:{index}", "webgpu", _description(adapter), True, "")
        for index, adapter in enumerate(found)
    ]


def describe(wgpu: Any, adapter: Any, name: str, loop_limit: int) -> DeviceInfo:
    """What the adapter is and can take; ``loop_limit`` as the probe found it."""
    limits, info = adapter.limits, adapter.info
    identity = [str(info[key]) for key in sorted(info)]
    versions = "\n".join((*identity, wgpu.__version__))
    features = {ours for theirs, ours in _FEATURES.items() if theirs in adapter.features}
    if info["adapter_type"] == "CPU":
        features.add("software")
    across = limits["max-compute-workgroups-per-dimension"]
    return DeviceInfo(
        kind="webgpu",
        name=name,
        description=_description(adapter),
        fingerprint=hashlib.sha256(versions.encode()).hexdigest(),
        limits=Limits(
            max_buffer_bytes=limits["max-buffer-size"] // 4 * 4,
            max_binding_bytes=limits["max-storage-buffer-binding-size"],
            # One more stands for the scalars; it is a uniform buffer, which has a limit of its own.
            max_bindings=min(limits["max-storage-buffers-per-shader-stage"], limits["max-bindings-per-bind-group"] - 1),
            max_grid=(across, across, across),
            max_block=(
                limits["max-compute-workgroup-size-x"],
                limits["max-compute-workgroup-size-y"],
                limits["max-compute-workgroup-size-z"],
            ),
            max_invocations=limits["max-compute-invocations-per-workgroup"],
            workgroup_memory_bytes=limits["max-compute-workgroup-storage-size"],
            max_loop_iterations=loop_limit,
        ),
        dtypes=_DTYPES,
        features=frozenset(features),
    )


def open_device(adapter: Any, name: str) -> Opened:
    """A device with the adapter's limits and the features that are used. DeviceError when it gives none."""
    wanted = {key: adapter.limits[key] for key in _LIMITS}
    features = [feature for feature in _FEATURES if feature in adapter.features]
    try:
        device = adapter.request_device_sync(required_features=features, required_limits=wanted)
    except Exception as error:
        raise DeviceError(f"{name} cannot be opened: {error}") from error
    opened = Opened(device, device.queue)
    _watch(opened)
    return opened


def timestamp_period(queue: Any) -> float:
    """Seconds in a tick of the adapter's timestamps, 0 where the library does not say; wgpu-py has no name for it."""
    from wgpu.backends.wgpu_native import lib

    ask: Any = getattr(lib, "wgpuQueueGetTimestampPeriod", None)
    return float(ask(queue._internal)) * 1e-9 if ask is not None else 0.0  # noqa: SLF001


def _description(adapter: Any) -> str:
    info = adapter.info
    return f"{info['device']} ({info['backend_type']}, {info['description'] or info['vendor'] or 'unknown driver'})"


class _LossWatch(logging.Handler):
    """wgpu-py tells the loss of a device to its log only, without saying which: one process opens one."""

    _said = re.compile(r"The WGPU device was lost \((\w+)\):\s*(.*)", re.DOTALL)

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.open: list[Opened] = []

    def emit(self, record: logging.LogRecord) -> None:
        told = self._said.match(record.getMessage())
        if told is None or told[1] in {"Destroyed", "CallbackCancelled"}:
            return
        for opened in self.open:
            opened.lost = opened.lost or f"{told[1]}: {told[2].strip()}"


_watching: list[_LossWatch] = []


def _watch(opened: Opened) -> None:
    if not _watching:
        watch = _LossWatch()
        logging.getLogger("wgpu").addHandler(watch)
        _watching.append(watch)
    _watching[0].open.append(opened)


def forget(opened: Opened) -> None:
    """The device is no longer used."""
    for watch in _watching:
        watch.open = [other for other in watch.open if other is not opened]
