"""How much work a node is: floating-point operations and bytes, from shapes alone.

The usual counts: 2 per multiply-add, none for picking elements, 1 per element elsewhere. Not here: measured times.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tapestry.program import traits
from tapestry.program.graph import Call, Ref, TensorSpec, operands
from tapestry.program.program import Program

_PRODUCTS = {"mm", "bmm", "matmul", "linear", "addmm", "baddbmm", "mv", "dot", "_int_mm"}
#: Operators that read of one argument only the elements that they give, and which argument that is.
_PICKS = {"embedding": "weight", "index_select": "self", "gather": "self", "index": "self", "take": "self"}
_CONVOLUTIONS = {"convolution"} | {f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)}


@dataclass(frozen=True)
class Work:
    """Floating-point operations, and bytes read and written when every value moves once."""

    flops: int
    nbytes: int


def work_of(program: Program, node_id: str) -> Work:
    """The work of one node; a pure view moves nothing."""
    call = program.by_id[node_id].call
    if traits.is_view(call.target):
        return Work(0, 0)
    picks = {ref: picked(program, node_id, ref) for ref in operands(call)}
    read = sum(program.spec(ref).nbytes if nbytes is None else nbytes for ref, nbytes in picks.items())
    return Work(_flops(program, call), read + sum(spec.nbytes for spec in call.outputs if spec is not None))


def picked(program: Program, node_id: str, ref: Ref) -> int | None:
    """The bytes of a value that a node reads when it picks elements from it, as of a table; None when it reads all."""
    call = program.by_id[node_id].call
    name = _PICKS.get(traits.base_name(call.target))
    if name is None or traits.argument(call, name) != ref:
        return None
    return min(program.spec(ref).nbytes, sum(spec.nbytes for spec in call.outputs if spec is not None))


def _flops(program: Program, call: Call) -> int:
    base = traits.base_name(call.target)
    elements = sum(spec.numel for spec in call.outputs if spec is not None)
    if base == "einsum":
        return _einsum(program, call, elements)
    if base in _PRODUCTS:
        return 2 * elements * _inner(program, call)
    if base in _CONVOLUTIONS:
        return _convolution(program, call, elements)
    if "scaled_dot_product" in base:
        query, key, value = _specs(program, call)[:3]
        return 2 * prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    if base in _PICKS:
        return 0
    floating = any(spec is not None and spec.dtype.is_floating_point for spec in call.outputs)
    # A reduction works on every element of its input, any other operator on those of its result.
    return max([elements, *(spec.numel for spec in _specs(program, call))]) if floating else 0


def _einsum(program: Program, call: Call, elements: int) -> int:
    """One multiply-add for every combination of indices; what an ellipsis stands for is counted in the result."""
    equation = str(traits.argument(call, "equation")).replace(" ", "")
    terms, _, result = equation.replace("...", "").partition("->")
    sizes: dict[str, int] = {}
    for term, spec in zip(terms.split(","), _specs(program, call), strict=True):
        sizes.update(zip(reversed(term), reversed(spec.shape), strict=False))
    summed = set(sizes) - set(result) if "->" in equation else {name for name in sizes if terms.count(name) > 1}
    return 2 * elements * prod(sizes[name] for name in summed)


def _inner(program: Program, call: Call) -> int:
    """The length of the sums: the last dimension of the left factor."""
    specs = _specs(program, call)
    left = specs[1] if traits.base_name(call.target) in {"addmm", "baddbmm"} else specs[0]
    return left.shape[-1] if left.shape else 1


def _convolution(program: Program, call: Call, elements: int) -> int:
    given, weight = _specs(program, call)[:2]
    transposed = "transpose" in traits.base_name(call.target) or _flag(call, "transposed")
    per_output = prod(weight.shape[1:])
    return 2 * prod(given.shape) * per_output if transposed else 2 * elements * per_output


def _flag(call: Call, name: str) -> bool:
    try:
        return traits.argument(call, name) is True
    except KeyError:
        return False


def _specs(program: Program, call: Call) -> list[TensorSpec]:
    return [program.spec(ref) for ref in operands(call)]
