"""Which module drives which kind of device. Drivers are named, and imported only where a device is opened.

Not here: opening devices for users (open.py), or deciding between a worker and this process.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from tapestry.errors import EnvironmentProblem, UsageError
from tapestry.runtime.device import Device
from tapestry.runtime.drivers.listing import DeviceListing
from tapestry.runtime.names import DeviceName

_BUILTIN = {
    "cpu": "tapestry.runtime.drivers.host:open_host",
    "opencl": "tapestry.runtime.drivers.opencl:open_opencl",
    "webgpu": "tapestry.runtime.drivers.webgpu.driver:open_webgpu",
}
_LISTERS = {
    "cpu": "tapestry.runtime.drivers.host:list_host",
    "opencl": "tapestry.runtime.drivers.opencl:list_opencl",
    "webgpu": "tapestry.runtime.drivers.webgpu.adapters:list_webgpu",
    "browser": "tapestry.runtime.browser.chromium:list_browser",
}
_PLANNED = ("cuda", "browser", "ws", "wss")

_registered: dict[str, str] = {}


@dataclass(frozen=True)
class DriverEntry:
    """A driver added to the built-in ones: ``factory`` is ``module:function``, from a DeviceName to a Device."""

    kind: str
    factory: str

    def __str__(self) -> str:
        return f"{self.kind}={self.factory}"

    @staticmethod
    def parse(text: str) -> DriverEntry:
        kind, _, factory = text.partition("=")
        if not kind or ":" not in factory:
            raise UsageError(f"a driver is written KIND=module:function, got {text!r}")
        return DriverEntry(kind, factory)


def register_driver(entry: DriverEntry) -> None:
    """Add a driver for a kind that has none. Workers started afterwards know it too."""
    if entry.kind in _BUILTIN:
        raise UsageError(f"kind {entry.kind!r} has a driver already: {_BUILTIN[entry.kind]}")
    _registered[entry.kind] = entry.factory


def registered_drivers() -> tuple[DriverEntry, ...]:
    """The drivers added in this process, to be passed on to workers."""
    return tuple(DriverEntry(kind, factory) for kind, factory in _registered.items())


def local_kinds() -> tuple[str, ...]:
    """Kinds that can be listed on this machine."""
    return tuple(_LISTERS)


def require_driver(name: DeviceName) -> str:
    """The ``module:function`` that opens ``name``; EnvironmentProblem for a kind without a driver here."""
    factory = _BUILTIN.get(name.kind) or _registered.get(name.kind)
    if factory is not None:
        return factory
    if name.kind in _PLANNED:
        raise EnvironmentProblem(
            f"device {name} cannot be opened: this release has no driver for {name.kind!r}; "
            f"use one of {', '.join(_BUILTIN)}"
        )
    raise EnvironmentProblem(f"device {name} cannot be opened: no driver is registered for {name.kind!r}")


def open_driver(name: DeviceName) -> Device:
    """Opens a device in this process."""
    factory = cast("Callable[[DeviceName], Device]", _resolve(require_driver(name)))
    return factory(name)


def list_kind(kind: str) -> list[DeviceListing]:
    """The devices of one kind. EnvironmentProblem when something is missing."""
    lister = cast("Callable[[], list[DeviceListing]]", _resolve(_LISTERS[kind]))
    return lister()


def _resolve(path: str) -> object:
    module, _, function = path.partition(":")
    return getattr(importlib.import_module(module), function)
