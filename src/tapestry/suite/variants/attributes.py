"""The same call with other arguments: each optional one left out, and at each other value that means something.

What a value means is read from the argument's name and type in the schema, never from a list of operators. Eager has
the last word on a proposal. Not here: the values themselves, one module for each type of argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest

import torch

from tapestry.numerics.arguments import operator_name
from tapestry.suite.variants.attributes_binding import Parameter, changed, given, parameters
from tapestry.suite.variants.attributes_dims import dim_values, dims_values
from tapestry.suite.variants.attributes_lists import list_values
from tapestry.suite.variants.attributes_numbers import single_values
from tapestry.suite.variants.attributes_tensors import index_lists, tensor_values
from tapestry.suite.variants.attributes_together import together
from tapestry.suite.variants.call import Kind, OpCall, Variant
from tapestry.suite.variants.meaning import AttributeRole, attribute_role
from tapestry.suite.variants.shape_base import small
from tapestry.suite.variants.shape_links import in_range
from tapestry.suite.variants.shape_ranks import more
from tapestry.suite.variants.shape_trial import one_thread

#: The most variants of attributes that one call gets.
MOST_ATTRIBUTES = 60
#: The most values of one argument.
_MOST_VALUES = 10


@dataclass(frozen=True)
class Proposal:
    """Arguments to set and to leave out, under a label."""

    label: str
    changes: Mapping[str, object] = field(default_factory=dict[str, object])
    left_out: tuple[str, ...] = ()


def attribute_variants(call: OpCall) -> Iterator[Variant]:
    """Variants with other arguments, the most telling first: arguments in turn, each by its most telling value.

    They start from the call made small, and from the same with one leading dim more. Never raises for a call that
    eager takes.
    """
    with one_thread():
        base = small(call)
        lifted = more(base)
        found = [*_in_turn(base)]
        if lifted is not None:
            rank = max((tensor.dim() for tensor in lifted.tensors), default=0)
            found = _merged(found, [(lifted, f" at rank {rank}", entry) for _, _, entry in _dims_only(lifted)])
    variants: dict[str, Variant] = {}
    for start, suffix, proposal in found:
        name = f"attr {proposal.label}{suffix}"
        if name not in variants and len(variants) < MOST_ATTRIBUTES:
            variants[name] = _variant(name, len(variants), start, proposal)
    yield from variants.values()


_Row = tuple[OpCall, str, Proposal]


def _variant(name: str, rank: int, call: OpCall, proposal: Proposal) -> Variant:
    def build() -> OpCall:
        return in_range(changed(call, proposal.changes, proposal.left_out), name, call)

    return Variant(name, Kind.ATTRIBUTES, rank, build)


def _in_turn(call: OpCall) -> list[_Row]:
    """The first proposal of each argument, then the second of each; those about several arguments among them."""
    columns = [list(_of_argument(call, row)) for row in parameters(call.target)]
    several = [Proposal(label, changes) for label, changes in together(call)]
    columns += [several[::2], several[1::2]]  # two of these a turn: each tells about several arguments
    rows = chain.from_iterable(zip_longest(*columns))
    return [(call, "", proposal) for proposal in rows if proposal is not None]


def _dims_only(call: OpCall) -> list[_Row]:
    """What the leading dim adds: dims in the middle, several dims, index lists over three dims."""
    wanted = (AttributeRole.DIM, AttributeRole.DIMS)
    columns = [
        list(_of_argument(call, row))
        for row in parameters(call.target)
        if attribute_role(row.name, row.kind) in wanted or row.kind == "List[Optional[Tensor]]"
    ]
    return [(call, "", proposal) for proposal in chain.from_iterable(zip_longest(*columns)) if proposal is not None]


def _merged(first: list[_Row], second: list[_Row]) -> list[_Row]:
    """Two of the first list, then one of the second."""
    merged: list[_Row] = []
    rest = iter(second)
    for place, row in enumerate(first):
        merged.append(row)
        if place % 2:
            merged += [entry for entry in [next(rest, None)] if entry is not None]
    return [*merged, *rest]


def _of_argument(call: OpCall, row: Parameter) -> Iterator[Proposal]:
    """Proposals about one argument: left out, then its other values."""
    values = given(call)
    value = values.get(row.name, row.default)
    if row.has_default and row.name in values and not _same(values[row.name], row.default):
        yield Proposal(f"without {row.name}", left_out=(row.name,))
    if "Tensor" in row.kind:
        for label, tensor in tensor_values(call, row, value):
            yield Proposal(f"{row.name} {label}", {row.name: tensor})
        for label, changes in index_lists(call, row, value):
            yield Proposal(f"{row.name} {label}", changes)
        return
    count = 0
    for other in _other_values(call, row, value):
        if _same(other, value) or count >= _MOST_VALUES:
            continue
        count += 1
        yield Proposal(f"{row.name}={str(other).removeprefix('torch.')}", {row.name: other})


def _other_values(call: OpCall, row: Parameter, value: object) -> Iterator[object]:
    role = attribute_role(row.name, row.kind, operator_name(call.target))
    if row.kind == "int" and role == AttributeRole.DIM:
        yield from dim_values(call, row, value)
    elif row.kind == "List[int]" and role in (AttributeRole.DIM, AttributeRole.DIMS):
        yield from dims_values(call, row, value)
    elif row.kind.startswith("List["):
        yield from list_values(call, row, role, value)
    else:
        yield from single_values(call, row, role, value)


def _same(one: object, other: object) -> bool:
    """Whether two values are one to a call: 1 and True are not, [1] and (1,) are."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return [*one] == [*other]  # pyright: ignore
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    return type(one) is type(other) and one == other
