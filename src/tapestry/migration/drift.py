"""Drift: how far values are from the oracle along a program, on the target and on the source.

Measured while every operator that moves is a region of its own, so that each value can be read. Not here: the check of
the outputs (check), and drawing (report).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch

from tapestry.migration.result import DriftPoint
from tapestry.numerics import program_error
from tapestry.numerics.float64 import to_oracle_dtype
from tapestry.placement.reference import run_both
from tapestry.program.graph import Call, Ref
from tapestry.program.inputs import CallArgs
from tapestry.program.program import Program
from tapestry.suite.carve import initial_state


class Drift:
    """What the compute nodes of a program give in its first call, by the oracle and on the source.

    Hand ``see`` the target's values; ``points`` are in program order, of the nodes that were seen.
    """

    def __init__(self, program: Program, call: CallArgs, wide_tensors: Mapping[str, torch.Tensor]) -> None:
        self.program = program
        bound = program.bind(call.args, call.kwargs)
        state = initial_state(program)
        wide = {**wide_tensors, **{name: to_oracle_dtype(tensor) for name, tensor in state.items()}}
        self._exact: dict[str, torch.Tensor] = {}
        self._source: dict[str, float] = {}
        self._target: dict[str, float] = {}
        run_both(program, bound, state, wide, self._keep, self._compare)

    def see(self, ref: Ref, value: torch.Tensor) -> None:
        """The target gave this."""
        if ref.item == 0 and ref.name in self._exact:
            self._target[ref.name] = self._error(ref.name, value)

    @property
    def points(self) -> tuple[DriftPoint, ...]:
        """The errors of the nodes that were seen."""
        return tuple(
            DriftPoint(node.id, node.source.module, self._target[node.id], self._source[node.id])
            for node in self.program.nodes
            if node.id in self._target and node.id in self._source
        )

    def _keep(
        self, call: Call, args: tuple[object, ...], kwargs: Mapping[str, object], results: tuple[object, ...]
    ) -> None:
        if call.name in self.program.compute and isinstance(results[0], torch.Tensor):
            self._exact[call.name] = results[0].clone()

    def _compare(
        self, call: Call, args: tuple[object, ...], kwargs: Mapping[str, object], results: tuple[object, ...]
    ) -> None:
        if call.name in self._exact:
            self._source[call.name] = self._error(call.name, cast("torch.Tensor", results[0]))

    def _error(self, node: str, value: torch.Tensor) -> float:
        return program_error((value,), (self._exact[node],)).max_rel_error
