"""Convex sets of nodes that a backend may be given although no pattern names them: the whole, its halves, modules.

Sets need only be convex each for itself; that those chosen together depend on each other in no cycle is seen to where
they are chosen. Not here: which backend takes which node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise

from tapestry.backends.rules.index import GraphIndex
from tapestry.program.program import Program

NodeSet = tuple[str, ...]

#: Calls of one module are taken apart where so many other calls lie between them: the module is called twice.
_GAP = 64
#: The smallest piece that the whole is halved into is this part of it.
_PIECES = 8


def convex_parts(index: GraphIndex, chosen: Collection[str]) -> list[NodeSet]:
    """The chosen calls as few convex sets as their levels give, each in execution order.

    A call's level is the largest number of times that a path to it leaves the chosen calls; it never falls along a
    path, so that nothing leads out of a level and back. Takes time in proportion to the calls between the first
    chosen one and the last.
    """
    inside = set(chosen)
    if not inside:
        return []
    places = [index.position[name] for name in inside]
    level: dict[str, int] = {}
    parts: dict[int, list[str]] = {}
    for call in index.calls[min(places) : max(places) + 1]:
        taken = call.name in inside
        level[call.name] = max(
            (level[name] + (name in inside and not taken) for name in index.before[call.name] if name in level),
            default=0,
        )
        if taken:
            parts.setdefault(level[call.name], []).append(call.name)
    return [tuple(parts[key]) for key in sorted(parts)]


def halves(nodes: NodeSet) -> Iterator[NodeSet]:
    """A convex set cut in execution order into 2, 4 and 8 pieces of about the same size; each is convex, too."""
    pieces = 2
    while pieces <= min(_PIECES, len(nodes)):
        edges = [len(nodes) * place // pieces for place in range(pieces + 1)]
        yield from (nodes[begin:end] for begin, end in pairwise(edges))
        pieces *= 2


def module_blocks(program: Program, index: GraphIndex, taken: Collection[str]) -> Iterator[NodeSet]:
    """The taken nodes of each submodule of the user's model, from the leaves of the module tree up; each set once.

    A repeated layer gives one set for each of its places, whose regions have equal keys.
    """
    ordered = index.ordered(taken)
    paths = {name: _path(program.by_id[name].source.module) for name in ordered}
    depth = max((len(path) for path in paths.values()), default=0)
    seen: set[NodeSet] = set()
    for keep in range(depth, 0, -1):
        members: dict[tuple[str, ...], list[str]] = {}
        for name in ordered:
            if len(paths[name]) >= keep:
                members.setdefault(paths[name][:keep], []).append(name)
        for names in members.values():
            for run in _runs(index, names):
                for part in convex_parts(index, run):
                    if len(part) > 1 and part not in seen:
                        seen.add(part)
                        yield part


def _path(module: str) -> tuple[str, ...]:
    return tuple(module.split(".")) if module else ()


def _runs(index: GraphIndex, names: list[str]) -> Iterator[list[str]]:
    """Names in order, taken apart where many other calls lie between two: this keeps the whole near linear."""
    run: list[str] = []
    for name in names:
        if run and index.position[name] - index.position[run[-1]] > _GAP:
            yield run
            run = []
        run.append(name)
    if run:
        yield run
