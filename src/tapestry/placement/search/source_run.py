"""One call of a program on the source: every value, the seconds of every node, and what a wrong value would do.

Not here: what computes the wrong values (measure).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import cast

import torch

from tapestry.numerics import program_error
from tapestry.placement.reference import SEED, watched
from tapestry.program import traits
from tapestry.program.graph import Call, Ref, operands
from tapestry.program.inputs import CallArgs
from tapestry.program.interpret import Values, call_operator, run_calls, start_values
from tapestry.program.program import Program
from tapestry.program.region import Region

#: Timed runs, after the one that keeps the values.
_RUNS = 5


class SourceRun:
    """A call on the state at capture. Holds every value of the program: as much memory as all intermediates take.

    InputError for arguments that the program was not captured for, and whatever its operators raise.
    """

    def __init__(self, program: Program, call: CallArgs) -> None:
        self.program = program
        self._bound = program.bind(call.args, call.kwargs)
        self._calls = tuple(node.call for node in program.nodes)
        self.values: Values = start_values(program, self._bound, {})
        made = frozenset(Ref(one.name, item) for one in self._calls for item in range(len(one.outputs)))
        self._run(self.values, made)

    def _run(self, values: Values, keep: frozenset[Ref], taken: dict[str, list[float]] | None = None) -> None:
        def timed(one: Call, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
            begin = time.perf_counter()
            result = call_operator(one, args, kwargs)
            if taken is not None:
                taken[one.name].append(time.perf_counter() - begin)
            return result

        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            run_calls(self._calls, values, keep, timed)

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        """What each node takes: the median of a few runs."""
        taken: dict[str, list[float]] = {call.name: [] for call in self._calls}
        for _ in range(_RUNS):
            self._run(start_values(self.program, self._bound, {}), self.program.results, taken)
        return {name: median(found) for name, found in taken.items()}

    @cached_property
    def results(self) -> tuple[torch.Tensor, ...]:
        """What the program gives: outputs in order, then new state."""
        return watched(self.program, self.values)

    def tensor(self, ref: Ref) -> torch.Tensor:
        """A value of the run."""
        return cast("torch.Tensor", self.values[ref])

    def effect(self, region: Region, got: Sequence[torch.Tensor]) -> float:
        """``max_rel_error`` of the program's outputs against the source's, were these the region's outputs.

        What follows from them is computed on the source. Raises whatever an operator raises that is given them.
        """
        values = dict(self.values)
        changed: set[Ref] = set()
        for ref, tensor in zip(region.outputs, got, strict=True):
            if not _same(tensor, self.tensor(ref)):
                changed.add(ref)
            values[ref] = tensor
        if not changed:
            return 0.0
        again = self._affected(changed, set(region.nodes))
        made = frozenset(Ref(call.name, item) for call in again for item in range(len(call.outputs)))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            run_calls(again, values, made)
        return program_error(watched(self.program, values), self.results).max_rel_error

    def _affected(self, changed: set[Ref], inside: set[str]) -> list[Call]:
        """What reads a changed value, directly or not; with random operators everything, so that they draw alike."""
        outside = [call for call in self._calls if call.name not in inside]
        if any(traits.is_random(call) for call in outside):
            return outside
        names = {ref.name for ref in changed}
        found: list[Call] = []
        for call in outside:
            if any(ref in changed or (ref.name in names and ref.name not in inside) for ref in operands(call)):
                names.add(call.name)
                found.append(call)
        return found


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal bit for bit, apart from which NaN it is."""
    return (
        left.shape == right.shape
        and left.dtype == right.dtype
        and torch.equal(left.isnan(), right.isnan())
        and (
            torch.equal(left.nan_to_num(), right.nan_to_num()) if left.is_floating_point() else torch.equal(left, right)
        )
    )
