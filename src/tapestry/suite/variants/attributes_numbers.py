"""Other values of arguments that are one number, one flag, one word or one dtype, by what they mean.

Each function yields values in the order in which they tell most. Not here: dims, lists, tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tapestry.suite.variants.attributes_binding import Parameter, main_tensor
from tapestry.suite.variants.call import OpCall
from tapestry.suite.variants.meaning import AttributeRole

_INF, _NAN = float("inf"), float("nan")
#: Numbers for arguments whose names say more than that they take part. Where none is named, `_NUMBERS` are tried.
_BY_NAME: dict[str, tuple[object, ...]] = {
    "eps": (1e-12, 1e-2, 1.0, 0.0),
    "epsilon": (1e-12, 1e-2, 1.0),
    "alpha": (2, -1, 0.5, 10, 0, 3),
    "beta": (2, 0, -1, 0.5, 10),
    "correction": (0, 2, 1, 3, 0.5),
    "p": (1, 3, 0, float("inf"), -1, 0.5, 2, float("-inf")),
    "ord": (1, 3, 0, float("inf"), -1, 0.5, 2, float("-inf"), "fro", "nuc", -2),
    "negative_slope": (0.5, 2.0, -1.0, 0, 1),
    "value": (2, -1, _INF, 0.5, -_INF, 10, 0, _NAN),
    "exponent": (3, 2, 0.5, -1, 0, 1, -2, -0.5, 4, 2.5),
    "scale": (0.5, 2.0, 1.0, -1.0, 0.0),
    "scale_factor": (2.0, 0.5, 1.5),
    "threshold": (0.5, 1, -0.5, 20, 0),
    "lambd": (0.1, 1.0, 0.0, 2.0),
    "margin": (0.0, 1.0, 0.5, 2.0),
    "delta": (0.5, 2.0, 0.1),
    "min": (0.5, -0.5, 0, 1, -2, -_INF, _INF),
    "max": (0.5, -0.5, 0, -1, 2, _INF, -_INF),
    "min_val": (-0.5, 0, -2, 0.25),
    "max_val": (0.5, 2, 0.25, 6),
    "momentum": (0.5, 0.0, 1.0),
    "nan": (1.5, -1.0, 0.0),
    "posinf": (2.5, 100.0, -1.0),
    "neginf": (-2.5, 100.0, -1.0),
    "fill_value": (2.5, -1, -_INF, 0, 3, True, 1e9, _INF, _NAN),
    "dropout_p": (0.0,),
    "rtol": (0.1, 0.0, 1.0),
    "atol": (0.1, 0.0, 1.0),
    "q": (0.25, 0.0, 1.0, 0.9),
    "step": (2, 3, 5, 1, 0.5, -1),
    "scales_h": (2.0, 0.5, 1.5),
    "scales_w": (2.0, 0.5, 1.5),
    "scales": (2.0, 0.5, 1.5),
    "divisor_override": (3, 1, 7, None),
    "decimals": (1, 2, -1, 3, -2),
    "ignore_index": (1, 0, -1, -100),
    "padding_idx": (0, 1, -1),
    "num_classes": (-1, 300, 5, 9, 17),
    "reduction": (0, 2, 1),
    "interpolation_mode": (1, 0, 2),
    "padding_mode": (1, 2, 0),
    "compute_mode": (1, 2, 0),
    "minlength": (7, 0, 33),
    "bins": (7, 1, 10),
    "diagonal": (1, -1, 2, -2, 0, 100, -100),
    "offset": (1, -1, 2, -2, 0),
    "upscale_factor": (2, 3, 1),
    "downscale_factor": (2, 3, 1),
    "label_smoothing": (0.1, 0.5),
    "repeats": (2, 3, 1, 0),
    "groups": (2, 4, 1, 3),
    "num_groups": (2, 1, 4, 3),
    "base": (2.0, 3.0, 0.5),
    "weight": (0.25, 0.75, 2.0, -1.0, 0, 1, 0.5),
}
_NUMBERS: tuple[object, ...] = (2, -1, 0.5, 0, 3, -0.5, _INF, 1, 1000, -_INF)
#: Beside whole numbers: a fraction, which changes the dtype of the result, and where floats and 32 bits end.
_BESIDE_WHOLE: tuple[object, ...] = (2.5, 2**24, -1, 2**31 + 1, 0, 3, -0.5, 2**53, 2, 1)
_WHOLE: tuple[object, ...] = (2, 3, 1, 0, -1, 5)
#: Words by argument; an operator that does not know one refuses it.
_WORDS: dict[str, tuple[object, ...]] = {
    "approximate": ("tanh", "none"),
    "rounding_mode": ("floor", "trunc", None),
    "mode": ("reflect", "replicate", "circular", "constant", "reduced", "complete", "r"),
    "padding": ("same", "valid"),
    "side": ("right", "left"),
    "reduce": ("prod", "amax", "amin", "mean", "sum", "add", "multiply"),
    "indexing": ("xy", "ij"),
    "norm": ("ortho", "forward", "backward"),
    "ord": ("nuc", "fro"),
    "interpolation": ("lower", "higher", "nearest", "midpoint", "linear"),
    "UPLO": ("U", "L"),
    "pad_mode": ("constant", "reflect"),
}
_DTYPES = (
    torch.float64,
    torch.int64,
    torch.float16,
    torch.int32,
    torch.bfloat16,
    torch.float32,
    torch.bool,
    torch.uint8,
    torch.int8,
)
#: Arguments that change nothing about the result, or only where the call runs.
_LEFT_ALONE = (AttributeRole.PLACEMENT, AttributeRole.PROBABILITY)
_LEFT_ALONE_NAMES = frozenset(
    {"equation", "cudnn_enabled", "cudnn_enable", "training", "sparse", "scale_grad_by_freq", "unsafe", "implicit"}
    | {"benchmark", "deterministic", "allow_tf32", "driver", "name", "train", "check_errors", "path", "sparse_grad"}
)


def single_values(call: OpCall, row: Parameter, role: AttributeRole, value: object) -> Iterator[object]:
    """Other values of an argument that is no dim, list or tensor; the value it has may be among them."""
    if role in _LEFT_ALONE or row.name in _LEFT_ALONE_NAMES:
        return
    if row.optional and value is not None:
        yield None
    if row.kind == "bool":
        yield from ((True, False) if row.optional else (not value,))
    elif row.kind == "str":
        yield from _WORDS.get(row.name, ())
    elif row.kind == "ScalarType":
        yield from _DTYPES
    elif row.kind in ("number", "float"):
        yield from (entry for entry in _numbers(call, row, role) if isinstance(entry, int | float))
    elif row.kind == "int":
        yield from (entry for entry in _whole(call, row, role, value) if entry is None or isinstance(entry, int))


def _numbers(call: OpCall, row: Parameter, role: AttributeRole) -> Sequence[object]:
    named = _BY_NAME.get(row.name, _NUMBERS)
    tensor = main_tensor(call)
    if row.kind == "float" or role != AttributeRole.FACTOR or tensor is None or tensor.is_floating_point():
        return named
    return (*_BESIDE_WHOLE[:1], *named) if row.name in _BY_NAME else _BESIDE_WHOLE


def _whole(call: OpCall, row: Parameter, role: AttributeRole, value: object) -> Iterator[object]:
    tensor = main_tensor(call)
    sizes = tuple(tensor.shape) if tensor is not None else ()
    if row.name in _BY_NAME:
        yield from _BY_NAME[row.name]
    elif role == AttributeRole.POSITION:
        yield from _positions(row.name, sizes, value)
    elif role == AttributeRole.COUNT or row.name in ("split_size", "size", "step", "n", "k"):
        yield from _counts(sizes)
    else:
        yield from _WHOLE


def _positions(name: str, sizes: Sequence[int], value: object) -> Iterator[int]:
    """Places in a dim: from the end, just inside and just outside, far outside."""
    largest = max(sizes, default=0)
    inside = (-1, 1, 0, -2, 2, 3)
    yield from inside
    if name in ("start", "end"):
        yield from (-largest - 3, largest + 3, 2**63 - 1, largest)
    elif isinstance(value, int):
        yield from (value + 1, value - 1)


def _counts(sizes: Sequence[int]) -> Iterator[int]:
    """How many: one, several, one that does not divide, all, none."""
    yield from (3, 1, 2, 5)
    yield from dict.fromkeys(reversed(sizes))
    yield from (7, 0, 13)
