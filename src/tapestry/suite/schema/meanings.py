"""What an argument that is no tensor means, by its name: values that make sense beside a tensor of some shape.

One table for all operators: ``dim`` is an axis wherever it stands. The first value of a list is the usual one; where an
argument has a default, the others are what it may be instead. Not here: tensors (scenes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod

import torch

from tapestry.suite.schema.kinds import Argument, fits

Shape = tuple[int, ...]


def _axes(shape: Shape, length: int | None) -> list[object]:
    rank = len(shape)
    pairs: list[object] = [[0, 1], [-1, -2], [0, -1]] if rank > 1 else [[0], [-1]]
    lists: list[object] = [[-1], [0], *pairs] if length != 2 else pairs
    return [-1, 0, 1, *lists, *([[*range(rank)]] if rank else [[]])] if rank else [0, -1, [], [0]]


def _last_axes(shape: Shape, length: int | None) -> list[object]:
    return [list(shape[-1:]), list(shape[-2:]), shape[-1] if shape else 1]


def _sizes(shape: Shape, length: int | None) -> list[object]:
    return [list(shape), [-1], list(reversed(shape)), [2, *shape], [prod(shape)], list(shape[-1:])]


def _spatial(*values: int) -> Callable[[Shape, int | None], list[object]]:
    """One value for each spatial dimension, or one number."""

    def made(shape: Shape, length: int | None) -> list[object]:
        rank = length or max(len(shape) - 2, 1)
        return [entry for value in values for entry in ([value] * rank, value)]

    return made


def _padding(shape: Shape, length: int | None) -> list[object]:
    words: list[object] = ["same", "valid"]
    sides = length or 2
    return [[1] * sides, [0] * sides, [1, 2, 0, 1][: min(sides, 4)], *([[1, 0]] if sides == 2 else []), 1, 0, *words]


def _splits(shape: Shape, length: int | None) -> list[object]:
    along = shape[0] if shape else 1
    return [[along // 2, along - along // 2], [1, along - 1], max(along // 2, 1), 3]


def _strides(shape: Shape, length: int | None) -> list[object]:
    dense = [prod(shape[place + 1 :]) for place in range(len(shape))]
    return [dense, list(reversed(dense)), *_spatial(2, 1)(shape, length)]


def _these(*values: object) -> Callable[[Shape, int | None], list[object]]:
    return lambda shape, length: list(values)


_FACTORS = _these(2, 0.5, -1)
_AXES = _axes
_COUNTS = _these(2, 1, 3)

#: Values by argument name. What does not fit the argument's type is passed over.
_TABLE: dict[str, Callable[[Shape, int | None], list[object]]] = {
    **dict.fromkeys(("dim", "dims", "axis", "axes", "dim0", "axis0", "source", "start_dim"), _AXES),
    **dict.fromkeys(("dim1", "axis1", "destination", "end_dim", "dim2", "ndim"), _these(1, -1, [1], [-1], 0, [0])),
    **dict.fromkeys(("dims_self", "dims_other", "tensor_indices_or_sections"), _these([-1], [0])),
    **dict.fromkeys(("size", "sizes", "shape", "size_", "input_size"), _sizes),
    "normalized_shape": _last_axes,
    **dict.fromkeys(("kernel_size", "filter_size"), _spatial(3, 2)),
    "stride": _strides,
    "dilation": _spatial(2, 1),
    "output_padding": _spatial(0, 1),
    **dict.fromkeys(("padding", "pad"), _padding),
    **dict.fromkeys(("output_size", "blocksize"), _spatial(4, 3, 8)),
    "scale_factors": _these([2.0], [2.0, 2.0], [2.0, 2.0, 2.0], [1.5, 1.5]),
    **dict.fromkeys(("scales", "scales_d", "scales_h", "scales_w"), _these(2.0, 1.5)),
    **dict.fromkeys(("groups", "N", "num_groups"), _these(2, 1)),
    "num_layers": _these(1),
    "has_biases": _these(True),
    **dict.fromkeys(("C", "HxW", "H", "W"), _these(6, 4, 25)),
    **dict.fromkeys(("group", "upscale_factor", "downscale_factor"), _these(2)),
    **dict.fromkeys(("split_size", "split_sizes", "indices_or_sections", "sections"), _splits),
    **dict.fromkeys(("chunks", "repeats", "k", "n", "m", "r", "times", "multiples"), _these(2, [2, 1], [2, 1, 3], [2])),
    "rotation": _these(1),
    **dict.fromkeys(("start", "low", "from"), _these(1, -2, 0.5)),
    **dict.fromkeys(("end", "high", "to", "output_length"), _these(6, 9.5, 5)),
    "step": _these(2, 1, 0.5),
    **dict.fromkeys(("steps", "window_length", "num_samples", "length", "hop_length"), _these(8, 16)),
    **dict.fromkeys(("n_fft", "win_length"), _these(8)),
    **dict.fromkeys(
        ("index", "storage_offset", "offset", "diagonal", "shifts", "fill_diagonal"), _these(1, -1, [1], 0)
    ),
    "correction": _these(0, 2),
    "ddof": _these(0),
    **dict.fromkeys(("alpha", "beta", "scale_grad", "exponent", "base"), _FACTORS),
    **dict.fromkeys(("other", "self", "value", "fill_value", "scalar", "s", "src"), _these(2, 1.5, -3, True)),
    **dict.fromkeys(("min", "min_val", "lower", "quant_min"), _these(-1, -0.5, -128)),
    **dict.fromkeys(("max", "max_val", "upper", "quant_max"), _these(1, 0.5, 127)),
    **dict.fromkeys(("threshold", "lambd", "negative_slope", "input_scale", "delta", "margin"), _these(0.3, 1)),
    **dict.fromkeys(("eps", "epsilon"), _these(1e-5, 1e-3)),
    **dict.fromkeys(("momentum", "exponential_average_factor"), _these(0.1, 0.3)),
    **dict.fromkeys(("p", "pow", "norm_type", "ord"), _these(2, 1, inf, 0.5, "fro")),
    **dict.fromkeys(("dropout", "dropout_p"), _these(0.0, 0.5)),
    **dict.fromkeys(("scale", "output_scale", "max_norm", "rtol", "atol", "tol", "rcond"), _these(0.05, 1.0)),
    **dict.fromkeys(("zero_point", "output_zero_point"), _these(3, 0)),
    **dict.fromkeys(("mean", "median"), _these(0.0, 1.0)),
    **dict.fromkeys(("std", "sigma"), _these(1.0, 0.5)),
    "decimals": _these(1, -1),
    **dict.fromkeys(("bins", "num_classes", "minlength", "n_bins"), _these(10, 12)),
    "padding_idx": _these(1, -1),
    "ignore_index": _these(1, -100),
    "divisor_override": _these(3),
    "reduction": _these(1, 0, 2),
    "mode": _these(0, 1, "linear", "constant", "reflect", "reduced"),
    "interpolation_mode": _these(0, 1, 2),
    "padding_mode": _these(0, 1, 2),
    "pad_mode": _these("constant", "reflect"),
    "interpolation": _these("linear", "lower", "nearest"),
    "rounding_mode": _these("floor", "trunc"),
    "reduce": _these("sum", "mean", "amax", "prod", "amin", "add"),
    "approximate": _these("tanh", "none"),
    "indexing": _these("ij", "xy"),
    "padding_side": _these("right", "left"),
    "equation": _these("ij,jk->ik", "ij,ij->i"),
    "path": _these([0, 1]),
    "UPLO": _these("L", "U"),
    "side": _these("left", "right"),
    "dtype": _these(torch.float32, torch.float16, torch.int64, torch.float64, torch.bool, torch.int8),
    "out_dtype": _these(torch.float32),
    "memory_format": _these(torch.contiguous_format, torch.channels_last, torch.preserve_format),
    "device": _these(torch.device("cpu")),
    "layout": _these(torch.strided),
    "output_mask": _these([True, True, True]),
    **dict.fromkeys(("new_axis", "unroll_dim"), _these(0)),
    "max_size": _these([8], 8),
}

#: What is left when a name says nothing: by kind.
_BY_KIND: dict[str, list[object]] = {
    "bool": [False, True],
    "int": [1, 2, 0, -1],
    "float": [0.5, 1.0, 2.0],
    "number": [2, 0.5],
    "List[int]": [[1], [1, 1], [2, 2], [1, 1, 1]],
    "List[float]": [[1.0, 0.5]],
    "List[bool]": [[True, True, True], [True, True]],
    "List[number]": [[2, 0.5]],
}


#: Arguments whose other values change nothing that a result shows: how memory is placed and copied.
SILENT = frozenset({"non_blocking", "pin_memory", "device", "layout", "generator", "implicit", "sparse", "validate"})


def meant(argument: Argument, shape: Sequence[int]) -> list[object]:
    """Values for an argument beside a tensor of this shape, the usual one first; empty where none is known."""
    named = _TABLE.get(argument.name)
    values = named(tuple(shape), argument.length) if named else []
    values = [value for value in values if fits(value, argument)]
    if not values:
        values = [value for value in _BY_KIND.get(argument.kind, []) if fits(value, argument)]
    return [*values, None] if argument.optional else values
