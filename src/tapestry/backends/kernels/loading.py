"""Where kernels come from: the modules that ship with this backend, and files that a user names.

Not here: what a kernel is (declare).
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from importlib import import_module
from pathlib import Path

from tapestry.backends.kernels.declare import Kernel, declared, forget
from tapestry.errors import UsageError

#: Device kind → the modules whose import declares the kernels that ship.
_SHIPPED: dict[str, tuple[str, ...]] = {
    "opencl": (
        "tapestry.backends.kernels.opencl.elementwise",
        "tapestry.backends.kernels.opencl.reductions",
        "tapestry.backends.kernels.opencl.rows",
    ),
    "webgpu": (
        "tapestry.backends.kernels.webgpu.attention",
        "tapestry.backends.kernels.webgpu.elementwise",
        "tapestry.backends.kernels.webgpu.norms",
        "tapestry.backends.kernels.webgpu.products",
        "tapestry.backends.kernels.webgpu.reductions",
        "tapestry.backends.kernels.webgpu.rms_norm",
        "tapestry.backends.kernels.webgpu.rows",
        "tapestry.backends.kernels.webgpu.softmax",
    ),
}


def kernels_for(device: str) -> tuple[Kernel, ...]:
    """All kernels for a kind of device, the latest declared first."""
    for module in _SHIPPED.get(device, ()):
        import_module(module)
    return declared(device)


def load_kernels(path: Path) -> None:
    """Run a Python file that declares kernels; what an earlier version of it declared is replaced.

    UsageError, naming the line, when there is no such file or it raises.
    """
    if not path.is_file():
        raise UsageError(
            f"expected a Python file with kernels at {path}, got {'a folder' if path.is_dir() else 'nothing'}"
        )
    for shipped in _SHIPPED.values():
        for module in shipped:
            import_module(module)
    file = str(path.resolve())
    forget(file)
    spec = importlib.util.spec_from_file_location(f"tapestry_kernels_{path.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    before = len(declared_anywhere())
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        forget(file)
        lines = [entry.lineno for entry in traceback.extract_tb(error.__traceback__) if entry.filename == file]
        where = f" (line {lines[-1]})" if lines else ""
        raise UsageError(f"{path} raised {type(error).__name__}: {error}{where}") from error
    if len(declared_anywhere()) == before:
        raise UsageError(f"{path} declares no kernel; decorate a function with tapestry.kernel(device=…, pattern=…)")


def declared_anywhere() -> tuple[Kernel, ...]:
    """The kernels of all kinds of devices."""
    return tuple(entry for device in ("opencl", "webgpu", "cuda") for entry in declared(device))
