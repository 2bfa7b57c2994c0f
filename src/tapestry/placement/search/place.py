"""A search on this machine's devices: opened, measured in workers, timed in this process, closed again.

Not here: the stages of a search (search).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tapestry.backends.base import Backend
from tapestry.backends.compiler import Compiler
from tapestry.backends.host.threads import thread_budget
from tapestry.errors import UsageError
from tapestry.placement.build import Builder
from tapestry.placement.search.candidates import candidates_of, ways_of
from tapestry.placement.search.end_to_end import ROUNDS, MeasuredEndToEnd, StoredEndToEnd
from tapestry.placement.search.held_out import split
from tapestry.placement.search.measure import MeasuredCosts, MeasuredOn, inputs_digest, tensors_digest
from tapestry.placement.search.pressing import noticing
from tapestry.placement.search.search import Found, Limits, reference_only, search
from tapestry.placement.search.store import CostStore
from tapestry.program.inputs import InputSet
from tapestry.program.program import Program
from tapestry.runtime.open import open_device, open_in_process
from tapestry.runtime.resident import Resident

#: Seconds for one request to a worker, after which a candidate counts as hung.
PATIENCE = 20.0


def place(
    program: Program,
    inputs: Sequence[InputSet],
    backends: Sequence[Backend],
    devices: Sequence[str] = ("cpu",),
    limits: Limits | None = None,
    costs: Path | None = None,
    rounds: int = ROUNDS,
) -> Found:
    """Search the fastest placement of a program over backends on devices, by name.

    ``costs`` is the file of the cost store (default: under the user's cache directory). UsageError when no backend runs
    on any of the devices; EnvironmentProblem when a device cannot be opened or OR-Tools is missing.
    """
    allowed = limits or Limits()
    seen, held_out = split(inputs)
    with ExitStack() as open_:
        compiler = open_.enter_context(Compiler())
        store = open_.enter_context(CostStore(costs))
        workers = {name: Resident(open_device(name, timeout=PATIENCE)) for name in devices}
        for resident in workers.values():
            open_.callback(resident.device.close)
        here = {name: Resident(open_in_process(name)) for name in devices}
        for resident in here.values():
            open_.callback(resident.device.close)
        infos = [resident.device.info for resident in workers.values()]
        ways = ways_of(backends, infos)
        if not ways:
            names = ", ".join(backend.name for backend in backends) or "none"
            raise UsageError(f"expected a backend that runs on {', '.join(devices)}, got {names}")
        candidates = candidates_of(program, ways if allowed.budget else reference_only(ways))
        measured_on = {name: MeasuredOn(workers[name], here[name].device) for name in devices}
        by_name = {backend.name: backend for backend in backends}
        model = MeasuredCosts(candidates, seen, measured_on, compiler, store)
        whole = MeasuredEndToEnd(
            program,
            seen,
            held_out,
            Builder(program, workers, compiler, by_name),
            Builder(program, here, compiler, by_name),
            rounds,
        )
        kept = StoredEndToEnd(whole, store, _data(program, inputs, [info.fingerprint for info in infos], rounds))
        pressed = open_.enter_context(noticing())
        return search(
            candidates, model, kept, allowed, measured=lambda: model.measured + kept.measured, pressed=pressed
        )


def _data(program: Program, inputs: Sequence[InputSet], devices: Sequence[str], rounds: int) -> str:
    """Everything that a whole placement's measurements depend on, but for the placement with its backends' versions."""
    parts = [program.graph_hash, tensors_digest(program.tensors), inputs_digest(inputs), *devices]
    return hashlib.sha256("\n".join([*parts, str(thread_budget()), str(rounds)]).encode()).hexdigest()
