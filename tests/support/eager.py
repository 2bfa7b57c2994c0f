"""A program beside the model it was captured from: the same inputs through both, compared bit for bit.

Not here: devices and placements.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tapestry.program.capture import capture
from tapestry.program.graph import Ref, TensorSpec
from tapestry.program.inputs import CallArgs
from tapestry.program.interpret import run_program, start_values
from tapestry.program.program import Program
from tapestry.suite.carve import initial_state, next_state

Model = torch.nn.Module | Callable[..., object]


def same_bits(one: object, other: object) -> bool:
    """Equal bit for bit (strides do not count); constants by type and value, NaN like NaN."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and repr(one) == repr(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    flat = [entry.detach().resolve_conj().resolve_neg().contiguous().reshape(-1) for entry in (one, other)]
    return one.numel() == 0 or torch.equal(flat[0].view(torch.uint8), flat[1].view(torch.uint8))


def copied(tree: Any) -> Any:
    """The same structure with every tensor cloned by itself."""
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def assert_like_eager(model: Model, calls: Sequence[CallArgs | tuple[object, ...]]) -> Program:
    """Capture with the first call's arguments, run all calls, state carried over, and compare everything with eager.

    Results (structure, bits, strides), the specs of every node, mutated inputs and written state.
    """
    listed = [call if isinstance(call, CallArgs) else CallArgs(call) for call in calls]
    eager = copy.deepcopy(model)
    first = copied((listed[0].args, dict(listed[0].kwargs)))
    program = capture(model, first[0], first[1])
    state = initial_state(program)
    for call in listed:
        args, kwargs = copied((call.args, dict(call.kwargs)))
        given = copied((call.args, dict(call.kwargs)))
        with torch.no_grad():
            want = eager(*args, **kwargs)
        bound = program.bind(*given)
        values = run_program(program, start_values(program, bound, state), observe=_check_specs)
        _compare_results(program, want, values)
        written = {entry.name: values[entry.result] for entry in program.state}
        for entry, leaf in zip(program.inputs, pytree.tree_flatten((args, kwargs))[0], strict=True):
            assert same_bits(written.get(entry.name, bound[entry.name]), leaf), f"{entry.name} after the call"
        state = next_state(program, values)
        if isinstance(eager, torch.nn.Module):
            for name, tensor in eager.state_dict(keep_vars=True).items():
                for value_name in (f"buffer:{name}", f"param:{name}"):
                    held = state.get(value_name, program.tensors.get(value_name))
                    assert held is None or same_bits(held, tensor), f"{value_name} after the call"
    return program


def _check_specs(call: Any, args: object, kwargs: object, results: tuple[object, ...]) -> None:
    for spec, value in zip(call.outputs, results, strict=False):
        if isinstance(value, torch.Tensor) and spec is not None:
            got = TensorSpec.of(value)
            assert (got.shape, got.dtype) == (spec.shape, spec.dtype), call.name
            assert got.stride == spec.stride or value.numel() < 2, call.name


def _compare_results(program: Program, want: object, values: dict[Ref, object]) -> None:
    leaves, structure = pytree.tree_flatten_with_path(want)
    assert structure == program.out_spec
    assert len(leaves) == len(program.outputs)
    for (path, leaf), output in zip(leaves, program.outputs, strict=True):
        where = f"result{pytree.keystr(path)}"
        got = values[output.value] if isinstance(output.value, Ref) else output.value
        assert same_bits(got, leaf), f"{where}: expected {leaf}, got {got}"
        if isinstance(leaf, torch.Tensor) and leaf.numel() > 1:
            assert output.spec is not None
            assert output.spec.stride == tuple(leaf.stride()), f"strides of {where}"
