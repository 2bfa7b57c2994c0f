"""A region in the words of the exported graph: the steps that a fault is given, and the program's values in them.

Not here: running steps, right or wrong (platform).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch._ops import OpOverload

from tapestry.program.graph import Argument, Ref
from tapestry.program.groups import Group, Groups
from tapestry.program.program import Program
from tapestry.program.serial import overload_name


@dataclass(frozen=True)
class Made:
    """An argument that an earlier step of the same part made: ``item`` of result ``step`` (None: the result is one)."""

    step: int
    item: int | None


@dataclass(frozen=True)
class Outside:
    """An argument from outside of the part: ``now`` is the program's value; equal ``name`` means the same tensor."""

    name: Ref
    now: Ref


#: An argument of a step; a Ref is a Made or an Outside there.
StepArgument = Made | Outside | Argument | tuple["StepArgument", ...]

_Read = Callable[[Ref], StepArgument]


@dataclass(frozen=True)
class PartStep:
    """One call of a part. ``nodes`` are the program's nodes that it stands for, ``results`` those of their values that
    are read elsewhere; ``writes`` are arguments that it writes to.
    """

    op: str
    target: OpOverload
    args: tuple[StepArgument, ...]
    kwargs: Mapping[str, StepArgument]
    nodes: tuple[str, ...]
    results: tuple[Ref, ...]
    writes: tuple[StepArgument, ...] = ()


def steps_of(program: Program, groups: Groups, nodes: Sequence[str]) -> tuple[PartStep, ...]:
    """The steps of a region, in order: one for each origin that lies in it wholly, one for each other node."""
    return _Reader(program, groups, nodes).steps


class _Reader:
    def __init__(self, program: Program, groups: Groups, nodes: Sequence[str]) -> None:
        self.program, self.groups = program, groups
        self.nodes = tuple(nodes)
        self._chosen = set(nodes)
        self._made: list[PartStep] = []
        #: Exported values made by steps, and the program's values that steps made.
        self._exported: dict[Ref, Made] = {}
        self._of_program: dict[Ref, Made] = {}
        self._outside: dict[Ref, Outside] = {}

    @cached_property
    def steps(self) -> tuple[PartStep, ...]:
        done: set[str] = set()
        for node_id in self.nodes:
            if node_id in done:
                continue
            group = self.groups.by_node.get(node_id)
            if group is not None and set(group.nodes) <= self._chosen:
                self._add_group(group)
                done.update(group.nodes)
            else:
                self._add_node(node_id)
        return tuple(self._made)

    def _add_group(self, group: Group) -> None:
        def read(ref: Ref) -> StepArgument:
            root, now = self.groups.same.get(ref, ref), group.given[ref]
            if now.name not in self._chosen:
                return self._outside.setdefault(root, Outside(root, now))
            # What was written inside of the part is still the tensor that it was before.
            return (
                self._exported.get(ref) or self._exported.get(root) or self._outside.get(root) or self._of_program[now]
            )

        origin = group.origin
        args = tuple(_mapped(value, read) for value in origin.args)
        kwargs = {name: _mapped(value, read) for name, value in origin.kwargs}
        writes = tuple(read(ref) for ref in group.writes)
        place = len(self._made)
        self._made.append(PartStep(origin.op, group.target, args, kwargs, group.nodes, group.results, writes))
        several = len(group.target._schema.returns) > 1 or "[]" in str(group.target._schema.returns[0].type)
        last = self.program.by_id[group.nodes[-1]].call
        items: Sequence[int | None] = range(len(last.outputs)) if several else (None,)
        for item in items:
            self._exported[Ref(origin.name, item or 0)] = Made(place, item)
        for ref in group.results:
            if several:
                self._of_program[ref] = Made(place, ref.item)
            else:
                self._of_program.setdefault(ref, Made(place, None))

    def _add_node(self, node_id: str) -> None:
        call = self.program.by_id[node_id].call

        def read(ref: Ref) -> StepArgument:
            return self._of_program.get(ref) or Outside(ref, ref)

        args = tuple(_mapped(value, read) for value in call.args)
        kwargs = {name: _mapped(value, read) for name, value in call.kwargs}
        place = len(self._made)
        refs = tuple(Ref(node_id, item) for item, spec in enumerate(call.outputs) if spec is not None)
        self._made.append(PartStep(overload_name(call.target), call.target, args, kwargs, (node_id,), refs))
        for ref in refs:
            self._of_program[ref] = Made(place, ref.item if call.is_tuple else None)


def _mapped(value: Argument, read: _Read) -> StepArgument:
    if isinstance(value, Ref):
        return read(value)
    if isinstance(value, tuple):
        return tuple(_mapped(entry, read) for entry in value)
    return value
