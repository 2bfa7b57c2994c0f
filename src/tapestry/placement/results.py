"""The two ends of a call: are the arguments those that were captured, and the result as eager would give it.

Not here: what happens in between (run).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch

from tapestry.backends.transfer import with_layout
from tapestry.errors import InputError, UsageError
from tapestry.placement.constants import ProgramConstants
from tapestry.program.graph import Ref
from tapestry.program.interpret import Values
from tapestry.program.program import Alias, Program, ProgramInput, ProgramOutput


def check_arguments(program: Program, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
    """The caller's leaves by input name. InputError for another structure, shape, dtype, device or constant."""
    try:
        bound = program.bind(args, kwargs)
    except UsageError as error:
        raise InputError(str(error)) from error
    for entry in program.inputs:
        _check_leaf(entry, bound[entry.name])
    return bound


def _check_leaf(entry: ProgramInput, leaf: object) -> None:
    if entry.spec is None:
        same = type(leaf) is type(entry.value) and (
            leaf == entry.value or (leaf != leaf and entry.value != entry.value)
        )
        if not same:
            raise InputError(
                f"argument {entry.path}: the program was captured for the constant {entry.value!r}, got {leaf!r}; "
                "capture it again for another one"
            )
        return
    if not isinstance(leaf, torch.Tensor):
        raise InputError(f"argument {entry.path}: expected a tensor, got {type(leaf).__name__}")
    if tuple(leaf.shape) != entry.spec.shape or leaf.dtype != entry.spec.dtype:
        raise InputError(
            f"argument {entry.path}: expected {entry.spec.dtype} {list(entry.spec.shape)}, "
            f"got {leaf.dtype} {list(leaf.shape)}; capture the model again for other shapes"
        )
    if leaf.device.type != "cpu" or leaf.layout != torch.strided:
        raise InputError(
            f"argument {entry.path}: expected a dense tensor on the CPU, got {leaf.layout} on {leaf.device}"
        )


def collect(
    program: Program,
    values: Values,
    bound: Mapping[str, object],
    state: dict[str, torch.Tensor],
    constants: ProgramConstants,
) -> list[object]:
    """The leaves of the result; writes the new state and the caller's mutated inputs on the way.

    What eager shares with an input, a parameter, a buffer or another output is shared here too; everything else
    is the caller's own memory.
    """
    write_state(program, values, bound, state)
    taken = _storages([*bound.values(), *program.tensors.values(), *state.values(), *constants.folded.values()])
    leaves: list[object] = []
    for output in program.outputs:
        leaves.append(_leaf(program, output, values, bound, state, constants, leaves, taken))
    return leaves


def write_state(
    program: Program, values: Values, bound: Mapping[str, object], state: Mapping[str, torch.Tensor]
) -> None:
    """Copy written buffers into the state and written inputs into the caller's tensors, in place as eager does."""
    fresh = {entry.name: cast("torch.Tensor", values[entry.result]) for entry in program.state}
    for name, tensor in fresh.items():
        target = state[name] if name in state else cast("torch.Tensor", bound[name])
        if target.data_ptr() != tensor.data_ptr() or target.stride() != tensor.stride():
            target.copy_(tensor.clone() if _shares(target, tensor) else tensor)


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


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
        tensor = tensor.clone(memory_format=torch.preserve_format)
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
