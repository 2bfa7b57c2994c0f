"""Running a subject on an open target, whatever becomes of the device, as replaying runs a case.

Not here: reducing (reduce), and opening devices (make).
"""

from __future__ import annotations

from dataclasses import dataclass

from tapestry.errors import TapestryError
from tapestry.numerics.verdict import Verdict
from tapestry.suite.on_target import Target, revive, run_once, verdict_of
from tapestry.suite.repro.attempt import Attempt, ended, judged
from tapestry.suite.repro.subject import Subject


@dataclass(frozen=True)
class OnDevice:
    """Runs subjects on a target: compiled, run once, judged. A lost device is started again."""

    target: Target

    def __call__(self, subject: Subject) -> Attempt:
        """The attempt; what happens to the device is its verdict."""
        target, graph = self.target, subject.graph
        info = target.resident.device.info
        answers = (target.backend.refuses_in(graph, call.name, info) for call in graph.calls)
        refused = next((reason for reason in answers if reason is not None), None)
        if refused is not None:
            return ended(Verdict.UNSUPPORTED, refused)
        try:
            compiled = target.compiler.compile(target.backend, graph, info, target.options)
            target.resident.module(compiled.module)
        except TapestryError as error:
            return self._ended(error)
        try:
            got = run_once(target.resident, graph, compiled, subject.inputs)
        except (TapestryError, RuntimeError, ValueError) as error:  # the latter two from a preparation graph
            return self._ended(error)
        finally:
            target.resident.release_module(compiled.module.digest)
        return judged(subject, got)

    def _ended(self, error: Exception) -> Attempt:
        revive(self.target, error)
        return ended(verdict_of(error), error)
