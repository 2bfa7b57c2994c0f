"""What a program should compute, and what an executable of it does: the tensors that a check of it compares.

The results on the source and by the oracle, for every call of every input set. Not here: comparing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch.utils import _pytree as pytree

from tapestry.numerics import ProgramError, program_error
from tapestry.numerics.float64 import oracle, to_oracle_dtype
from tapestry.numerics.no_oracle import NoOracle
from tapestry.placement.executable import Executable
from tapestry.program.graph import Call, Ref, operands
from tapestry.program.inputs import InputSet
from tapestry.program.interpret import Observer, Values, resolve, run_program, start_values
from tapestry.program.program import Program
from tapestry.suite.carve import initial_state, next_state

#: Every run starts its random generator here, so that random operators, which stay on the source, repeat.
SEED = 0


@dataclass(frozen=True)
class CallReference:
    """One call: the tensors it returns and the state it leaves, by the source and by the oracle."""

    source: tuple[torch.Tensor, ...]
    oracle: tuple[torch.Tensor, ...]
    source_error: ProgramError


Reference = tuple[CallReference, ...]


def widened_tensors(program: Program) -> dict[str, torch.Tensor]:
    """The program's tensors as the oracle takes them, for several calls of reference_for."""
    return {name: to_oracle_dtype(tensor) for name, tensor in program.tensors.items()}


def reference_for(program: Program, inputs: InputSet, wide_tensors: Mapping[str, torch.Tensor]) -> Reference:
    """Run an input set on the source and through the oracle, state carried from call to call in each."""
    state = initial_state(program)
    wide_state = {name: to_oracle_dtype(tensor) for name, tensor in state.items()}
    found: list[CallReference] = []
    for call in inputs.calls:
        bound = program.bind(call.args, call.kwargs)
        values, wide = run_both(program, bound, state, {**wide_tensors, **wide_state})
        state, wide_state = next_state(program, values), next_state(program, wide)
        source, exact = watched(program, values), watched(program, wide)
        found.append(CallReference(source, exact, program_error(source, exact)))
    return tuple(found)


def run_both(
    program: Program,
    bound: Mapping[str, object],
    state: Mapping[str, torch.Tensor],
    wide: Mapping[str, torch.Tensor],
    see_oracle: Observer | None = None,
    see_source: Observer | None = None,
) -> tuple[Values, Values]:
    """The values of one call on the source and by the oracle, random numbers alike; the oracle runs first.

    ``wide`` are the program's tensors and its state as the oracle takes them.
    """
    values = start_values(program, bound, state)
    exact: Values = {Ref(name): tensor for name, tensor in wide.items()}
    exact.update({Ref(name): _widened(value) for name, value in bound.items()})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        run_program(program, exact, compute=_Oracle(program), observe=see_oracle)
        torch.manual_seed(SEED)
        run_program(program, values, observe=see_source)
    return values, exact


def watched(program: Program, values: Mapping[Ref, object]) -> tuple[torch.Tensor, ...]:
    """The tensors that a check compares: outputs in order, then new state."""
    refs = [output.value for output in program.outputs if isinstance(output.value, Ref) and output.spec is not None]
    refs += [state.result for state in program.state]
    return tuple(cast("torch.Tensor", values[ref]) for ref in refs)


def run_watched(
    executable: Executable,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    observe: Callable[[Ref, torch.Tensor], None] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Run once; the tensors that a check compares: outputs in order, then new state. ``observe`` as Executable.run.

    A program that writes its inputs is given copies, so that the next run finds them as they were.
    """
    if any(entry.name.startswith("input:") for entry in executable.program.state):
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.clone(), (args, kwargs))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        leaves = executable.run(args, kwargs, observe)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    bound = executable.program.bind(args, kwargs)
    kept = executable.snapshot()
    written = [entry.name for entry in executable.program.state]
    return (*tensors, *(kept[name] if name in kept else cast("torch.Tensor", bound[name]).clone() for name in written))


def _widened(value: object) -> object:
    return to_oracle_dtype(value) if isinstance(value, torch.Tensor) else value


class _Oracle:
    """Computes one call in float64; what has no oracle (random numbers) as the source does, then widened."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def __call__(self, call: Call, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        try:
            results: Sequence[object] = oracle(call.target, args, kwargs, self._declared(call))
        except NoOracle:
            results = self._as_source(call, args, kwargs)
        return tuple(results) if call.is_tuple else (results[0] if results else None)

    def _declared(self, call: Call) -> torch.dtype | None:
        """The floating dtype that the operands have in the program: values flow in float64 here."""
        for ref in operands(call):
            dtype = self.program.spec(ref).dtype
            if dtype.is_floating_point or dtype.is_complex:
                return dtype
        return None

    def _as_source(self, call: Call, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Sequence[object]:
        given = iter(_tensors_in([*args, *kwargs.values()]))
        narrow: dict[Ref, object] = {}
        for ref, tensor in zip(operands(call), given, strict=True):
            narrow[ref] = tensor.to(self.program.spec(ref).dtype)
        result = call.target(
            *(resolve(value, narrow) for value in call.args),
            **{name: resolve(value, narrow) for name, value in call.kwargs},
        )
        leaves = tuple(cast("Sequence[object]", result)) if call.is_tuple else (result,)
        return tuple(_widened(leaf) for leaf in leaves)


def _tensors_in(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for entry in cast("list[object]", value) for tensor in _tensors_in(entry)]
    return []
