"""Trying a call on eager: whether it runs, gives the same twice, or is random. And copies of calls.

Not here: where calls come from (samples, siblings, proposals), and which of them are kept (choice).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._ops import OpOverload

from tapestry.numerics.arguments import map_leaves, names, operator_name, tensors_in
from tapestry.numerics.float64 import is_random
from tapestry.suite.schema.opinfo import seeded

#: A call with more elements than this in one tensor, argument or result, is no small test.
MOST_ELEMENTS = 1 << 18

DRAWS = "draws random numbers"
UNWRITTEN = "returns memory that nothing wrote"


@dataclass(frozen=True)
class SchemaCall:
    """One call of an overload that eager runs.

    ``target`` is the overload as torch.export gives it before ``run_decompositions``; ``args`` and ``kwargs`` hold
    real CPU tensors and plain values; run an in-place overload on copies. ``source`` says where the arguments are
    from. ``not_repeatable`` is empty where two runs agree bit for bit, else why they need not.
    """

    target: OpOverload
    args: tuple[object, ...]
    kwargs: dict[str, object]
    source: str
    not_repeatable: str = ""


def copy_of(tensor: Tensor) -> Tensor:
    """A copy with the same strides, detached, over storage of its own that is no longer than the tensor reaches."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_contiguous() or tensor.numel() == 0:
        return tensor.clone()
    return tensor.as_strided((_span(tensor),), (1,)).clone().as_strided(tensor.shape, tensor.stride())


def copies(values: object, copy: Callable[[Tensor], Tensor] = copy_of) -> object:
    """The same nesting with every tensor copied, strides kept; a tensor that occurs twice stays one tensor."""
    done: dict[int, Tensor] = {}

    def copied(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in done:
            done[id(leaf)] = copy(leaf)
        return done[id(leaf)]

    return map_leaves(copied, values)


def plain(values: object) -> bool:
    """Whether all tensors are dense ones of the CPU, and everything else can be written down in a stored call."""
    found: list[bool] = []

    def look(leaf: object) -> object:
        found.append(_plain_tensor(leaf) if isinstance(leaf, Tensor) else isinstance(leaf, _VALUES))
        return leaf

    map_leaves(look, values)
    return all(found)


_VALUES = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _plain_tensor(tensor: Tensor) -> bool:
    dense = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    return dense and type(tensor) in (Tensor, torch.nn.Parameter) and tensor.numel() <= MOST_ELEMENTS


def outcome(target: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
    """None for a call that eager refuses, that gives something else the second time, or that reaches beyond its
    tensors (some kernels do not check the size of a bias, say); else SchemaCall's ``not_repeatable``.
    """
    if not plain([args, list(kwargs.values())]):
        return None
    try:
        first = _run(target, args, kwargs, _GUARDS[0])
        reason = _not_repeatable(target, args, kwargs)
        if not _small(first):
            return None
        if reason != UNWRITTEN and not _alike(first, _run(target, args, kwargs, _GUARDS[1])):
            return None
    except Exception:
        return None
    return reason


def outcome_of_guess(target: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
    """As ``outcome``, for arguments that nobody vouches for.

    Kernels do not check everything (batch_norm takes a weight of any shape). Where torch has the operator's definition
    in simpler ones, that must take the arguments too, and give results of the same shapes and dtypes.
    """
    reason = outcome(target, args, kwargs)
    definition = core_aten_decompositions().get(target) or decomposition_table.get(target)
    if reason is None or definition is None or target._schema.is_mutable:
        return reason
    try:
        with torch.no_grad(), seeded():
            by_definition = cast("Callable[..., object]", definition)(*args, **kwargs)
            by_kernel = cast("Callable[..., object]", target)(*args, **kwargs)
    except Exception:
        return None
    same = [_described(by_definition), _described(by_kernel)]
    return reason if same[0] == same[1] else None


def _described(result: object) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in tensors_in(result)]


#: What lies before and behind every tensor while it is tried, in the first run and in the second: a kernel that reads
#: there gives different results. As bytes: a small number, and one that is huge in each dtype, or NaN.
_GUARDS = (0x01, 0x7F)
_GUARD_BYTES = 4096
#: Operators that see how a tensor lies in its storage: it is what they are for, and between guards it lies otherwise.
_SEE_STORAGE = names(
    "as_strided as_strided_copy as_strided_scatter detach resize resize_as set storage_offset sym_storage_offset"
)


def _run(target: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object], guard: int) -> list[object]:
    """Results, and the written arguments as they are afterwards. ValueError when the guards were overwritten."""
    fenced: list[Tensor] = []

    def fence(tensor: Tensor) -> Tensor:
        if operator_name(target) in _SEE_STORAGE or not tensor.numel() or not tensor.dtype.itemsize:
            return copy_of(tensor)
        fenced.append(_fenced(tensor, guard))
        return _inside(fenced[-1], tensor)

    own, values = cast("tuple[tuple[object, ...], list[object]]", copies((args, list(kwargs.values())), fence))
    with torch.no_grad(), seeded():
        result = cast("Callable[..., object]", target)(*own, **dict(zip(kwargs, values, strict=True)))
    kept = [copies(result), copies([own, values]) if target._schema.is_mutable else None]
    if any(int((memory[place] != guard).sum()) for memory in fenced for place in _PLACES):
        raise ValueError("the operator wrote beyond its tensors")
    return kept


_PLACES = (slice(0, _GUARD_BYTES), slice(-_GUARD_BYTES, None))


def _fenced(tensor: Tensor, guard: int) -> Tensor:
    """Bytes: a guard, the memory that the tensor reaches, a guard."""
    span = _span(tensor) * tensor.element_size()
    return torch.full((2 * _GUARD_BYTES + span + -span % 64,), guard, dtype=torch.uint8)


def _inside(memory: Tensor, tensor: Tensor) -> Tensor:
    """A copy of the tensor between the guards."""
    span, tensor = _span(tensor), tensor.detach().resolve_conj().resolve_neg()
    # Bytes behind the span that only fill it up to whole lines belong to the guard.
    room = memory[_GUARD_BYTES : _GUARD_BYTES + span * tensor.element_size()].view(tensor.dtype)
    room.copy_(tensor.as_strided((span,), (1,)))
    return room.as_strided(tensor.shape, tensor.stride(), room.storage_offset())


def _span(tensor: Tensor) -> int:
    """Elements from a tensor's first to its last in memory."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _not_repeatable(target: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    if is_random(target, args, kwargs):
        return DRAWS
    name = operator_name(target)
    return UNWRITTEN if "empty" in name.split("_") or name in ("resize", "resize_as") else ""


def _small(result: object) -> bool:
    return all(tensor.numel() <= MOST_ELEMENTS for tensor in tensors_in(result))


def _alike(first: object, second: object) -> bool:
    """Equal in structure, values, dtypes and shapes; NaN equals NaN."""
    if isinstance(first, Tensor):
        return isinstance(second, Tensor) and _same_tensor(first, second)
    if isinstance(first, list | tuple):
        left, right = cast("list[object]", first), cast("list[object]", second)
        return len(left) == len(right) and all(_alike(*pair) for pair in zip(left, right, strict=True))
    if isinstance(first, float) and math.isnan(first):
        return isinstance(second, float) and math.isnan(second)
    return first == second


def _same_tensor(first: Tensor, second: Tensor) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape or first.layout != second.layout:
        return False
    if first.layout != torch.strided or first.is_quantized:
        return first.layout == second.layout
    return torch.allclose(first, second, rtol=0, atol=0, equal_nan=True) if first.numel() else True
