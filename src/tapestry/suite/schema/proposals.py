"""Calls made from a schema alone: what each argument means, in scenes of tensors that belong together.

Also what existing calls lack: an optional argument at another value, an axis counted from the end, another dtype.
Not here: trying them (trial).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product, zip_longest
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from tapestry.numerics.arguments import map_leaves, tensors_in
from tapestry.suite.schema.kinds import Argument, arguments
from tapestry.suite.schema.meanings import SILENT, meant
from tapestry.suite.schema.opinfo import DTYPES, seeded
from tapestry.suite.schema.samples import Proposal
from tapestry.suite.schema.scenes import scenes
from tapestry.suite.schema.siblings import arranged

#: Combinations of required arguments tried in one scene.
COMBINATIONS = 16
#: Other values tried of one optional argument.
VALUES = 3


def from_scenes(target: OpOverload) -> list[list[Proposal]]:
    """By scene: calls with the required arguments only, and with all optional tensors; the usual values first."""
    with seeded():
        made = [(scene, [(entry, scene.values(entry)) for entry in arguments(target)]) for scene in scenes()]
    found: list[list[Proposal]] = []
    for scene, values in made:
        required = [(entry, options) for entry, options in values if entry.required]
        # Optional tensors such as a bias belong to the call as users make it.
        tensors = {entry.name: options[0] for entry, options in values if _may_have(entry) and options}
        calls: list[Proposal] = []
        for choice in _combinations([options for _, options in required]):
            given = {entry.name: value for (entry, _), value in zip(required, choice, strict=True)}
            calls.extend(Proposal(*arranged(target, more), f"schema ({scene.name})") for more in _with(given, tensors))
        found.append(calls)
    return found


def _may_have(argument: Argument) -> bool:
    return not argument.required and argument.kind == "Tensor"


def _with(given: dict[str, object], more: dict[str, object]) -> list[dict[str, object]]:
    return [given | more, given] if more else [given]


def _combinations(options: Sequence[Sequence[object]]) -> list[tuple[object, ...]]:
    """Combinations of one value each, those near the first values first."""
    if not all(options):
        return []
    ranked = islice(product(*(range(len(entry)) for entry in options)), 20_000)
    near = sorted(ranked, key=lambda places: (sum(places), places))[:COMBINATIONS]
    return [tuple(entry[place] for entry, place in zip(options, places, strict=True)) for places in near]


def meaning(argument: Argument, beside: Tensor | None) -> object:
    """The usual value of an argument beside a tensor, or NotImplemented: tensors are not made up here."""
    values = meant(argument, () if beside is None else tuple(beside.shape))
    return values[0] if values else NotImplemented


def named(target: OpOverload, call: Proposal) -> dict[str, object]:
    """The arguments that a call gives, by name."""
    return dict(zip((entry.name for entry in arguments(target)), call.args, strict=False)) | call.kwargs


def differs(argument: Argument, value: object) -> bool:
    """Whether a value given for an optional argument says something else than leaving it out."""
    if argument.required or isinstance(value, Tensor):
        return not argument.required
    if isinstance(value, list | tuple) and isinstance(argument.default, list | tuple):
        return list(value) != list(argument.default)
    return type(value) is not type(argument.default) or value != argument.default


def with_options(target: OpOverload, calls: Sequence[Proposal]) -> list[list[Proposal]]:
    """For each optional argument that no call gives another value than its default: calls that do."""
    known = [named(target, call) for call in calls]
    found: list[list[Proposal]] = []
    for argument in arguments(target):
        if argument.required or argument.name in SILENT or argument.kind == "Tensor":
            continue
        if not any(argument.name in given and differs(argument, given[argument.name]) for given in known):
            added = [_added(target, argument, call, given) for call, given in zip(calls, known, strict=True)]
            # One value after the other, each with all calls: so the first that run differ in their values.
            found.append([call for calls in zip_longest(*added) for call in calls if call is not None])
    return found


def _added(target: OpOverload, argument: Argument, call: Proposal, given: dict[str, object]) -> list[Proposal]:
    first = next(tensors_in(list(given.values())), None)
    values = meant(argument, () if first is None else first.shape)
    other = [value for value in values if value is not None and differs(argument, value)][:VALUES]
    source = f"{call.source}, {argument.name} given"
    return [Proposal(*arranged(target, given | {argument.name: value}), source) for value in other]


def from_the_end(target: OpOverload, calls: Sequence[Proposal]) -> Iterator[Proposal]:
    """Calls with a non-negative axis, with the same axis counted from the end."""
    for call in calls:
        given = named(target, call)
        first = next(tensors_in(list(given.values())), None)
        axis = given.get("dim")
        if first is not None and isinstance(axis, int) and 0 <= axis < first.dim():
            changed = given | {"dim": axis - first.dim()}
            yield Proposal(*arranged(target, changed), f"{call.source}, dim from the end")


def in_other_dtypes(calls: Sequence[Proposal], have: frozenset[torch.dtype]) -> list[list[Proposal]]:
    """By dtype that no call has yet: the calls with float32 tensors, with these in that dtype."""
    wanted = [dtype for dtype in DTYPES if dtype not in have and not dtype.is_complex]
    return [[_recast(call, dtype) for call in calls if _floating(call)] for dtype in wanted]


def _floating(call: Proposal) -> bool:
    return any(tensor.dtype == torch.float32 for tensor in tensors_in([call.args, list(call.kwargs.values())]))


def _recast(call: Proposal, dtype: torch.dtype) -> Proposal:
    args = map_leaves(lambda leaf: _in(dtype, leaf), call.args)
    kwargs = {name: map_leaves(lambda leaf: _in(dtype, leaf), value) for name, value in call.kwargs.items()}
    return Proposal(cast("tuple[object, ...]", args), kwargs, f"{call.source}, in {str(dtype)[6:]}")


def _in(dtype: torch.dtype, leaf: object) -> object:
    if not isinstance(leaf, Tensor) or leaf.dtype != torch.float32:
        return leaf
    if dtype == torch.bool:
        return leaf > 0
    # Integers of some variety, inside eight bits, and good as divisors and shifts.
    return leaf.to(dtype) if dtype.is_floating_point else (leaf * 4).abs().clamp(0, 9).ceil().to(dtype)
