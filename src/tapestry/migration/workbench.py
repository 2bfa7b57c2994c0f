"""What migrations of several programs to one device share: the opened device, its backends, the compiler."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tapestry.backends.base import Backend, Options
from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import check_kind, default_backend, ready_backends
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.injection.platform import Platform
from tapestry.suite.on_target import Target


@dataclass(frozen=True)
class Workbench:
    """A device that is open, with the backends to use on it in order of preference.

    Constants and modules are on the device once, whichever of the programs moved there needs them.
    """

    to: str
    resident: Resident
    backends: tuple[Backend, ...]
    compiler: Compiler

    def targets(self, options: Mapping[str, Options] | None = None, faulty: Platform | None = None) -> list[Target]:
        """A target for each backend; ``options`` are used by backend, or else the reference options."""
        chosen = options or {}
        return [
            Target.of(self.resident, entry, self.compiler, chosen.get(entry.name), faulty) for entry in self.backends
        ]


@contextmanager
def workbench(to: str, backend: str = "") -> Generator[Workbench]:
    """Open device ``to`` for migrations. ``backend`` names one, or several in order of preference (``kernels,tvm``).

    It defaults to those for the device's kind. Raises EnvironmentProblem when the device or a backend is missing,
    UsageError when they don't fit each other.
    """
    # Before the device is opened: its worker loads only what backends known by then may load.
    named = ready_backends(backend) if backend else ()
    resident = Resident(open_device(to))
    try:
        chosen = named or ready_backends(default_backend(resident.device.info.kind))
        for entry in chosen:
            check_kind(entry, resident.device.info)
        with Compiler() as compiler:
            yield Workbench(to, resident, tuple(chosen), compiler)
    finally:
        resident.device.close()
