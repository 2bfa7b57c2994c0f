"""What is known of a value while several calls are followed in float64: its exact content, how far a right platform may
be from it, and where nothing can be said. Not here: how a call changes that (running, carried).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from tapestry.numerics.arguments import map_leaves
from tapestry.numerics.float64 import to_oracle_dtype
from tapestry.numerics.formats import component, is_inexact, largest, unit_roundoff, wide_dtype


@dataclass(frozen=True, eq=False)
class Value:
    """One tensor of a run. All three tensors have its shape, and share memory as the program's tensors do.

    ``exact``: in the oracle's dtype (float64, complex128, or the exact dtype itself). ``bound``: float64, how far a
    right platform may be from it to first order; 0 for what is certain. ``doubtful``: bool, where a right platform may
    have anything (a choice close to its boundary). ``dtype``: what the tensor has in the program. ``given``: the
    program's own tensor, for a value that no call has made.
    """

    exact: Tensor
    bound: Tensor
    doubtful: Tensor
    dtype: torch.dtype
    given: Tensor | None = None

    @property
    def certain(self) -> bool:
        """Whether every right platform holds exactly this."""
        return not bool(self.bound.any()) and not bool(self.doubtful.any()) and self._representable

    @property
    def _representable(self) -> bool:
        if self.given is not None or not is_inexact(self.dtype):
            return True
        back = self.exact.to(self.dtype).to(self.exact.dtype)
        return bool(((back == self.exact) | self.exact.isnan()).all())

    @property
    def rounded(self) -> Tensor:
        """The value in the program's dtype, with its strides and the memory around it. Not to be written to."""
        if self.given is not None:
            return self.given
        return with_storage(self.exact, lambda storage: storage.to(self.dtype, copy=True))

    def read(self) -> tuple[Tensor, Tensor]:
        """The exact value and the doubt that a following call meets.

        What overflows the dtype is infinite there; 16-bit values may be kept in more bits between two calls, so that
        it is doubtful whether they have overflowed.
        """
        if not is_inexact(self.dtype) or self.dtype.is_complex or self.given is not None:
            return self.exact, self.doubtful
        magnitude = self.exact.abs()
        reach = (magnitude + self.bound) > largest(self.dtype) * (1 - unit_roundoff(self.dtype))
        reach = reach & torch.isfinite(self.exact)
        if not bool(reach.any()):
            return self.exact, self.doubtful
        over = (magnitude - self.bound) > largest(self.dtype) * (1 + unit_roundoff(self.dtype))
        if component(self.dtype).itemsize < 4:
            return self.exact, self.doubtful | reach
        return torch.where(over, self.exact.sign() * torch.inf, self.exact), self.doubtful | (reach & ~over)

    def doubted(self, mask: Tensor) -> Value:
        """The same value, doubtful at ``mask`` (broadcastable), too."""
        return replace(self, doubtful=self.doubtful | mask.expand(self.doubtful.shape))


def given_value(tensor: Tensor) -> Value:
    """A value that comes from outside: certain."""
    exact = to_oracle_dtype(tensor)
    return Value(exact, no_bound(exact), no_doubt(exact), tensor.dtype, tensor)


def stored_value(exact: Tensor, dtype: torch.dtype) -> Value:
    """A certain value in memory that calls may write to. Its bound and doubt share memory just as ``exact`` does."""

    def zeros(of: torch.dtype) -> Tensor:
        return with_storage(exact, lambda storage: torch.zeros(storage.shape, dtype=of))

    return Value(exact, zeros(torch.float64), zeros(torch.bool), dtype)


def no_bound(tensor: Tensor) -> Tensor:
    """A bound of 0 for every element."""
    return torch.zeros((), dtype=torch.float64).expand(tensor.shape)


def no_doubt(tensor: Tensor) -> Tensor:
    """No doubt about any element."""
    return torch.zeros((), dtype=torch.bool).expand(tensor.shape)


def with_storage(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The tensor over a changed copy of everything in its storage: ``change`` gets and gives a flat tensor."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    room = tensor.untyped_storage().nbytes() // tensor.element_size()
    return change(tensor.as_strided((room,), (1,), 0)).as_strided(
        tensor.shape, tensor.stride(), tensor.storage_offset()
    )


def widened(tensor: Tensor) -> Tensor:
    """A copy of the tensor's whole storage in the oracle's dtype, seen as the tensor sees it."""
    return with_storage(tensor, lambda storage: storage.to(wide_dtype(tensor.dtype), copy=True))


def values_in(argument: object) -> Iterator[Value]:
    """All values of an argument, in order, with repeats."""
    if isinstance(argument, Value):
        yield argument
    elif isinstance(argument, list | tuple):
        for entry in cast("Sequence[object]", argument):
            yield from values_in(entry)
    elif isinstance(argument, Mapping):
        yield from values_in(list(cast("Mapping[str, object]", argument).values()))


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call, tensors as Values."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object]

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """All values in order, with repeats."""
        return (*values_in(self.args), *values_in(self.kwargs))

    def filled(self, tensors: Sequence[Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments with tensors in place of the values, given in their order."""
        rest = iter(tensors)

        def leaf(value: object) -> object:
            return next(rest) if isinstance(value, Value) else value

        args = tuple(map_leaves(leaf, value) for value in self.args)
        return args, {name: map_leaves(leaf, value) for name, value in self.kwargs.items()}
