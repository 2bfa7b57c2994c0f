"""One run of an executable: which values are where, what travels, and the commands that wait to be submitted.

Not here: the caller's arguments and results (results).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import torch

from tapestry.backends.transfer import from_storage, to_storage
from tapestry.errors import DeviceError, DeviceLostError
from tapestry.placement.constants import ProgramConstants
from tapestry.placement.layout import BoundStep, Layout, SourceCalls
from tapestry.placement.plan import DeviceStep, HostStep
from tapestry.placement.state import KeptState
from tapestry.program.graph import Ref
from tapestry.program.interpret import Values, run_calls, run_program
from tapestry.program.program import Program
from tapestry.runtime.device import Buffer, Command


@dataclass
class RunLog:
    """What a run did, seen from the host: nodes run on the source, values moved up and down."""

    source_nodes: Counter[str] = field(default_factory=Counter[str])
    uploads: int = 0
    downloads: int = 0
    upload_bytes: int = 0
    download_bytes: int = 0

    @property
    def transfers(self) -> int:
        """Values moved between the source and devices."""
        return self.uploads + self.downloads


#: Is given a value and the tensor that it is.
Observe = Callable[[Ref, torch.Tensor], None]


class Run:
    """Runs the steps of a layout on ``values``: inputs and state at the start, also the results at the end.

    ``on_device`` is the state that is on its device from the call before, and not in ``values``. New state that stays
    there does not get into them either.
    """

    def __init__(
        self,
        layout: Layout,
        constants: ProgramConstants,
        values: Values,
        on_device: Iterable[KeptState] = (),
        observe: Observe | None = None,
    ) -> None:
        self.layout = layout
        self.constants = constants
        self.values = values
        self.log = RunLog()
        self._on_device: dict[Ref, list[int]] = {Ref(entry.name): [entry.where] for entry in on_device}
        self._observe = observe
        self._waiting: dict[int, list[Command]] = {}
        self._unchecked: dict[str, DeviceStep] = {}
        self._stayed = tuple(self._on_device)
        self._start = dict(values)

    def all_steps(self) -> None:
        """Run everything; afterwards every result of the program is in ``values``.

        Where eager would raise for these inputs, so does this; a device's own error is raised only where eager is fine.
        """
        try:
            self._run()
        except DeviceLostError:
            raise
        except DeviceError as error:
            self._fetch_state()
            raise_as_eager(self.layout.program, self._start, error)
            raise

    def _fetch_state(self) -> None:
        """Let the start be whole, as far as the devices still answer."""
        for ref in self._stayed:
            with contextlib.suppress(DeviceError):
                self._start[ref] = self._to_host(ref)

    def _run(self) -> None:
        for entry in self.layout.steps:
            if isinstance(entry, BoundStep):
                self._on_region(entry)
                self._seen(entry.step.region.outputs)
            elif isinstance(entry, HostStep):
                found = entry.run(self._to_host)
                self.values.update(found)
                self._seen(found)
            else:
                self._on_source(entry)
        for ref in sorted(self.layout.to_host):
            self._to_host(ref)
        for where in self._waiting:
            self._submit(where)
        for device in self.layout.devices:
            device.sync()
        for step in self._unchecked.values():
            for check in step.checks:
                check.run(self._to_host(check.index), self.layout.program)

    def _seen(self, refs: Iterable[Ref]) -> None:
        if self._observe is not None:
            for ref in refs:
                self._observe(ref, self._to_host(ref))

    def _on_source(self, entry: SourceCalls) -> None:
        for ref in entry.step.reads:
            self._to_host(ref)
        for ref in entry.step.constants:
            self.values.setdefault(ref, self.constants.tensor(ref))
        run_calls(entry.calls, self.values, entry.keep)
        self.log.source_nodes.update(entry.step.nodes)

    def _on_region(self, entry: BoundStep) -> None:
        for check in entry.step.checks:
            known = self.values.get(check.index)
            if isinstance(known, torch.Tensor):
                check.run(known, self.layout.program)
            else:
                self._unchecked[entry.step.tag] = entry.step
        inputs = [self._to_device(ref, entry) for ref in entry.step.region.inputs]
        outputs = [self.layout.buffer(ref, entry.where) for ref in entry.step.region.outputs]
        self._waiting.setdefault(entry.where, []).extend(entry.bound.commands(inputs, outputs, entry.step.tag))
        for ref in entry.step.region.outputs:
            self._on_device.setdefault(ref, []).append(entry.where)

    def _to_device(self, ref: Ref, entry: BoundStep) -> Buffer | None:
        """The buffer of a region's input on its device, filled; None for what the region does not read there."""
        decl = self.layout.decls.get((ref, entry.where))
        if decl is None:
            return None
        buffer = self.layout.buffer(ref, entry.where)
        if entry.where in self._on_device.get(ref, ()):
            return buffer
        data = to_storage(self._to_host(ref), decl, ref.name)
        # A buffer is shared by values that never meet in program order, which is the order of submission.
        self._submit(entry.where)
        self.layout.device_of[entry.where].write(buffer, data)
        self.log.uploads += 1
        self.log.upload_bytes += len(data)
        self._on_device.setdefault(ref, []).append(entry.where)
        return buffer

    def _to_host(self, ref: Ref) -> torch.Tensor:
        known = self.values.get(ref)
        if known is not None:
            return cast("torch.Tensor", known)
        if self.layout.program.is_constant(ref):
            return self.constants.tensor(ref)
        where = self._on_device[ref][0]
        self._submit(where)
        decl = self.layout.decls[ref, where]
        data = self.layout.device_of[where].read(self.layout.buffer(ref, where), decl.nbytes)
        tensor = from_storage(data, decl, self.layout.program.spec(ref))
        self.values[ref] = tensor
        self.log.downloads += 1
        self.log.download_bytes += decl.nbytes
        return tensor

    def _submit(self, where: int) -> None:
        commands = self._waiting.get(where)
        if commands:
            self.layout.device_of[where].submit(commands)
            self._waiting[where] = []


def raise_as_eager(program: Program, start: Mapping[Ref, object], error: DeviceError) -> None:
    """After a failed run: raise what eager raises for the same inputs and state, if it does.

    The program runs on the source once more, for its exception only; its results are thrown away.
    """
    values: Values = {Ref(name): tensor for name, tensor in program.tensors.items()}
    values.update(start)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            run_program(program, values)
        except Exception as raised:
            raise raised from error
