"""The model on the source: what each call takes there, and the values that regions read.

Not here: devices.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median

import torch

from tapestry.profiling.result import Timing
from tapestry.program.graph import Call, Ref
from tapestry.program.inputs import CallArgs
from tapestry.program.interpret import Values, call_operator, run_calls, start_values
from tapestry.program.program import Program

#: Timed runs of the model, after one to warm up.
_RUNS = 5


@dataclass(frozen=True)
class SourceRun:
    """Seconds of every node on the source, and the values that were asked for."""

    seconds: Mapping[str, Timing]
    values: Values


def run_on_source(program: Program, call: CallArgs, wanted: Collection[Ref] = (), runs: int = _RUNS) -> SourceRun:
    """Run the program on one call's arguments and the state at capture, each call timed.

    InputError for arguments that the program was not captured for, and whatever its operators raise.
    """
    bound = program.bind(call.args, call.kwargs)
    kept: Values = {}
    taken: dict[str, list[float]] = {node.id: [] for node in program.nodes}

    def timed(one: Call, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        begin = time.perf_counter()
        result = call_operator(one, args, kwargs)
        taken[one.name].append(time.perf_counter() - begin)
        return result

    calls = [node.call for node in program.nodes]
    for number in range(runs + 1):
        values = start_values(program, bound, {})
        keep = program.results | frozenset(wanted) if number == 0 else program.results
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            run_calls(calls, values, keep, timed)
        if number == 0:
            kept = {ref: values[ref] for ref in wanted}
            for seconds in taken.values():
                seconds.clear()
    return SourceRun({name: Timing(median(s), min(s), max(s), len(s), 1) for name, s in taken.items()}, kept)
