"""Which backends there are: those of this package and those that other distributions register.

Another distribution adds one through the entry point group ``tapestry.backends``, whose value names the class.
Not here: any backend.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from tapestry.backends.base import Backend
from tapestry.errors import EnvironmentProblem, UsageError
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.drivers.host import register_loader_prefix

#: Our own, by name; imported when they are asked for.
_BUILT_IN = {
    "onnxruntime": "tapestry.backends.onnxruntime.backend:OnnxRuntime",
    "openvino": "tapestry.backends.openvino.backend:OpenVino",
    "executorch": "tapestry.backends.executorch.backend:ExecuTorch",
    "inductor": "tapestry.backends.inductor.backend:Inductor",
    "eager": "tapestry.backends.eager:Eager",
    "kernels": "tapestry.backends.kernels.backend:Kernels",
    "tvm": "tapestry.backends.tvm.backend:Tvm",
}
_GROUP = "tapestry.backends"
_registered: dict[str, type[Backend]] = {}


def register(backend: type[Backend]) -> type[Backend]:
    """Add a backend class under its ``name`` (usable as a decorator). UsageError when the name is taken.

    Artifacts whose loader is in the class's own module may then be loaded by host devices.
    """
    taken = _registered.get(backend.name)
    if backend.name in _BUILT_IN or (taken is not None and taken is not backend):
        raise UsageError(f"a backend named {backend.name!r} exists already; choose another name")
    _registered[backend.name] = backend
    register_loader_prefix(f"{backend.__module__}.")
    return backend


def unregister(name: str) -> None:
    """Take a registered backend out again; built-in ones stay."""
    _registered.pop(name, None)


def backend_names() -> tuple[str, ...]:
    """The names of all backends, whether they can be used here or not."""
    return tuple(sorted({*_BUILT_IN, *_registered, *_entry_points()}))


def get_backend(name: str) -> Backend:
    """The backend called ``name``, whether it is ready or not. UsageError when there is none."""
    if name in _registered:
        return _registered[name]()
    address = _BUILT_IN.get(name) or _entry_points().get(name)
    if address is None:
        raise UsageError(f"expected one of the backends {', '.join(backend_names())}, got {name!r}")
    module, _, attribute = address.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise EnvironmentProblem(f"backend {name} cannot be loaded from {address}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise UsageError(f"backend {name}: expected a Backend class at {address}, got {found!r}")
    register_loader_prefix(f"{module}.")
    return found()


def ready_backend(name: str) -> Backend:
    """The backend called ``name``; EnvironmentProblem with the install line when it cannot be used here."""
    backend = get_backend(name)
    state = backend.availability()
    if not state.ready:
        raise EnvironmentProblem(f"backend {name} cannot be used here: {state.reason}")
    return backend


def default_backend(device_kind: str) -> str:
    """The backends that a command uses for a kind of device when none is named, the preferred one first."""
    return "eager" if device_kind == "host" else "kernels,tvm"


def ready_backends(names: str) -> tuple[Backend, ...]:
    """The backends of a comma-separated list, in order of preference; each as ``ready_backend``."""
    listed = [name.strip() for name in names.split(",") if name.strip()]
    if not listed or len(set(listed)) != len(listed):
        raise UsageError(f"expected the names of backends, each once and separated by commas, got {names!r}")
    return tuple(ready_backend(name) for name in listed)


def check_kind(backend: Backend, info: DeviceInfo) -> None:
    """UsageError when the backend does not run on this kind of device."""
    if info.kind not in backend.device_kinds:
        kinds = ", ".join(sorted(backend.device_kinds))
        raise UsageError(f"backend {backend.name} runs on {kinds}, not on {info.name} ({info.kind})")


def _entry_points() -> dict[str, str]:
    return {entry.name: entry.value for entry in entry_points(group=_GROUP)}
