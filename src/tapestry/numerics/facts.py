"""What the tolerance classes may look at: the call, its arguments as given and in float64, computed when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor
from torch._ops import OpOverload

from tapestry.numerics.arguments import argument_types, bind, flatten_result, map_leaves, operator_name, tensors_in
from tapestry.numerics.float64 import oracle_args
from tapestry.numerics.formats import is_inexact, smallest_normal

_AS_GIVEN: Mapping[str, object] = {}


@dataclass(frozen=True)
class CallFacts:
    """One call of an operator with the real tensors it was given."""

    target: OpOverload
    args: Sequence[object]
    kwargs: Mapping[str, object]

    @cached_property
    def name(self) -> str:
        return operator_name(self.target)

    @cached_property
    def bound(self) -> dict[str, object]:
        """The arguments as given, by schema name."""
        return bind(self.target, self.args, self.kwargs)

    @cached_property
    def wide(self) -> dict[str, object]:
        """The oracle's arguments (float64), by schema name."""
        return bind(self.target, *self._wide_call)

    @cached_property
    def _wide_call(self) -> tuple[tuple[object, ...], dict[str, object]]:
        return oracle_args(self.target, self.args, self.kwargs)

    def _with(self, replaced: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
        args, kwargs = self._wide_call
        positional = dict(zip((name for name, _ in argument_types(self.target)), args, strict=False))
        changed = tuple(replaced.get(name, value) for name, value in positional.items())
        return changed, {**kwargs, **{name: value for name, value in replaced.items() if name not in positional}}

    def tensor(self, name: str) -> Tensor | None:
        """A tensor argument as given, or None."""
        value = self.bound.get(name)
        return value if isinstance(value, Tensor) else None

    @cached_property
    def has_nothing(self) -> bool:
        """Whether every tensor of the call is empty, and there is one."""
        found = False
        for tensor in tensors_in((*self.args, *self.kwargs.values())):
            if tensor.numel():
                return False
            found = True
        return found

    @cached_property
    def has_subnormal(self) -> bool:
        """Whether an operand of 16 bits or fewer holds subnormal numbers, which a device may read as zero."""
        narrow = (entry for entry in tensors_in((*self.args, *self.kwargs.values())) if _is_narrow(entry))
        return any(bool(((entry != 0) & (entry.abs() < smallest_normal(entry.dtype))).any()) for entry in narrow)

    @cached_property
    def has_complex(self) -> bool:
        """Whether an operand or a number of the call is complex."""
        values = (*self.args, *self.kwargs.values())
        return any(tensor.is_complex() for tensor in tensors_in(values)) or any(isinstance(v, complex) for v in values)

    def run_wide(
        self,
        change: Callable[[Tensor], Tensor],
        number: Callable[[float], float],
        replaced: Mapping[str, object] = _AS_GIVEN,
    ) -> tuple[Tensor | None, ...]:
        """The operator in float64 on changed operands: floating tensors by ``change``, alpha and beta by ``number``.

        ``replaced``: arguments to give in place of the call's own, by schema name.
        """
        args, kwargs = self._wide_call
        if replaced:
            args, kwargs = self._with(replaced)

        def leaf(value: object) -> object:
            if isinstance(value, Tensor) and is_inexact(value.dtype):
                return change(value)
            return value

        changed = {name: map_leaves(leaf, value) for name, value in kwargs.items()}
        for name in ("alpha", "beta"):
            value = changed.get(name)
            if isinstance(value, int | float | complex):
                changed[name] = number(abs(value))
        return flatten_result(self.target(*(map_leaves(leaf, value) for value in args), **changed))


def _is_narrow(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() < 4
