"""The nodes of each origin as a group, and the values of the exported graph in the program's words.

The exported graph writes in place and through views; the decomposed one does not. A value of the first is therefore
another value of the second before and after a write. Not here: running either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch._ops import OpOverload

from tapestry.program import traits
from tapestry.program.graph import Argument, Ref, refs_in
from tapestry.program.program import Origin, Program
from tapestry.program.serial import overload_named


@dataclass(frozen=True)
class Group:
    """The nodes that one origin became.

    ``given`` names, for each value of the exported graph that the origin reads, the program's value that it was then;
    ``results`` are the values that others read or that leave the program. ``writes`` are the exported values that the
    origin writes to.
    """

    origin: Origin
    target: OpOverload
    nodes: tuple[str, ...]
    given: Mapping[Ref, Ref]
    results: tuple[Ref, ...]
    writes: tuple[Ref, ...]


@dataclass(frozen=True)
class Groups:
    """``by_node``: node id → its group, for the nodes whose origin could be followed. ``same``: exported values that
    are another one under a second name, because their call does nothing.
    """

    by_node: Mapping[str, Group]
    same: Mapping[Ref, Ref]


def groups_of(program: Program) -> Groups:
    """Follow the exported graph of a program from its first call to its last.

    A group is left out where a value that it reads cannot be followed: a view whose base was written since.
    """
    follower = _Follower(program)
    nodes: dict[str, list[str]] = {}
    for node in program.nodes:
        nodes.setdefault(node.origin, []).append(node.id)
    by_node: dict[str, Group] = {}
    for origin in program.origins.values():
        own = tuple(nodes.get(origin.name, ()))
        group = follower.step(origin, own)
        if group is not None:
            by_node.update(dict.fromkeys(own, group))
    return Groups(by_node, follower.same)


def arguments(origin: Origin) -> Iterator[Argument]:
    """The arguments of an origin, lists flattened."""
    yield from _leaves(origin.args)
    for _, value in origin.kwargs:
        yield from _leaves(value)


class _Follower:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.same: dict[Ref, Ref] = {}
        self._now: dict[Ref, Ref] = {}
        self._base: dict[Ref, Ref] = {}
        #: Values that can no longer be told.
        self._lost: set[Ref] = set()

    def step(self, origin: Origin, nodes: tuple[str, ...]) -> Group | None:
        refs = [*refs_in(origin.args), *(ref for _, value in origin.kwargs for ref in refs_in(value))]
        given = {ref: now for ref in refs if (now := self._at(ref)) is not None}
        target = overload_named(origin.op)
        writes = tuple(dict.fromkeys(_written(target, origin)))
        results = tuple(self._leaving(nodes))
        if not nodes:
            self._elided(origin, target, refs, writes)
        elif writes:
            self._after_write(origin, writes, results)
        else:
            self._after(origin, target, nodes, results, refs)
        if not nodes or len(given) < len(set(refs)):
            return None
        return Group(origin, target, nodes, given, results, writes)

    def _at(self, ref: Ref) -> Ref | None:
        if ref in self._lost:
            return None
        if ref in self._now:
            return self._now[ref]
        known = ref.name in self.program.tensors or any(entry.name == ref.name for entry in self.program.inputs)
        return ref if known and ref.item == 0 else None

    def _leaving(self, nodes: tuple[str, ...]) -> Iterator[Ref]:
        own = set(nodes)
        for node_id in nodes:
            for item in range(len(self.program.by_id[node_id].call.outputs)):
                ref = Ref(node_id, item)
                read = any(user not in own for user in self.program.users.get(ref, ()))
                if read or ref in self.program.results:
                    yield ref

    def _elided(self, origin: Origin, target: OpOverload, refs: list[Ref], writes: tuple[Ref, ...]) -> None:
        made = Ref(origin.name)
        # A view that left no node is taken again wherever it is read, so that no value of the program stands for it.
        if writes or not refs or (traits.is_view(target) and sum(1 for _ in arguments(origin)) > 1):
            self._lost.update((made, *writes))
            return
        self.same[made] = self.same.get(refs[0], refs[0])
        now = self._at(refs[0])
        if now is None:
            self._lost.add(made)
        else:
            self._now[made] = now
        self._base[made] = self._base.get(refs[0], refs[0])

    def _after(
        self, origin: Origin, target: OpOverload, nodes: tuple[str, ...], results: tuple[Ref, ...], refs: list[Ref]
    ) -> None:
        call = self.program.by_id[nodes[-1]].call
        items = range(len(call.outputs)) if call.is_tuple else (0,)
        for item in items:
            self._now[Ref(origin.name, item)] = Ref(nodes[-1], item)
        if not call.is_tuple and results and results[-1].name != nodes[-1]:
            self._now[Ref(origin.name)] = results[-1]
        if traits.is_view(target) and refs:
            base = self._base.get(refs[0], refs[0])
            self._base.update({Ref(origin.name, item): base for item in items})

    def _after_write(self, origin: Origin, writes: tuple[Ref, ...], results: tuple[Ref, ...]) -> None:
        for ref in writes:
            before = self._at(ref)
            base = self._base.get(ref)
            family = {entry for entry, root in self._base.items() if root == (base or ref)} - {ref}
            new = self._alike(before, results)
            self._settle(ref, new)
            self._settle(Ref(origin.name), new)
            self._base[Ref(origin.name)] = base or ref
            if base is not None:
                whole = self._alike(self._at(base), tuple(entry for entry in results if entry != new))
                alone = new if before is not None and self._spans(before, base) else None
                self._settle(base, whole or alone)
            for entry in family:
                self._settle(entry, None)

    def _spans(self, value: Ref, base: Ref) -> bool:
        whole = self._at(base)
        return whole is not None and self.program.spec(whole) == self.program.spec(value)

    def _alike(self, before: Ref | None, results: tuple[Ref, ...]) -> Ref | None:
        """The last result that has the shape and dtype of a value."""
        if before is None:
            return None
        spec = self.program.spec(before)
        for ref in reversed(results):
            made = self.program.spec(ref)
            if (made.shape, made.dtype) == (spec.shape, spec.dtype):
                return ref
        return None

    def _settle(self, ref: Ref, now: Ref | None) -> None:
        if now is None:
            self._lost.add(ref)
        else:
            self._lost.discard(ref)
            self._now[ref] = now


def _written(target: OpOverload, origin: Origin) -> Iterator[Ref]:
    schema = target._schema.arguments
    named = dict(origin.kwargs)
    for place, argument in enumerate(schema):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = origin.args[place] if place < len(origin.args) else named.get(argument.name)
        yield from refs_in(value)


def _leaves(value: Argument) -> Iterator[Argument]:
    if isinstance(value, tuple):
        for entry in value:
            yield from _leaves(entry)
    else:
        yield value
