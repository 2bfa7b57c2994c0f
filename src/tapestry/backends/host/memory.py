"""Device memory, given as flat views, as NumPy arrays and addresses. No copies, no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

#: NumPy's types by torch's names. bfloat16, which NumPy lacks, is handled as the bits that it is.
NUMPY_TYPES: dict[str, type[np.generic]] = {
    "bool": np.bool_, "uint8": np.uint8, "int8": np.int8, "int16": np.int16, "uint16": np.uint16, "int32": np.int32,
    "uint32": np.uint32, "int64": np.int64, "uint64": np.uint64, "float16": np.float16, "bfloat16": np.uint16,
    "float32": np.float32, "float64": np.float64,
}  # fmt: skip


def as_array(view: memoryview, dtype: str, shape: Sequence[int]) -> npt.NDArray[np.generic]:
    """The memory as an array of this type (torch's name) and shape; one of its own when it holds no elements."""
    kind = NUMPY_TYPES[dtype]
    if 0 in shape:
        return np.empty(tuple(shape), kind)
    return np.frombuffer(view, kind).reshape(tuple(shape))


def same_views(one: Sequence[memoryview], other: Sequence[memoryview]) -> bool:
    """Whether these are the very same view objects, and so the same memory."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
