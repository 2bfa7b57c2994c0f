"""Other values of arguments that are lists of numbers: windows, strides, paddings, sizes, shifts, repeats, splits.

Not here: lists of dims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from tapestry.numerics.arguments import operator_name
from tapestry.suite.variants.attributes_binding import Parameter, as_ints, given, main_tensor
from tapestry.suite.variants.call import OpCall
from tapestry.suite.variants.meaning import AttributeRole


def list_values(call: OpCall, row: Parameter, role: AttributeRole, value: object) -> Iterator[object]:
    """Other lists for an argument, the most telling first."""
    if row.kind == "List[float]":
        yield from _factors(value)
        return
    if row.optional and value is not None:
        yield None
    operator = operator_name(call.target)
    own = _BY_NAME.get(row.name)
    if own is not None:
        yield from own(call, row, value)
    elif operator.startswith(("expand", "broadcast_to")):
        yield from _expanded(call, value)
    elif row.name in ("size", "shape", "sizes") and main_tensor(call) is not None and _reshapes(operator):
        yield from _factorisations(call)
    elif role == AttributeRole.SHAPE:
        yield from _sizes(call, row, value)
    elif role in (AttributeRole.WINDOW, AttributeRole.STEP, AttributeRole.PADDING):
        yield from _windows(call, row, role, value)


def _reshapes(operator: str) -> bool:
    return any(word in operator for word in ("view", "reshape", "unflatten"))


def _windows(call: OpCall, row: Parameter, role: AttributeRole, value: object) -> Iterator[object]:
    """Kernel, stride, padding, dilation: one number for all dims, another in each, a kernel as large as the input."""
    dims = _spatial(call, row, value)
    if role == AttributeRole.WINDOW:
        tensor = main_tensor(call)
        whole = list(tensor.shape[-dims:]) if tensor is not None and tensor.dim() >= dims else []
        uneven = [3, 2, 1][:dims] if dims > 1 else [4]
        yield from ([3] * dims, uneven, [1] * dims, [2] * dims, whole, [1, 3, 2][:dims])
    elif role == AttributeRole.PADDING:
        yield from ([1] * dims, [1, 0, 1][:dims], [0, 1, 0][:dims], [2] * dims, [0] * dims, [2, 1, 0][:dims])
    else:
        if row.name == "stride":
            yield []
        yield from ([2] * dims, [2, 1, 1][:dims], [1, 2, 3][:dims], [1] * dims, [3] * dims, [3, 2, 1][:dims])


def _spatial(call: OpCall, row: Parameter, value: object) -> int:
    """The number of dims that a window slides over: by the kernel given, or by the operator's name."""
    kernel = as_ints(given(call).get("kernel_size"))
    if kernel and len(kernel) > 1:
        return len(kernel)
    name = str(call.target)
    for dims in (1, 2, 3):
        if f"{dims}d" in name:
            return dims
    now = as_ints(value)
    return len(now) if now else 2


def _factors(value: object) -> Iterator[object]:
    count = len(cast("Sequence[float]", value)) if isinstance(value, list | tuple) else 2
    yield from ([2.0] * count, [0.5] * count, [1.5] * count, [2.0, 1.0, 3.0][:count], [3.0] * count, [1.3] * count)


def _sizes(call: OpCall, row: Parameter, value: object) -> Iterator[object]:
    """Output sizes: one, odd, larger, different in each dim; the sizes of a new tensor."""
    now = as_ints(value)
    count = len(now) if now else _spatial(call, row, value)
    yield from ([1] * count, [3, 5, 2, 7, 3][:count], [7, 3, 5, 2, 1][:count], [5] * count)
    if now:
        yield from ([2 * size for size in now], [max(size // 2, 1) for size in now], [size + 1 for size in now])
    yield from ([0] * count, [13, 11, 3][:count])


def _factorisations(call: OpCall) -> Iterator[list[int]]:
    """Other shapes of as many elements: flat, one inferred, a dim of 1 more, split and merged, reversed."""
    tensor = main_tensor(call)
    if tensor is None:
        return
    shape, count = list(tensor.shape), tensor.numel()
    yield [-1]
    yield shape[::-1]
    yield [1, *shape, 1]
    if len(shape) >= 2:
        yield [shape[0] * shape[1], *shape[2:]]
        yield [*shape[:-2], -1]
        yield [-1, shape[-1]]
    for factor in (2, 3, 4, 8):
        if count and count % factor == 0:
            yield [factor, -1]
            yield [count // factor, factor]
    if shape and shape[-1] and shape[-1] % 2 == 0:
        yield [*shape[:-1], 2, shape[-1] // 2]
        yield [*shape[:-1], shape[-1] // 2, 2]
    yield [count, 1]


def _expanded(call: OpCall, value: object) -> Iterator[list[int]]:
    """Larger shapes: -1 for what stays, a leading dim or two, another size where the tensor has 1."""
    tensor = main_tensor(call)
    if tensor is None:
        return
    kept = [-1] * tensor.dim()
    now = as_ints(value) or []
    tail = [size if size != 1 else 3 for size in tensor.shape]
    yield from ([3, *kept], [2, 3, *kept], tail, [*now[: len(now) - len(tail)], *tail], [2, *tail], list(tensor.shape))


def _repeats(call: OpCall, row: Parameter, value: object) -> Iterator[list[int]]:
    tensor = main_tensor(call)
    rank = tensor.dim() if tensor is not None else 1
    ones = [1] * max(rank - 1, 0)
    yield from ([*ones, 2], [2, *ones], [3, *ones, 2] if rank else [3], [2, *[1] * rank], [2] * max(rank, 1))
    yield from ([1] * max(rank, 1), [0, *ones], [2, 1, *[3] * rank])


def _trailing(call: OpCall, row: Parameter, value: object) -> Iterator[list[int]]:
    tensor = main_tensor(call)
    if tensor is not None:
        yield from (list(tensor.shape[-count:]) for count in range(1, tensor.dim() + 1))


def _shifts(call: OpCall, row: Parameter, value: object) -> Iterator[list[int]]:
    count = len(as_ints(value) or [1])
    for shifts in ([-1, 2, 1], [2, -3, 1], [1000, 1, 0], [0, 0, 0], [1, 1, 1]):
        yield shifts[:count]


def _splits(call: OpCall, row: Parameter, value: object) -> Iterator[list[int]]:
    """Parts along the dim that is split: one, uneven, with an empty part, many; or the places between them."""
    tensor = main_tensor(call)
    if tensor is None or not tensor.dim():
        return
    dim = given(call).get("dim", 0)
    size = tensor.shape[dim] if isinstance(dim, int) and -tensor.dim() <= dim < tensor.dim() else tensor.shape[0]
    if row.name in ("indices", "sections"):
        yield from ([1], [2, 1], [1, size], [-1], [0, 2], [])
        return
    yield from (
        [1, size - 1],
        [size - 1, 1],
        [size],
        [0, size],
        [2, 1, size - 3],
        [1] * min(size, 8) + [size - 8] * (size > 8),
    )


def _pads(call: OpCall, row: Parameter, value: object) -> Iterator[list[int]]:
    """Padding from the last dim forward: uneven, negative, each dim by itself, all dims, none."""
    tensor = main_tensor(call)
    rank = tensor.dim() if tensor is not None else 1
    yield from ([1, 2], [0, 1], [2, 0], [-1, 2], [-1, -1])
    if rank >= 2:
        yield from ([1, 2, 3, 0], [0, 0, 1, 2], [-1, 0, 2, -1], [1, 1, 1, 1])
    if rank >= 3:
        yield from ([0, 0, 0, 0, 1, 2], [1, 0, 0, 2, 3, 1])
    yield [number for _ in range(rank) for number in (1, 0)]
    yield [0, 0]


_BY_NAME: dict[str, Callable[[OpCall, Parameter, object], Iterator[object]]] = {
    "split_sizes": _splits,
    "split_size": _splits,
    "indices": _splits,
    "sections": _splits,
    "pad": _pads,
    "shifts": _shifts,
    "repeats": _repeats,
    "normalized_shape": _trailing,
}
