"""What cases of one operator have in common: which arguments are tensors, of which types, and which results are read.

A kernel is written for one form. Not here: its text (text).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tapestry.backends.rules.arguments import argument, default, same
from tapestry.program.graph import Argument, Call, Graph, Ref, refs_in
from tapestry.program.serial import dtype_name
from tapestry.suite.case import Case


@dataclass(frozen=True)
class Slot:
    """An argument that is a tensor, or a list with tensors: its schema name and the dtypes, None for no tensor."""

    name: str
    dtypes: tuple[str | None, ...]
    listed: bool = False

    @property
    def captures(self) -> tuple[tuple[str, str], ...]:
        """The name and the dtype of each tensor, as a pattern captures them."""
        if not self.listed:
            return tuple((self.name, dtype) for dtype in self.dtypes if dtype is not None)
        return tuple((f"{self.name}{place}", dtype) for place, dtype in enumerate(self.dtypes) if dtype is not None)


@dataclass(frozen=True)
class Form:
    """``slots`` are the arguments with tensors; ``results`` pairs of the number and dtype of each result that is read.

    ``made`` are the dtypes of all results that the operator makes.
    """

    slots: tuple[Slot, ...]
    results: tuple[tuple[int, str], ...]
    made: tuple[str, ...]

    @property
    def captures(self) -> tuple[tuple[str, str], ...]:
        """The name and the dtype of every tensor that is read."""
        return tuple(entry for slot in self.slots for entry in slot.captures)

    @property
    def dtypes(self) -> frozenset[str]:
        """Every dtype of a tensor that is read or made."""
        return frozenset([*(dtype for _, dtype in self.captures), *self.made])


def form_of(graph: Graph) -> Form:
    """The form of a graph of one call."""
    (call,) = graph.calls
    dtypes = {Ref(entry.name): dtype_name(entry.spec.dtype) for entry in graph.inputs}
    results = tuple((ref.item, dtype_name(graph.spec(ref).dtype)) for ref in graph.outputs)
    made = tuple(dtype_name(spec.dtype) for spec in call.outputs if spec is not None)
    return Form(tuple(_slots(call, dtypes)), results, made)


def by_form(cases: Sequence[Case]) -> dict[Form, list[Case]]:
    """The cases of one operator by their form, that with most carved cases first."""
    found: dict[Form, list[Case]] = {}
    for case in cases:
        found.setdefault(form_of(case.load_graph()), []).append(case)
    order = sorted(found, key=lambda form: (-sum(not case.base for case in found[form]), -len(found[form])))
    return {form: found[form] for form in order}


def attributes(call: Call) -> dict[str, Argument]:
    """The arguments that hold no tensor, by schema name, defaults included."""
    names = [entry.name for entry in call.target._schema.arguments]
    values = {name: argument(call, name) for name in names}
    return {name: value for name, value in values.items() if not any(True for _ in refs_in(value))}


def varying(calls: Sequence[Call]) -> tuple[str, ...]:
    """The attributes that are not their defaults in all these calls of one operator."""
    target = calls[0].target
    needed = {entry.name for entry in target._schema.arguments if not entry.has_default_value()}
    given = [attributes(call) for call in calls]
    return tuple(
        name
        for name in given[0]
        if name in needed or not all(same(entry.get(name), default(target, name)) for entry in given)
    )


def _slots(call: Call, dtypes: Mapping[Ref, str]) -> Iterator[Slot]:
    for entry in call.target._schema.arguments:
        value = argument(call, entry.name)
        if isinstance(value, Ref):
            yield Slot(entry.name, (dtypes[value],))
        elif isinstance(value, tuple) and any(isinstance(part, Ref) for part in value):
            yield Slot(entry.name, tuple(dtypes[part] if isinstance(part, Ref) else None for part in value), True)
