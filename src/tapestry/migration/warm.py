"""What migrations of one program to one device keep for the next: its suite, its references, its constants.

When a kernel changes, nothing of these does. Not here: the device and the compiler, which several programs share
(workbench), and verdicts (the journal).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tapestry.migration.check import Checker
from tapestry.placement.build import Builder
from tapestry.program.inputs import InputSet
from tapestry.program.program import Program
from tapestry.suite.case import Suite
from tapestry.suite.verdicts import ReplayResult


class Warm:
    """Made by the first migration that it is given to; the next ones must be of the same program, inputs and device.

    ``when_replayed`` is called in each with the verdicts of the cases, before anything is moved.
    """

    def __init__(self) -> None:
        self.when_replayed: Callable[[ReplayResult], None] = lambda result: None
        self._suite: Suite | None = None
        self._checker: Checker | None = None
        self._builder: Builder | None = None

    def suite(self, make: Callable[[], Suite]) -> Suite:
        """The suite, with the variants that decide."""
        if self._suite is None:
            self._suite = make()
        return self._suite

    def checker(self, program: Program, inputs: Sequence[InputSet]) -> Checker:
        """The checker, which keeps what the oracle and the source gave."""
        if self._checker is None:
            self._checker = Checker(program, inputs)
        return self._checker

    def builder(self, make: Callable[[], Builder]) -> Builder:
        """The builder, which keeps folded constants and the graphs of regions."""
        if self._builder is None:
            self._builder = make()
        return self._builder
