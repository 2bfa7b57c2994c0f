"""The two ends of a call: are the arguments those that were captured, and the result as eager would give it.

Not here: what happens in between (run).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

import torch

from tapestry.backends.transfer import copied, with_layout
from tapestry.placement.constants import ProgramConstants
from tapestry.program.graph import Ref
from tapestry.program.interpret import Values
from tapestry.program.program import Alias, Program, ProgramOutput


def check_arguments(program: Program, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
    """The caller's leaves by input name. InputError for another structure, shape, dtype, device or constant."""
    return program.bind(args, kwargs)


def collect(
    program: Program,
    values: Values,
    bound: Mapping[str, object],
    state: dict[str, torch.Tensor],
    constants: ProgramConstants,
    staying: Collection[str] = (),
) -> list[object]:
    """The leaves of the result; writes the new state and the caller's mutated inputs on the way.

    What eager shares with an input, a parameter, a buffer or another output is shared here too; everything else
    is the caller's own memory. State in ``staying`` is on a device, and left there.
    """
    write_state(program, values, bound, state, staying)
    taken = _storages([*bound.values(), *program.tensors.values(), *state.values(), *constants.folded.values()])
    leaves: list[object] = []
    for output in program.outputs:
        leaves.append(_leaf(program, output, values, bound, state, constants, leaves, taken))
    return leaves


def write_state(
    program: Program,
    values: Values,
    bound: Mapping[str, object],
    state: Mapping[str, torch.Tensor],
    staying: Collection[str] = (),
) -> None:
    """Copy written buffers into the state and written inputs into the caller's tensors, in place as eager does."""
    entries = [entry for entry in program.state if entry.name not in staying]
    targets = {
        entry.name: state[entry.name] if entry.name in state else cast("torch.Tensor", bound[entry.name])
        for entry in entries
    }
    written = _storages(list(targets.values()))
    fresh = {
        entry.name: _apart(cast("torch.Tensor", values[entry.result]), targets[entry.name], written)
        for entry in entries
    }
    for name, tensor in fresh.items():
        if not _same_memory(targets[name], tensor):
            targets[name].copy_(tensor)


def _apart(tensor: torch.Tensor, target: torch.Tensor, written: set[int]) -> torch.Tensor:
    """The new value, copied when it lies in memory that is about to be written (two buffers that change places)."""
    if _same_memory(target, tensor) or tensor.untyped_storage().data_ptr() not in written:
        return tensor
    return tensor.clone()


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.stride() == other.stride() and one.shape == other.shape


def _storages(values: list[object]) -> set[int]:
    return {value.untyped_storage().data_ptr() for value in values if isinstance(value, torch.Tensor)}


def _leaf(
    program: Program,
    output: ProgramOutput,
    values: Values,
    bound: Mapping[str, object],
    state: Mapping[str, torch.Tensor],
    constants: ProgramConstants,
    leaves: list[object],
    taken: set[int],
) -> object:
    if not isinstance(output.value, Ref) or output.spec is None:
        return bound[output.value.name] if isinstance(output.value, Ref) else output.value
    if output.alias is not None:
        shared = _alias(program, output.alias, bound, state, leaves)
        if shared is not None:
            return shared
    value = values.get(output.value)
    tensor = cast("torch.Tensor", value) if value is not None else constants.tensor(output.value)
    tensor = with_layout(tensor.detach(), output.spec)
    storage = tensor.untyped_storage().data_ptr()
    if storage in taken and tensor.numel():
        tensor = copied(tensor, output.spec)
        storage = tensor.untyped_storage().data_ptr()
    taken.add(storage)
    return tensor


def _alias(
    program: Program,
    alias: Alias,
    bound: Mapping[str, object],
    state: Mapping[str, torch.Tensor],
    leaves: list[object],
) -> torch.Tensor | None:
    """The shared tensor, or None when the caller's memory is laid out differently than at capture."""
    base, captured = _base(program, alias, bound, state, leaves)
    if not isinstance(base, torch.Tensor):
        return None
    same = alias.shape == tuple(base.shape) and alias.stride == tuple(base.stride()) and alias.offset == 0
    if same:
        return base
    if captured is not None and tuple(base.stride()) != captured:
        return None
    return base.detach().as_strided(alias.shape, alias.stride, base.storage_offset() + alias.offset)


def _base(
    program: Program,
    alias: Alias,
    bound: Mapping[str, object],
    state: Mapping[str, torch.Tensor],
    leaves: list[object],
) -> tuple[object, tuple[int, ...] | None]:
    """What the output shares memory with, and the strides that it had at capture (None: those it has now)."""
    if isinstance(alias.base, int):
        return leaves[alias.base], None
    name = alias.base.name
    if name in state:
        return state[name], None
    if name in program.tensors:
        return program.tensors[name], None
    return bound[name], program.spec(Ref(name)).stride
