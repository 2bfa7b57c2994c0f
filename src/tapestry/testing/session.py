"""A device that is opened once for all the cases of a test run, and one case on it. Not here: pytest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tapestry.backends.compiler import Compiler
from tapestry.backends.kernels.loading import load_kernels
from tapestry.backends.registry import default_backend, ready_backends
from tapestry.numerics.verdict import Verdict
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.case import Case, Suite
from tapestry.suite.on_target import Target
from tapestry.suite.replay import replay_preferring
from tapestry.suite.verdicts import CaseResult

_SKIPPED = frozenset({Verdict.UNDEFINED, Verdict.UNSUPPORTED})


@dataclass(frozen=True)
class Told:
    """What became of a case, for a test report."""

    device: str
    result: CaseResult

    @property
    def verdict(self) -> Verdict:
        return self.result.verdict

    @property
    def reason(self) -> str:
        return self.result.reason

    @property
    def backend(self) -> str:
        return self.result.backend

    @property
    def variant(self) -> str:
        return self.result.variant

    @property
    def latent(self) -> bool:
        return self.result.latent

    @property
    def max_ulp(self) -> float:
        return self.result.metrics.max_ulp

    @property
    def max_rel(self) -> float:
        return self.result.metrics.max_rel

    @property
    def skipped(self) -> bool:
        """Whether there is nothing to say about right or wrong."""
        return self.verdict in _SKIPPED

    @property
    def failed(self) -> bool:
        """Whether the verdict is a bad one."""
        return self.verdict != Verdict.PASS and not self.skipped

    def told(self, case: Case) -> str:
        """The failure in a few lines."""
        lines = [
            f"{self.verdict}: {case.op} on {self.device} with {self.backend}",
            f"  {self.reason}",
            *([f"  variant: {case.variant}{' (latent)' if self.latent else ''}"] if case.variant else []),
            *([f"  from: {case.source_line}"] if case.source_line else []),
        ]
        return "\n".join(lines)


class ReplaySession:
    """An open device with its backends. Raises as `tapestry.replay` does when they are missing."""

    def __init__(self, device: str, backend: str, kernels: Sequence[Path] = ()) -> None:
        for path in kernels:
            load_kernels(path)
        named = ready_backends(backend) if backend else ()
        self._resident = Resident(open_device(device))
        chosen = named or ready_backends(default_backend(self._resident.device.info.kind))
        self._compiler = Compiler()
        self._targets = [Target.of(self._resident, entry, self._compiler) for entry in chosen]

    def run(self, suite: Suite, case: Case) -> Told:
        """One case."""
        found = replay_preferring(self._targets, suite, cases=[case])
        return Told(self._resident.device.info.name, found.result.results[0])

    def close(self) -> None:
        """Close the device and stop the compilers."""
        self._compiler.close()
        self._resident.device.close()
