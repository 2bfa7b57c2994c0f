"""Chains: parts of several ATen calls as lists of steps, run on copies of their tensors, by PyTorch or by a fault.

The records have the attributes of those that faults with `ops` take (a step's op, args and kwargs; a reference to an
earlier result). Not here: making chains (chains) and judging them (chain_judging).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from tapestry.errors import UsageError
from tapestry.program.serial import overload_named
from tapestry.suite.composition.values import with_storage


@dataclass(frozen=True)
class Ref:
    """The result of an earlier step of the same call, or one item of it if that is a tuple or list."""

    index: int
    item: int | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """One ATen call of a part; arguments may hold Refs and tensors. A tensor that several steps name is shared."""

    op: str
    args: tuple[object, ...]
    kwargs: dict[str, object]


@dataclass(frozen=True, eq=False)
class Chain:
    """Consecutive calls of one part.

    ``calls``: the steps of each call; tensors may be shared between calls, and are state where a step writes to them.
    ``outputs``: for each call the results that leave the part. ``states``: the tensors from outside that are written.
    """

    name: str
    calls: tuple[tuple[Step, ...], ...]
    outputs: tuple[tuple[Ref, ...], ...]
    states: tuple[Tensor, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the first call."""
        return self.calls[0]


@dataclass(frozen=True)
class Ran:
    """What a run of a chain left, copied after its last call: the outputs of each call, and the states."""

    outputs: tuple[tuple[object, ...], ...]
    states: tuple[Tensor, ...]


#: Runs one call: takes its steps, returns the list of their results.
Apply = Callable[[list[Any]], Sequence[object]]


def run_chain(chain: Chain) -> Ran:
    """Run a chain in PyTorch on copies of its tensors."""
    return _run(chain, run_steps)


def run_fault(chain: Chain, fault: object) -> Ran:
    """Run a chain through a fault's ``apply(steps)``, on copies of its tensors.

    The steps are given as the fault's own records: those called Step and Ref where its ``apply`` is defined. Whatever
    ``apply`` raises is passed on; UsageError when it gives another number of results than there are steps.
    """
    return _run(chain, lambda steps: apply_fault(fault, steps))


def apply_fault(fault: object, steps: Sequence[Step]) -> Sequence[object]:
    """The results of steps by a fault's ``apply(steps)``, on the very tensors they name. Errors as run_fault."""
    records = records_of(fault)
    results = cast(Any, fault).apply([_recorded(step, records) for step in steps])
    if len(results) != len(steps):
        raise UsageError(f"expected a result for each of {len(steps)} steps, got {len(results)}")
    return results


def run_steps(steps: Sequence[Step]) -> list[object]:
    """The right results of steps, on the very tensors they name."""
    results: list[object] = []
    with torch.no_grad():
        for step in steps:
            args = tuple(filled(value, results) for value in step.args)
            kwargs = {name: filled(value, results) for name, value in step.kwargs.items()}
            results.append(overload_named(step.op)(*args, **kwargs))
    return results


def filled(value: object, results: Sequence[object]) -> object:
    """An argument with each Ref replaced by the result it names."""
    if isinstance(value, Ref):
        found = results[value.index]
        return found if value.item is None else cast("Sequence[object]", found)[value.item]
    return mapped(value, lambda entry: filled(entry, results) if isinstance(entry, Ref) else entry)


def mapped(value: object, change: Callable[[object], object]) -> object:
    """An argument with every leaf changed, lists and tuples kept."""
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        entries = [mapped(entry, change) for entry in cast("Sequence[object]", value)]
        return entries if isinstance(value, list) else tuple(entries)
    return change(value)


def leaves(value: object) -> Iterator[object]:
    """All leaves of an argument, in order."""
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        for entry in cast("Sequence[object]", value):
            yield from leaves(entry)
    elif isinstance(value, Mapping):
        yield from leaves(list(cast("Mapping[str, object]", value).values()))
    else:
        yield value


def step_leaves(step: Step) -> Iterator[object]:
    """All leaves of a step's arguments, in order."""
    yield from leaves(step.args)
    yield from leaves(step.kwargs)


def changed(step: Step, change: Callable[[object], object]) -> Step:
    """The step with every leaf of its arguments changed."""
    args = tuple(mapped(value, change) for value in step.args)
    return Step(step.op, args, {name: mapped(value, change) for name, value in step.kwargs.items()})


class Copies:
    """Copies of tensors: one for each tensor, and memory is shared among them as it is among the originals."""

    def __init__(self, copy: Callable[[Tensor], Tensor] = torch.clone) -> None:
        """``copy`` makes a storage's copy from the flat original; it may change the dtype."""
        self._copy = copy
        self._storages: dict[tuple[int, torch.dtype], Tensor] = {}
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """The copy of a tensor; the same one every time."""
        if id(tensor) not in self._tensors:
            self._tensors[id(tensor)] = (tensor, self._made(tensor))
        return self._tensors[id(tensor)][1]

    def _made(self, tensor: Tensor) -> Tensor:
        place = (tensor.untyped_storage().data_ptr(), tensor.dtype)
        if place not in self._storages or not place[0]:
            self._storages[place] = with_storage(tensor, self._copy)
        return self._storages[place].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def step(self, step: Step) -> Step:
        """The step on copies."""
        return changed(step, lambda leaf: self.of(leaf) if isinstance(leaf, Tensor) else leaf)


def records_of(fault: object) -> tuple[type[Any], type[Any]]:
    """The classes called Step and Ref where a fault's ``apply`` is defined; this module's where there are none."""
    for part in (getattr(fault, name, None) for name in ("apply", "reveal", "usual")):
        scope = _globals_of(part)
        step, ref = scope.get("Step"), scope.get("Ref")
        if isinstance(step, type) and isinstance(ref, type):
            return step, ref
    return Step, Ref


def _globals_of(part: object) -> Mapping[str, object]:
    """The module scope of a function, through partials, wrappers, methods and callable objects."""
    for _ in range(8):
        inner = getattr(part, "func", None) or getattr(part, "__wrapped__", None) or getattr(part, "__func__", None)
        if inner is None:
            break
        part = inner
    scope = getattr(part, "__globals__", None)
    if scope is None:
        scope = getattr(vars(type(part)).get("__call__"), "__globals__", None)
    return cast("Mapping[str, object]", scope or {})


def _run(chain: Chain, apply: Apply) -> Ran:
    copies = Copies()
    held: list[list[object]] = []
    for steps, outputs in zip(chain.calls, chain.outputs, strict=True):
        results = apply([copies.step(step) for step in steps])
        held.append([filled(ref, results) for ref in outputs])
    kept = tuple(tuple(_kept(entry) for entry in results) for results in held)
    return Ran(kept, tuple(copies.of(state).clone() for state in chain.states))


def _recorded(step: Step, records: tuple[type[Any], type[Any]]) -> Any:
    made, ref = records
    if made is Step:
        return step
    own = changed(step, lambda leaf: ref(leaf.index, leaf.item) if isinstance(leaf, Ref) else leaf)
    return made(own.op, own.args, own.kwargs)


def _kept(value: object) -> object:
    return value.detach().clone() if isinstance(value, Tensor) else value
