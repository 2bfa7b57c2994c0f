"""One call of several, followed in float64: its results as Values, with the error that the call adds and what its
operands' errors make of them. Views share memory and writes are seen through them, as in the program.

Not here: comparing a platform's results with them (judging, chain_judging).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from tapestry.errors import UnsupportedError
from tapestry.numerics.arguments import bind, eager_results, flatten_result, operator_name
from tapestry.numerics.call_bound import bound_of
from tapestry.numerics.facts import CallFacts
from tapestry.numerics.float64 import oracle, to_oracle_dtype
from tapestry.numerics.formats import is_inexact, smallest_normal
from tapestry.numerics.no_oracle import NoOracle
from tapestry.numerics.products import is_sum
from tapestry.numerics.tolerance import EXACT, class_of
from tapestry.numerics.undefined import is_free, undefined_positions
from tapestry.program.traits import is_view
from tapestry.suite.composition.carried import Operand, Reach, carried
from tapestry.suite.composition.close_calls import close_positions
from tapestry.suite.composition.values import Arguments, Value, no_bound, no_doubt

_CASTS = frozenset({"to", "type_as", "_to_copy"})


@dataclass(frozen=True)
class Narrow:
    """A call whose operands are certain: what numerics.judge needs to judge its results by themselves."""

    target: OpOverload
    args: tuple[object, ...]
    kwargs: dict[str, object]
    want: tuple[Tensor | None, ...] | None


@dataclass(frozen=True)
class Followed:
    """The results of one call, flat (None for what is no tensor), and the call itself where it can be judged alone."""

    values: tuple[Value | None, ...]
    alone: Narrow | None


def follow(target: OpOverload, arguments: Arguments, declared: Sequence[torch.dtype | None], column: str) -> Followed:
    """The results of a call on Values; ``declared`` are the dtypes of the flat results in the program.

    ``column`` is ``careful`` or ``allowed``: which errors of the calls before are bounded, and whose bound is taken.
    An in-place call changes the Value that it writes to, and returns it.
    Raises UnsupportedError for a mutating call whose results are not the tensors that it writes.
    """
    if _is_same(target, arguments, declared):
        return Followed(_viewed(target, arguments, declared), None)
    written = _written(target, arguments)
    narrow_args, narrow_kwargs = arguments.filled([value.rounded for value in arguments.values])
    facts = CallFacts(target, narrow_args, narrow_kwargs)
    certain = all(value.certain for value in arguments.values)
    run = _Run(target, arguments, certain)
    want, reason = run.expected(narrow_args, narrow_kwargs)
    alone = Narrow(target, narrow_args, narrow_kwargs, None if reason else tuple(want)) if certain else None
    if reason:
        values = tuple(_unknown(entry, dtype, certain) for entry, dtype in zip(want, declared, strict=False))
        return Followed(_kept(written, values), alone)
    carried_over = [(no_bound(entry), no_doubt(entry)) if entry is not None else None for entry in want]
    if not certain:
        operands = [
            Operand(exact, value.bound, doubt) for value, (exact, doubt) in zip(arguments.values, run.read, strict=True)
        ]
        carried_over = carried(run, operands, want, _reach(facts))
    values = tuple(
        None
        if entry is None or dtype is None or over is None
        else _result(facts, run, index, entry, dtype, column, over)
        for index, (entry, dtype, over) in enumerate(zip(want, declared, carried_over, strict=False))
    )
    return Followed(_kept(written, values), alone)


class _Run:
    """The call in float64, on its operands or on others in their places."""

    def __init__(self, target: OpOverload, arguments: Arguments, certain: bool) -> None:
        self.target, self.arguments, self.certain = target, arguments, certain
        self.read = [value.read() for value in arguments.values]
        self.declared = next((value.dtype for value in arguments.values if is_inexact(value.dtype)), None)

    def expected(
        self, narrow_args: tuple[object, ...], narrow_kwargs: dict[str, object]
    ) -> tuple[Sequence[Tensor | None], str]:
        """The exact results; or eager's, widened, and why there is no oracle."""
        try:
            if self.certain:
                return oracle(self.target, narrow_args, narrow_kwargs), ""
            return self([exact for exact, _ in self.read]), ""
        except NoOracle as error:
            results = eager_results(self.target, narrow_args, narrow_kwargs)
            return [None if entry is None else to_oracle_dtype(entry) for entry in results], str(error)

    def __call__(self, tensors: Sequence[Tensor]) -> Sequence[Tensor | None]:
        args, kwargs = self.arguments.filled(tensors)
        return oracle(self.target, args, kwargs, self.declared)


def _result(
    facts: CallFacts,
    run: _Run,
    index: int,
    want: Tensor,
    dtype: torch.dtype,
    column: str,
    over: tuple[Tensor, Tensor],
) -> Value:
    bound, doubtful = over
    if is_inexact(dtype):
        bound = bound + _own_bound(facts, run, index, want, dtype, column)
        if column == "allowed":  # subnormals may be flushed to zero, also by what only copies
            bound = torch.where(want.abs() < smallest_normal(dtype), torch.maximum(bound, want.abs()), bound)
            bound = torch.maximum(bound, _source_error(facts, index, want))
    bound = torch.where(torch.isfinite(want), bound, 0.0) if is_inexact(want.dtype) else bound
    value = Value(want, _laid_out(bound, want), _laid_out(doubtful, want), dtype)
    for mask in (_undefined(facts, index, dtype), _close(facts, run, index, want)):
        if mask is not None:
            value = value.doubted(mask)
    return value


def _laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy, expanded to the shape and laid out with the strides of ``like``: views are then possible on both."""
    if like.numel() == 0:
        return torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype)
    return torch.empty_like(like, dtype=tensor.dtype).copy_(tensor.expand(like.shape))


def _own_bound(facts: CallFacts, run: _Run, index: int, want: Tensor, dtype: torch.dtype, column: str) -> Tensor:
    own = bound_of(facts.target, facts.args, facts.kwargs, index, want, dtype)
    if own.kind == EXACT and not run.certain:
        # A copy of an inexact value has been rounded before, where its bound says so.
        widths = [value.dtype.itemsize for value in run.arguments.values if is_inexact(value.dtype)]
        if widths and max(widths) <= dtype.itemsize:
            return torch.zeros((), dtype=torch.float64)
    return own.careful if column == "careful" else own.allowed


def _source_error(facts: CallFacts, index: int, want: Tensor) -> Tensor:
    """How far eager itself is off on the rounded operands: no platform is blamed for that, nor for what follows."""
    results = eager_results(facts.target, facts.args, facts.kwargs)
    source = results[index] if index < len(results) else None
    if source is None or source.shape != want.shape:
        return torch.zeros((), dtype=torch.float64)
    return (source.to(want.dtype) - want).abs().to(torch.float64).nan_to_num(nan=0.0, posinf=0.0)


def _undefined(facts: CallFacts, index: int, dtype: torch.dtype) -> Tensor | None:
    if is_free(facts, index):
        return torch.ones((), dtype=torch.bool)
    found = undefined_positions(facts, dtype)
    return None if found is None else found[0]


def _close(facts: CallFacts, run: _Run, index: int, want: Tensor) -> Tensor | None:
    if not run.read:
        return None
    return close_positions(facts, index, run.read[0][0], run.arguments.values[0].bound, want)


def _reach(facts: CallFacts) -> Reach:
    if is_sum(facts) and not facts.has_complex:
        return Reach.LINEAR
    if class_of(facts) == EXACT or torch.Tag.pointwise in facts.target.tags:
        return Reach.MONOTONE
    return Reach.MIXED


def _unknown(entry: Tensor | None, dtype: torch.dtype | None, certain: bool) -> Value | None:
    """A result without an oracle: nothing is known of it but shape and dtype."""
    if entry is None or dtype is None:
        return None
    return Value(entry, no_bound(entry), torch.ones(entry.shape, dtype=torch.bool), dtype)


# ---- views and writes --------------------------------------------------------------------------------------------


def _is_same(target: OpOverload, arguments: Arguments, declared: Sequence[torch.dtype | None]) -> bool:
    """Whether the call only shows its one operand again: a view, or a cast to the dtype that it has."""
    if not is_view(target) or len(arguments.values) == 0 or arguments.values[0].dtype.is_complex:
        return False
    value = arguments.values[0]
    if any(dtype is not None and dtype != value.dtype for dtype in declared):
        return False
    if operator_name(target) in _CASTS:
        return bind(target, arguments.args, arguments.kwargs).get("copy") is not True
    return len(arguments.values) == 1


def _viewed(
    target: OpOverload, arguments: Arguments, declared: Sequence[torch.dtype | None]
) -> tuple[Value | None, ...]:
    value = arguments.values[0]
    if operator_name(target) in _CASTS:
        return (value,)

    def show(tensor: Tensor) -> tuple[Tensor | None, ...]:
        args, kwargs = arguments.filled([tensor])
        return flatten_result(target(*args, **kwargs))

    given = [None] * len(declared) if value.given is None else show(value.given)
    parts = zip(show(value.exact), show(value.bound), show(value.doubtful), given, strict=True)
    return tuple(
        Value(cast(Tensor, exact), cast(Tensor, bound), cast(Tensor, doubt), value.dtype, own)
        for exact, bound, doubt, own in parts
    )


def _written(target: OpOverload, arguments: Arguments) -> list[Value]:
    """The values that a mutating call writes to, in the order of its results; empty for any other call."""
    schema = target._schema
    if not schema.is_mutable:
        return []
    wrote = [entry.name for entry in schema.arguments if entry.alias_info is not None and entry.alias_info.is_write]
    returned = [entry for entry in schema.returns if entry.alias_info is not None and entry.alias_info.is_write]
    names = [entry.name for entry in schema.arguments]
    bound = {**dict(zip(names, arguments.args, strict=False)), **arguments.kwargs}
    values = [bound.get(name) for name in wrote]
    found = [value for value in values if isinstance(value, Value)]
    if len(found) != len(wrote) or len(returned) != len(wrote) or len(schema.returns) != len(wrote):
        raise UnsupportedError(f"{operator_name(target)} writes to what it does not return")
    return found


def _kept(written: Sequence[Value], results: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
    """Write the results where an in-place call puts them."""
    if not written:
        return results
    for value, result in zip(written, results, strict=True):
        if result is None:
            continue
        value.exact.copy_(result.exact)
        value.bound.copy_(result.bound)
        value.doubtful.copy_(result.doubtful)
    return tuple(written)
