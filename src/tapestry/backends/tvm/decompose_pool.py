"""Pooling windows in elementwise operators: TVM's own max pool loses NaN and has no indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tapestry.errors import UnsupportedError

aten = torch.ops.aten

#: Window places that are written out one by one; more would make kernels too long to compile.
MOST_PLACES = 256


def _two(value: int | Sequence[int]) -> tuple[int, int]:
    entries = [value] if isinstance(value, int) else list(value)
    return (entries[0], entries[-1])


def _outputs(size: int, kernel: int, stride: int, padding: int, dilation: int, *, ceil: bool) -> int:
    """The number of windows along one dimension, as eager counts them."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil else span // stride) + 1
    if ceil and (count - 1) * stride >= size + padding:
        count -= 1  # the last window would start in the padding on the right
    return count


def _max_pool2d_with_indices(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """The largest of each window and its place in the plane: the first of equals; NaN is larger than all."""
    kernel, pad, spread = _two(kernel_size), _two(padding), _two(dilation)
    step = _two(stride) if stride else kernel
    if kernel[0] * kernel[1] > MOST_PLACES:
        raise UnsupportedError(f"a pooling window of {kernel[0]}x{kernel[1]}, expected at most {MOST_PLACES} places")
    sizes = x.shape[-2:]
    out = [_outputs(sizes[axis], kernel[axis], step[axis], pad[axis], spread[axis], ceil=ceil_mode) for axis in (0, 1)]
    reach = [(out[axis] - 1) * step[axis] + spread[axis] * (kernel[axis] - 1) + 1 for axis in (0, 1)]
    after = [max(0, reach[axis] - sizes[axis] - pad[axis]) for axis in (0, 1)]
    lowest = -math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    padded = aten.constant_pad_nd.default(x, [pad[1], after[1], pad[0], after[0]], lowest)
    windows = torch.stack(
        [
            aten.slice.Tensor(
                aten.slice.Tensor(padded, -2, dy, dy + (out[0] - 1) * step[0] + 1, step[0]),
                -1, dx, dx + (out[1] - 1) * step[1] + 1, step[1],
            )
            for dy in range(0, kernel[0] * spread[0], spread[0])
            for dx in range(0, kernel[1] * spread[1], spread[1])
        ],
        -3,
    )  # fmt: skip
    best = windows.amax(-3)
    number = torch.arange(kernel[0] * kernel[1])
    rows = (torch.arange(out[0]) * step[0] - pad[0]).reshape([-1, 1])
    columns = torch.arange(out[1]) * step[1] - pad[1]
    row = rows + (number // kernel[1] * spread[0]).reshape([-1, 1, 1])
    column = columns + (number % kernel[1] * spread[1]).reshape([-1, 1, 1])
    inside = (row >= 0) & (row < sizes[0]) & (column >= 0) & (column < sizes[1])
    is_best = windows == best.unsqueeze(-3)
    if x.dtype.is_floating_point:
        is_best = is_best | torch.isnan(windows)
    first = torch.where(is_best & inside, number.reshape([-1, 1, 1]), number.numel() - 1).amin(-3)
    place = (rows + first // kernel[1] * spread[0]) * sizes[1] + columns + first % kernel[1] * spread[1]
    return best, place


def _avg_pool2d(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Only what TVM ignores, a divisor of one's own, is treated here."""
    if divisor_override is None:
        return NotImplemented
    if ceil_mode:
        raise UnsupportedError("avg_pool2d with ceil_mode and divisor_override")
    kernel = _two(kernel_size)
    mean = aten.avg_pool2d.default(x, kernel_size, stride, padding)
    return mean * (kernel[0] * kernel[1] / divisor_override)


def _adaptive_avg_pool2d(x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Even windows are an ordinary pool; uneven ones are means of slices."""
    sizes, out = x.shape[-2:], _two(output_size)
    if all(size % count == 0 for size, count in zip(sizes, out, strict=True)):
        return aten.avg_pool2d.default(x, [size // count for size, count in zip(sizes, out, strict=True)])
    if out[0] * out[1] > MOST_PLACES:
        raise UnsupportedError(f"adaptive pooling to {out[0]}x{out[1]}, expected at most {MOST_PLACES} places")
    rows: list[Tensor] = []
    for y in range(out[0]):
        band = aten.slice.Tensor(x, -2, y * sizes[0] // out[0], -(-(y + 1) * sizes[0] // out[0]))
        parts = [
            aten.slice.Tensor(band, -1, c * sizes[1] // out[1], -(-(c + 1) * sizes[1] // out[1])) for c in range(out[1])
        ]
        rows.append(torch.cat([part.mean([-2, -1], keepdim=True) for part in parts], -1))
    return torch.cat(rows, -2)


#: By operator name: what replaces it.
FORMULAS: dict[str, Callable[..., object]] = {
    "max_pool2d_with_indices.default": _max_pool2d_with_indices,
    "avg_pool2d.default": _avg_pool2d,
    "_adaptive_avg_pool2d.default": _adaptive_avg_pool2d,
    "adaptive_avg_pool2d.default": _adaptive_avg_pool2d,
}
