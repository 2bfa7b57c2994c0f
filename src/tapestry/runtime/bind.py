"""Binds a compiled region to a device: its module and constants resident, its workspace allocated, its launches named.

Not here: running it, the buffers of inputs and outputs, and what a placement is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tapestry.errors import FormatError, TapestryError, UnsupportedError, UsageError
from tapestry.runtime.device import Buffer, Call, Command, CopyBuffer, DeviceInfo, Launch, Loaded
from tapestry.runtime.limits import check_bindings, check_buffer_bytes, check_launch_shape
from tapestry.runtime.module import Artifact, Compiled, Scalar
from tapestry.runtime.plan import Place, RegionPlan, buffers_of, plan_region
from tapestry.runtime.resident import Resident

#: The tag under which the launch log counts the calls that hand over constants.
BINDING = "bind"


@dataclass(frozen=True)
class ConstantBytes:
    """A constant's content, converted to its declared storage: ``digest`` names the bytes, ``make`` gives them."""

    digest: str
    make: Callable[[], bytes | memoryview]

    @staticmethod
    def of(data: bytes) -> ConstantBytes:
        """Bytes that are at hand already."""
        return ConstantBytes(hashlib.sha256(data).hexdigest(), lambda: data)


def check_limits(compiled: Compiled, info: DeviceInfo) -> None:
    """UnsupportedError, with the number and the limit, when the device cannot run the region. No device needed."""
    for index, tensor in enumerate(compiled.tensors):
        if tensor.storage not in info.dtypes:
            raise UnsupportedError(
                f"tensor {index} is stored as {tensor.storage}, which {info.name} does not have; "
                f"it has {', '.join(sorted(info.dtypes))}"
            )
        check_buffer_bytes(tensor.nbytes, info.limits)
    for launch in compiled.launches:
        check_launch_shape(launch.kernel, launch.grid, launch.block, info.limits)
        sizes = [compiled.tensors[tensor].nbytes for tensor in buffers_of(launch)]
        check_bindings(launch.kernel, sizes, info.limits)
        for argument in launch.args:
            if isinstance(argument, Scalar) and argument.dtype not in info.dtypes:
                raise UnsupportedError(f"kernel {launch.kernel}: {info.name} has no {argument.dtype} for a scalar")


class BoundRegion:
    """A compiled region on a device. Give its commands to Device.submit; they are in order.

    ``constants`` is called with a position in ``compiled.constants``, once each, here. After a restart of the
    device the next ``commands`` brings module, constants and workspace back. ``close`` releases them.
    """

    def __init__(self, compiled: Compiled, resident: Resident, constants: Callable[[int], ConstantBytes]) -> None:
        check_limits(compiled, resident.device.info)
        self.compiled = compiled
        self.plan: RegionPlan = plan_region(compiled)
        self._resident = resident
        self._module_digest = compiled.module.digest
        self._constants: list[str] = []
        self._workspace: list[Buffer] = []
        self._generation = -1
        self._closed = False
        self._last: dict[object, list[Command]] = {}
        self._constant_inputs = {c.index for c in compiled.constants if c.source == "input"}
        resident.module(compiled.module)
        try:
            for position in range(len(compiled.constants)):
                self._acquire(position, constants(position))
            self._allocate()
            self._hand_over()
        except BaseException:
            self.close()
            raise

    def commands(self, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer], tag: str = "") -> list[Command]:
        """The commands of one run. ``inputs`` by region input: None for a constant or one that isn't read here.

        A kernel's buffer may be larger than its tensor; an artifact's must have its size. An output's buffer may
        be an input's only where that output is that input. Raises UsageError for a missing or too small buffer.
        """
        if self._closed:
            raise UsageError("this bound region was closed")
        key = (self._resident.device.generation, tuple(inputs), tuple(outputs), tag)
        known = self._last.get(key)
        if known is not None:
            return list(known)
        self._check_buffers(inputs, outputs)
        if self._generation != self._resident.device.generation:
            self._allocate()
            self._hand_over()
        commands = self._make_commands(inputs, outputs, tag)
        # Two, since state that stays on the device changes between two buffers.
        self._last = dict([*self._last.items(), (key, commands)][-2:])
        return list(commands)

    def close(self) -> None:
        """Free the workspace, release module and constants. May be called again."""
        if self._closed:
            return
        self._closed = True
        for buffer in self._workspace:
            self._resident.device.free(buffer)
        for digest in self._constants:
            self._resident.release_constant(digest)
        self._resident.release_module(self._module_digest)

    def _acquire(self, position: int, constant: ConstantBytes) -> None:
        declared = self.compiled.tensors[self.compiled.constants[position].tensor].nbytes
        buffer = self._resident.constant(constant.digest, constant.make)
        self._constants.append(constant.digest)
        if buffer.nbytes != declared:
            raise FormatError(f"constant {position} has {buffer.nbytes} bytes, its tensor declares {declared}")

    def _hand_over(self) -> None:
        """Let an artifact that binds its constants do so now, so that what it cannot load is told here.

        A driver would also do so in the first run, which is then given the time of a run, not that of a compiler.
        """
        compiled = self.compiled
        if not (isinstance(compiled.module, Artifact) and compiled.module.binds):
            return
        at = {constant.index: self._constants[position] for position, constant in enumerate(compiled.constants)}
        read = [index for index, tensor in enumerate(compiled.inputs) if tensor != -1 and index in at]
        given = tuple(self._resident.buffer(at[index]) for index in read)
        device = self._resident.device
        device.submit([Call(self._resident.loaded(self._module_digest), given, (), BINDING)])
        device.sync()

    def _allocate(self) -> None:
        """Workspace of the device's current generation; what an earlier one had is gone with it."""
        device = self._resident.device
        generation, self._workspace = device.generation, []
        try:
            for nbytes in self.plan.slots:
                self._workspace.append(device.alloc(nbytes))
        except TapestryError:
            for buffer in self._workspace:
                device.free(buffer)
            self._workspace = []
            raise
        self._generation = generation

    def _check_buffers(self, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> None:
        compiled = self.compiled
        if len(inputs) != len(compiled.inputs) or len(outputs) != len(compiled.outputs):
            raise UsageError(
                f"expected {len(compiled.inputs)} inputs and {len(compiled.outputs)} outputs, "
                f"got {len(inputs)} and {len(outputs)}"
            )
        check = _check_exact_size if isinstance(compiled.module, Artifact) else _check_size
        for index, (tensor, buffer) in enumerate(zip(compiled.inputs, inputs, strict=True)):
            if tensor == -1 or index in self._constant_inputs:
                continue
            check(f"input {index}", buffer, compiled.tensors[tensor].nbytes)
        for index, (tensor, buffer) in enumerate(zip(compiled.outputs, outputs, strict=True)):
            check(f"output {index}", buffer, compiled.tensors[tensor].nbytes)
        self._check_sharing(inputs, outputs)

    def _check_sharing(self, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> None:
        if len({buffer.id for buffer in outputs}) != len(outputs):
            raise UsageError("two outputs were given one buffer")
        aliases = {(index, place.index) for place, index in self.plan.copies if place.kind == "input"}
        aliases |= set(self.compiled.updates)
        by_id = {buffer.id: index for index, buffer in enumerate(outputs)}
        for index, buffer in enumerate(inputs):
            if buffer is None or buffer.id not in by_id:
                continue
            if (by_id[buffer.id], index) not in aliases:
                raise UsageError(f"output {by_id[buffer.id]} was given the buffer of input {index}, which it is not")

    def _make_commands(self, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer], tag: str) -> list[Command]:
        loaded = self._resident.loaded(self._module_digest)
        constants = [self._resident.buffer(digest) for digest in self._constants]

        def at(place: Place | None) -> Buffer:
            assert place is not None, "plan_region places every tensor that a command uses"
            if place.kind == "workspace":
                return self._workspace[place.index]
            if place.kind == "constant":
                return constants[place.index]
            buffer = outputs[place.index] if place.kind == "output" else inputs[place.index]
            assert buffer is not None, "_check_buffers has seen every input that is read"
            return buffer

        commands: list[Command]
        if isinstance(self.compiled.module, Artifact):
            commands = [self._call(loaded, at, tag)]
        else:
            commands = [*self._first(inputs, outputs), *self._launches(loaded, at, tag)]
        for place, index in self.plan.copies:
            source, nbytes = at(place), self.compiled.tensors[self.compiled.outputs[index]].nbytes
            if source.id != outputs[index].id:
                commands.append(CopyBuffer(source, outputs[index], nbytes))
        return commands

    def _first(self, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> list[Command]:
        """Copies of the inputs that outputs begin as, where these have memory of their own."""
        found: list[Command] = []
        for output, given in self.compiled.updates:
            before = inputs[given]
            if before is not None and before.id != outputs[output].id:
                nbytes = self.compiled.tensors[self.compiled.outputs[output]].nbytes
                found.append(CopyBuffer(before, outputs[output], nbytes))
        return found

    def _launches(self, loaded: Loaded, at: Callable[[Place | None], Buffer], tag: str) -> list[Launch]:
        places = self.plan.places
        return [
            Launch(
                loaded,
                launch.kernel,
                tuple(arg if isinstance(arg, Scalar) else at(places[arg]) for arg in launch.args),
                launch.grid,
                launch.block,
                tag,
            )
            for launch in self.compiled.launches
        ]

    def _call(self, loaded: Loaded, at: Callable[[Place | None], Buffer], tag: str) -> Call:
        """One call: inputs that are read, in order; outputs that are not copies of something else, in order."""
        places = self.plan.places
        inputs = tuple(at(places[tensor]) for tensor in self.compiled.inputs if tensor != -1)
        copied = {index for _, index in self.plan.copies}
        written = [tensor for index, tensor in enumerate(self.compiled.outputs) if index not in copied]
        return Call(loaded, inputs, tuple(at(places[tensor]) for tensor in written), tag)


def _check_size(what: str, buffer: Buffer | None, nbytes: int) -> None:
    if buffer is None:
        raise UsageError(f"{what} was given no buffer; {nbytes} bytes are expected")
    if buffer.nbytes < nbytes:
        raise UsageError(f"{what} needs {nbytes} bytes, its buffer has {buffer.nbytes}")


def _check_exact_size(what: str, buffer: Buffer | None, nbytes: int) -> None:
    """A loader's program takes a view's length for the tensor's."""
    if buffer is None or buffer.nbytes != nbytes:
        raise UsageError(f"{what} needs a buffer of exactly {nbytes} bytes, got {buffer.nbytes if buffer else None}")
