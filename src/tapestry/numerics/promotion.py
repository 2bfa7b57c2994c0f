"""Calls whose floating dtype is PyTorch's default, not an operand's: the same calls so that they compute in float64.

Integers with a fraction, true division of integers, and creation without a dtype are such. The default dtype is
global to the process, so it is set, under a lock, only for calls that can be asked in no other way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor
from torch._ops import OpOverload

from tapestry.numerics.arguments import argument_types, bind, map_leaves

Arguments = tuple[tuple[object, ...], dict[str, object]]

_DEFAULT_DTYPE = Lock()


def in_float64(target: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[Arguments]:
    """Arguments that may make the call compute in float64, the likeliest first."""
    if any(name == "dtype" for name, _ in argument_types(target)) and bind(target, args, kwargs).get("dtype") is None:
        yield tuple(args), {**kwargs, "dtype": torch.float64}
    yield _changed(args, kwargs, lambda tensor: not tensor.dtype.is_floating_point and tensor.dtype != torch.bool)
    yield _changed(args, kwargs, lambda tensor: not tensor.dtype.is_floating_point)


def _changed(args: Sequence[object], kwargs: Mapping[str, object], which: Callable[[Tensor], bool]) -> Arguments:
    def leaf(value: object) -> object:
        return value.to(torch.float64) if isinstance(value, Tensor) and which(value) else value

    return tuple(map_leaves(leaf, value) for value in args), {k: map_leaves(leaf, v) for k, v in kwargs.items()}


@contextmanager
def default_float64() -> Generator[None]:
    """Float64 as PyTorch's default, for one thread at a time. Threads outside the oracle would see it, too."""
    with _DEFAULT_DTYPE:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
