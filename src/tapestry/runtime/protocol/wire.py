"""Commands as they travel: handles become their ids. The serving side turns them back (session.py)."""

from __future__ import annotations

from tapestry.runtime.device import Buffer, Call, Command, Launch
from tapestry.runtime.protocol import messages as m


def to_wire(command: Command) -> m.WireCommand:
    """The command with ids for handles."""
    if isinstance(command, Launch):
        args = tuple(
            argument.id if isinstance(argument, Buffer) else m.WireScalar(argument.dtype, argument.value)
            for argument in command.args
        )
        return m.WireLaunch(command.loaded.id, command.kernel, args, command.grid, command.block, command.tag)
    if isinstance(command, Call):
        inputs = tuple(buffer.id for buffer in command.inputs)
        return m.WireCall(command.loaded.id, inputs, tuple(buffer.id for buffer in command.outputs), command.tag)
    offsets = (command.source_offset, command.target_offset)
    return m.WireCopy(command.source.id, command.target.id, command.nbytes, *offsets)
