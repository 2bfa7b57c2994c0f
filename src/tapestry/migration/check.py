"""The whole-program check: run a placement on real inputs and compare what it returns with the oracle.

Not here: what follows from a bad check (engine).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import msgspec
import torch

from tapestry.errors import (
    ConnectionLostError,
    DeviceLostError,
    DeviceTimeoutError,
    InputError,
    TapestryError,
    UnsupportedError,
)
from tapestry.migration.drift import Drift
from tapestry.migration.result import DriftPoint
from tapestry.numerics import program_bound, program_error
from tapestry.numerics.verdict import Verdict
from tapestry.placement.executable import Executable
from tapestry.placement.reference import Reference, reference_for, run_watched, widened_tensors
from tapestry.program.inputs import InputSet
from tapestry.program.program import Program


class CheckResult(msgspec.Struct, frozen=True):
    """A check over one or more input sets.

    ``max_rel_error`` is against the oracle, ``against_source`` the same against the source's own results;
    ``source_error`` is the source's against the oracle and ``bound`` what was allowed, both of the input set that
    comes closest to its bound. ``reason`` is empty when all is good, else ``failed_at`` is the input set that was bad
    and ``verdict`` how: ``fail`` (wrong values), ``crashed``, ``timeout``, ``unsupported`` or ``error``.
    """

    good: bool
    max_rel_error: float
    max_abs_error: float
    cosine: float
    against_source: float
    source_error: float
    bound: float
    program_runs: int
    reason: str = ""
    failed_at: int | None = None
    verdict: str = "pass"
    drift: tuple[DriftPoint, ...] = ()


class Checker:
    """Checks executables of one program on its input sets; references are computed once each."""

    def __init__(self, program: Program, inputs: Sequence[InputSet]) -> None:
        self.program = program
        self.inputs = tuple(inputs)
        self.runs = 0
        #: Values, and their bytes, moved between source and target in the last call.
        self.transfers = 0
        self.transfer_bytes = 0
        self._references: dict[int, Reference] = {}

    @cached_property
    def _wide_tensors(self) -> dict[str, torch.Tensor]:
        return widened_tensors(self.program)

    def reference(self, place: int) -> Reference:
        """What input set number ``place`` should give."""
        if place not in self._references:
            self._references[place] = reference_for(self.program, self.inputs[place], self._wide_tensors)
        return self._references[place]

    def check(self, executable: Executable, places: Sequence[int], drift: bool = False) -> CheckResult:
        """Run these input sets and compare; stops at the first bad one. With ``drift`` each value is read and compared.

        A device that fails is a bad result; after DeviceLostError it must be restarted (``verdict`` says so).
        Raises ConnectionLostError where only the connection to it broke: the run does not count.
        """
        results: list[CheckResult] = []
        for place in places:
            try:
                results.append(self._check_one(executable, place, drift))
            except ConnectionLostError:
                self.runs -= 1
                raise
            except Exception as error:  # of the device, or of a source node that was given what the device made
                results.append(broken(error))
            if not results[-1].good:
                return msgspec.structs.replace(together(results), failed_at=place)
        return together(results)

    def _check_one(self, executable: Executable, place: int, drift: bool) -> CheckResult:
        reference = self.reference(place)
        self.runs += 1
        executable.reset()
        results: list[CheckResult] = []
        for number, (call, expected) in enumerate(zip(self.inputs[place].calls, reference, strict=True)):
            watch = Drift(self.program, call, self._wide_tensors) if drift and number == 0 else None
            got = run_watched(executable, call.args, dict(call.kwargs), watch.see if watch else None)
            self.transfers = executable.log.transfers
            self.transfer_bytes = executable.log.upload_bytes + executable.log.download_bytes
            error = program_error(got, expected.oracle)
            bound = program_bound(expected.source_error.max_rel_error)
            good = error.max_rel_error <= bound
            reason = "" if good else _words(error.max_rel_error, bound, place, number)
            against = program_error(got, expected.source).max_rel_error
            checked = CheckResult(
                good=good,
                max_rel_error=error.max_rel_error,
                max_abs_error=error.max_abs_error,
                cosine=error.cosine,
                against_source=against,
                source_error=expected.source_error.max_rel_error,
                bound=bound,
                program_runs=1,
                reason=reason,
                verdict="pass" if good else "fail",
                drift=watch.points if watch and good else (),
            )
            results.append(checked)
            if not good:
                break
        return msgspec.structs.replace(together(results), program_runs=1)


def broken(error: Exception) -> CheckResult:
    """The result of a program that did not come to an end; its numbers are infinite."""
    infinite = float("inf")
    reason = str(error) if isinstance(error, TapestryError) else f"{type(error).__name__}: {error}"
    return CheckResult(False, infinite, infinite, 0.0, infinite, 0.0, 0.0, 1, reason, verdict=str(verdict_of(error)))


def verdict_of(error: Exception) -> Verdict:
    """The verdict that an error of a device, a backend or a run means."""
    if isinstance(error, DeviceTimeoutError):
        return Verdict.TIMEOUT
    if isinstance(error, DeviceLostError):
        return Verdict.CRASHED
    return Verdict.UNSUPPORTED if isinstance(error, UnsupportedError | InputError) else Verdict.ERROR


def _words(error: float, bound: float, place: int, number: int) -> str:
    where = f"input set {place}" + (f", call {number}" if number else "")
    if math.isinf(error):
        return f"{where}: shapes, exact results or the places of NaN and infinities differ from the oracle's"
    return f"{where}: expected a relative error of at most {bound:.2g}, got {error:.2g}"


def together(results: Sequence[CheckResult]) -> CheckResult:
    """One result for several input sets or calls: the worst errors, and the first bad one's words."""
    closest = max(results, key=lambda entry: entry.max_rel_error / entry.bound if entry.bound else math.inf)
    bad = next((entry for entry in results if not entry.good), None)
    return CheckResult(
        good=bad is None,
        max_rel_error=max(entry.max_rel_error for entry in results),
        max_abs_error=max(entry.max_abs_error for entry in results),
        cosine=min(entry.cosine for entry in results),
        against_source=max(entry.against_source for entry in results),
        source_error=closest.source_error,
        bound=closest.bound,
        program_runs=sum(entry.program_runs for entry in results),
        reason=bad.reason if bad else "",
        verdict=bad.verdict if bad else "pass",
        drift=next((entry.drift for entry in results if entry.drift), ()),
    )
