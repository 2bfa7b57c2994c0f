"""Regions: sets of nodes with their inputs and outputs, what a backend compiles; and the checks on cutting a graph.

Not here: which regions to choose (placement) and patterns over them (backends).
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tapestry.errors import UsageError
from tapestry.program.graph import Argument, Call, Graph, GraphInput, Ref, operands
from tapestry.program.program import Program, tensor_digest
from tapestry.program.serial import dumps


@dataclass(frozen=True)
class Region:
    """Nodes of a program in execution order, with the values they read from outside and hand to the outside.

    Make one with ``region_of``. Equal layers have equal ``graph`` and ``key``.
    """

    program: Program
    nodes: tuple[str, ...]
    inputs: tuple[Ref, ...]
    outputs: tuple[Ref, ...]

    @cached_property
    def graph(self) -> Graph:
        """The region with inputs named i0, i1 … and calls n0, n1 …, in order of first use."""
        names = {ref: Ref(f"i{place}") for place, ref in enumerate(self.inputs)}
        for place, node_id in enumerate(self.nodes):
            for item in range(len(self.program.by_id[node_id].call.outputs)):
                names[Ref(node_id, item)] = Ref(f"n{place}", item)
        inputs = tuple(
            GraphInput(names[ref].name, self.program.spec(ref), self.program.is_constant(ref)) for ref in self.inputs
        )
        calls = tuple(
            renamed(self.program.by_id[node_id].call, f"n{place}", names) for place, node_id in enumerate(self.nodes)
        )
        return Graph(inputs, calls, tuple(names[ref] for ref in self.outputs))

    @cached_property
    def key(self) -> str:
        """A hash of operators, attributes, edges, shapes, strides, dtypes and which inputs are constant."""
        return hashlib.sha256(dumps(self.graph)).hexdigest()

    def key_with_constants(self, values: Mapping[str, str] | None = None) -> str:
        """``key`` extended by the content of the region's constant inputs, for backends that fold them.

        ``values`` gives the digests of folded nodes' results by ``name.item``, which the program does not hold;
        UsageError when it lacks one.
        """
        total = hashlib.sha256(self.key.encode())
        for ref in self.inputs:
            if not self.program.is_constant(ref):
                continue
            if ref.name in self.program.tensors:
                total.update(tensor_digest(self.program.tensors[ref.name]).encode())
                continue
            digest = (values or {}).get(f"{ref.name}.{ref.item}")
            if digest is None:
                raise UsageError(f"expected the digest of the folded value {ref.name}.{ref.item} in values, got none")
            total.update(digest.encode())
        return total.hexdigest()


def renamed(call: Call, name: str, names: Mapping[Ref, Ref]) -> Call:
    """The call under another name, with every value it reads replaced as ``names`` says."""

    def swap(value: Argument) -> Argument:
        if isinstance(value, Ref):
            return names[value]
        return tuple(swap(entry) for entry in value) if isinstance(value, tuple) else value

    args = tuple(swap(value) for value in call.args)
    kwargs = tuple((key, swap(value)) for key, value in call.kwargs)
    return Call(name, call.target, args, kwargs, call.outputs, call.is_tuple)


def region_of(program: Program, nodes: Iterable[str]) -> Region:
    """The region made of these nodes. UsageError when a node is unknown or folded, or the set is not convex."""
    chosen = set(nodes)
    _check_known(program, chosen)
    if not chosen:
        raise UsageError("expected at least one node for a region, got none")
    folded = chosen & program.folded
    if folded:
        raise UsageError(f"folded nodes are constants and belong to no region: {sorted(folded)[:3]}")
    crossing = path_outside(program, chosen)
    if crossing is not None:
        raise UsageError(f"the nodes are not convex: a path leaves them and comes back at {crossing}")
    ordered = tuple(sorted(chosen, key=program.position.__getitem__))
    inputs: dict[Ref, None] = {}
    for node_id in ordered:
        inputs.update((ref, None) for ref in operands(program.by_id[node_id].call) if ref.name not in chosen)
    outputs = tuple(ref for node_id in ordered for ref in _leaving(program, node_id, chosen))
    return Region(program, ordered, tuple(inputs), outputs)


def _check_known(program: Program, nodes: Iterable[str]) -> None:
    unknown = sorted(set(nodes) - program.by_id.keys())
    if unknown:
        raise UsageError(f"expected node ids of {program.name}, got {unknown[:3]}")


def _leaving(program: Program, node_id: str, chosen: set[str]) -> Iterable[Ref]:
    for item, spec in enumerate(program.by_id[node_id].call.outputs):
        ref = Ref(node_id, item)
        if spec is None:
            continue
        if ref in program.results or any(user not in chosen for user in program.users.get(ref, ())):
            yield ref


def path_outside(program: Program, chosen: set[str]) -> str | None:
    """The first chosen node that a path through nodes outside comes back to, or None when the set is convex."""
    places = [program.position[node_id] for node_id in chosen]
    tainted: set[str] = set()
    for node in program.nodes[min(places, default=0) : max(places, default=-1) + 1]:
        above = [ref.name for ref in operands(node.call)]
        if node.id in chosen:
            if any(name in tainted for name in above):
                return node.id
        elif any(name in tainted or name in chosen for name in above):
            tainted.add(node.id)
    return None


def quotient_order(program: Program, groups: Iterable[Iterable[str]]) -> tuple[tuple[str, ...], ...]:
    """The groups of nodes in an order in which each can run after those it reads from.

    The groups must be disjoint; nodes in no group stand alone (folded nodes are left out). Ready groups are taken
    in the order of their last node, so that the order is the program's where there is a choice. Random nodes keep
    their order among each other.
    UsageError when a node is unknown or in two groups, and when the groups depend on each other in a cycle.
    """
    home: dict[str, int] = {}
    members: list[tuple[str, ...]] = []
    for group in groups:
        named = tuple(group)
        _check_known(program, named)
        ordered = tuple(sorted(named, key=program.position.__getitem__))
        if not ordered:
            continue
        for node_id in ordered:
            if node_id in home:
                raise UsageError(f"node {node_id} is in two regions")
            home[node_id] = len(members)
        members.append(ordered)
    for node in program.nodes:
        if node.id not in home and node.id not in program.folded:
            home[node.id] = len(members)
            members.append((node.id,))
    needs = [_needed(program, group, home) - {place} for place, group in enumerate(members)]
    for node_id, before in program.random_before.items():
        if home[node_id] != home[before]:
            needs[home[node_id]].add(home[before])
    order = _topological(needs, [program.position[group[-1]] for group in members])
    if order is None:
        raise UsageError("the regions depend on each other in a cycle")
    return tuple(members[place] for place in order)


def _needed(program: Program, group: tuple[str, ...], home: Mapping[str, int]) -> set[int]:
    return {home[ref.name] for node_id in group for ref in operands(program.by_id[node_id].call) if ref.name in home}


def _topological(needs: list[set[int]], rank: list[int]) -> list[int] | None:
    waiting = [len(entry) for entry in needs]
    readers: list[list[int]] = [[] for _ in needs]
    for place, entry in enumerate(needs):
        for needed in entry:
            readers[needed].append(place)
    ready = [(rank[place], place) for place, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, place = heapq.heappop(ready)
        order.append(place)
        for reader in readers[place]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, (rank[reader], reader))
    return order if len(order) == len(needs) else None
