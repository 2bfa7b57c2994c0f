"""Where kernels come from: the modules that ship with this backend, and files that a user names.

Not here: what a kernel is (declare).
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

from tapestry.backends.kernels.declare import Kernel, declared, forget, restore, snapshot
from tapestry.backends.kernels.reading import files_read, reading_anew
from tapestry.errors import UsageError

#: Kernels for several kinds of devices.
_FAMILIES = (
    "tapestry.backends.kernels.families.attention",
    "tapestry.backends.kernels.families.norms",
    "tapestry.backends.kernels.families.products",
    "tapestry.backends.kernels.families.rms_norm",
    "tapestry.backends.kernels.families.softmax",
)
#: Device kind → the modules whose import declares the kernels that ship.
_SHIPPED: dict[str, tuple[str, ...]] = {
    "opencl": (
        *_FAMILIES,
        "tapestry.backends.kernels.opencl.elementwise",
        "tapestry.backends.kernels.opencl.reductions",
        "tapestry.backends.kernels.opencl.rows",
    ),
    "webgpu": (
        *_FAMILIES,
        "tapestry.backends.kernels.webgpu.elementwise",
        "tapestry.backends.kernels.webgpu.reductions",
        "tapestry.backends.kernels.webgpu.rows",
    ),
}


def kernels_for(device: str) -> tuple[Kernel, ...]:
    """All kernels for a kind of device, the latest declared first."""
    for module in _SHIPPED.get(device, ()):
        import_module(module)
    return declared(device)


def load_kernels(path: Path) -> None:
    """Run a Python file that declares kernels; what an earlier version of it declared is replaced.

    Modules beside it may be imported, and are read again whenever the file is. UsageError, naming the line, when there
    is no such file or it raises; then what the earlier version declared is gone.
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
    _forget_modules(file)
    module = ModuleType(f"tapestry_kernels_{path.stem}")
    module.__file__ = file
    sys.modules[module.__name__] = module
    before, modules = len(declared_anywhere()), set(sys.modules)
    try:
        with reading_anew(file), _importing_beside(path):
            # Not by Python's loader, whose cache goes by whole seconds: a file saved twice within one would stay old.
            exec(compile(Path(file).read_bytes(), file, "exec"), vars(module))  # noqa: S102 (the user's own file)
    except (Exception, SystemExit) as error:
        forget(file)
        lines = [entry.lineno for entry in traceback.extract_tb(error.__traceback__) if entry.filename == file]
        where = f" (line {lines[-1]})" if lines else ""
        raise UsageError(f"{path} raised {type(error).__name__}: {error}{where}") from error
    finally:
        _modules[file] = [name for name in sys.modules if name not in modules]
    if len(declared_anywhere()) == before:
        raise UsageError(f"{path} declares no kernel; decorate a function with tapestry.kernel(device=…, pattern=…)")


def reload_kernels(paths: Sequence[Path]) -> None:
    """Load files again, in order, as they are now. UsageError where one does not load: then all kernels stay as before.

    All, because of kernels that match the same calls the last declared one wins.
    """
    kept = snapshot()
    for path in paths:
        _forget_modules(str(path.resolve()))
    try:
        for path in paths:
            load_kernels(path)
    except BaseException:
        restore(kept)
        raise


#: Kernel file → the modules that were first imported while it was loaded.
_modules: dict[str, list[str]] = {}


def _forget_modules(file: str) -> None:
    """Take out the modules beside a kernel file that it imported, so that they are read again with it."""
    read = files_read(file)
    for name in _modules.pop(file, ()):
        origin = getattr(sys.modules.get(name), "__file__", None)
        if origin is not None and os.path.realpath(origin) in read:
            del sys.modules[name]


@contextmanager
def _importing_beside(path: Path) -> Generator[None]:
    """Modules beside the file can be imported, and leave no byte code, which would go by whole seconds, too."""
    folder = str(path.resolve().parent)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)
        sys.dont_write_bytecode = before


def declared_anywhere() -> tuple[Kernel, ...]:
    """The kernels of all kinds of devices."""
    return tuple(entry for device in ("opencl", "webgpu", "cuda") for entry in declared(device))
