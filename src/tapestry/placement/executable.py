"""Executable: a built placement that is called like the model it came from.

It gives back what eager gives: structure, dtype, shape, strides, shared memory, state. Not here: building one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.utils import _pytree as pytree

from tapestry.backends.transfer import from_storage
from tapestry.errors import DeviceError, UsageError
from tapestry.placement.constants import ProgramConstants
from tapestry.placement.layout import Layout
from tapestry.placement.placement import Placement
from tapestry.placement.results import check_arguments, collect
from tapestry.placement.run import Observe, Run, RunLog
from tapestry.placement.state import KeptState
from tapestry.program.graph import Ref
from tapestry.program.interpret import Values
from tapestry.program.program import Program


class Executable:
    """Call it as the model. Not thread-safe; ``close`` frees what it holds on devices (also a context manager).

    Raises InputError for arguments of another structure, shape or dtype than captured, what eager raises for an
    index out of range, and DeviceError when a device fails. After DeviceLostError and a restart of the device it
    can be called again; state that was on it is lost, and the call says so until ``reset``.
    """

    def __init__(self, program: Program, placement: Placement, layout: Layout, constants: ProgramConstants) -> None:
        self.program = program
        self.placement = placement
        self.layout = layout
        self.constants = constants
        #: What the last run did, seen from the host.
        self.log = RunLog()
        self._state: dict[str, torch.Tensor] = {}
        #: State whose value is on its device alone.
        self._away: dict[str, KeptState] = {}
        self._closed = False
        self.reset()

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The program's own buffers that it writes, by value name, as the last call left them.

        What stays on a device is read from there, and the next call reads it from here again: the tensors may be
        written to. DeviceError where it is gone with its device.
        """
        for entry in tuple(self._away.values()):
            self._state[entry.name].copy_(self._fetched(entry))
            del self._away[entry.name]
        return self._state

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copies of what ``state`` has; what stays on a device is left there. Errors as ``state``."""
        away = self._away
        return {
            name: self._fetched(away[name]) if name in away else tensor.clone() for name, tensor in self._state.items()
        }

    def _fetched(self, entry: KeptState) -> torch.Tensor:
        self._check_there(entry)
        device, buffers = self.layout.device_of[entry.where], self.layout.states[entry.where]
        data = device.read(buffers.old(entry.name), entry.decl.nbytes)
        return from_storage(data, entry.decl, self.program.spec(entry.result))

    def _check_there(self, entry: KeptState) -> None:
        device, buffers = self.layout.device_of[entry.where], self.layout.states[entry.where]
        if buffers.generation != device.generation:
            raise DeviceError(
                f"{entry.name} was on {device.info.name}, which was restarted since; reset() begins with the state at "
                "capture"
            )

    def reset(self) -> None:
        """Put the state back to what it was at capture."""
        names = sorted(self.program.state_names & self.program.tensors.keys())
        self._state = {name: self.program.tensors[name].clone() for name in names}
        self._away = {}

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run once; the result is structured as the model's."""
        return pytree.tree_unflatten(self.run(args, kwargs), self.program.out_spec)

    def run(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], observe: Observe | None = None
    ) -> list[object]:
        """Run once; the leaves of the result, in order. ``observe`` is given every value that leaves a region."""
        if self._closed:
            raise UsageError("this executable was closed; build the placement again")
        bound = check_arguments(self.program, args, kwargs)
        for entry in self._away.values():
            self._check_there(entry)
        values: Values = {Ref(name): value for name, value in bound.items()}
        values.update({Ref(name): tensor for name, tensor in self._state.items() if name not in self._away})
        run = Run(self.layout, self.constants, values, self._away.values(), observe)
        self.log = run.log
        staying = {entry.name: entry for entry in self.layout.kept}
        with torch.no_grad():
            run.all_steps()
            for buffers in self.layout.states.values():
                buffers.flip()
            self._away = staying
            return collect(self.program, values, bound, self._state, self.constants, staying)

    def close(self) -> None:
        """Free everything this executable holds on devices. May be called again."""
        self._closed = True
        self.layout.close()

    def __enter__(self) -> Executable:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
