"""Executable: a built placement that is called like the model it came from.

It gives back what eager gives: structure, dtype, shape, strides, shared memory, state. Not here: building one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.utils import _pytree as pytree

from tapestry.errors import UsageError
from tapestry.placement.constants import ProgramConstants
from tapestry.placement.layout import Layout
from tapestry.placement.placement import Placement
from tapestry.placement.results import check_arguments, collect
from tapestry.placement.run import Run, RunLog
from tapestry.program.graph import Ref
from tapestry.program.interpret import Values
from tapestry.program.program import Program


class Executable:
    """Call it as the model. Not thread-safe; ``close`` frees what it holds on devices (also a context manager).

    Raises InputError for arguments of another structure, shape or dtype than captured, what eager raises for an
    index out of range, and DeviceError when a device fails. After DeviceLostError and a restart of the device it
    can be called again.
    """

    def __init__(self, program: Program, placement: Placement, layout: Layout, constants: ProgramConstants) -> None:
        self.program = program
        self.placement = placement
        self.layout = layout
        self.constants = constants
        #: What the last run did, seen from the host.
        self.log = RunLog()
        #: The program's own buffers that it writes, by value name.
        self.state: dict[str, torch.Tensor] = {}
        self._closed = False
        self.reset()

    def reset(self) -> None:
        """Put the state back to what it was at capture."""
        names = sorted(self.program.state_names & self.program.tensors.keys())
        self.state = {name: self.program.tensors[name].clone() for name in names}

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run once; the result is structured as the model's."""
        return pytree.tree_unflatten(self.run(args, kwargs), self.program.out_spec)

    def run(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        """Run once; the leaves of the result, in order."""
        if self._closed:
            raise UsageError("this executable was closed; build the placement again")
        bound = check_arguments(self.program, args, kwargs)
        values: Values = {Ref(name): value for name, value in bound.items()}
        values.update({Ref(name): tensor for name, tensor in self.state.items()})
        run = Run(self.layout, self.constants, values)
        self.log = run.log
        with torch.no_grad():
            run.all_steps()
            return collect(self.program, values, bound, self.state, self.constants)

    def close(self) -> None:
        """Free everything this executable holds on devices. May be called again."""
        self._closed = True
        self.layout.close()

    def __enter__(self) -> Executable:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
