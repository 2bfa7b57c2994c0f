"""What makes a set of calls a region: nothing inside is read outside unless declared, and no path leaves and returns.

Not here: which sets to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tapestry.backends.rules.index import GraphIndex
from tapestry.program.graph import Ref


def swallowed(index: GraphIndex, nodes: Collection[str], is_output: Callable[[Ref], bool]) -> str | None:
    """Which value inside ``nodes`` something outside still reads although it is no declared output; None if none."""
    for name in index.ordered(nodes):
        for item in range(len(index.by_name[name].outputs)):
            ref = Ref(name, item)
            if is_output(ref):
                continue
            if ref in index.results:
                return f"value of {text(ref)} is also a result of the graph"
            outside = [reader for reader in index.readers.get(ref, ()) if reader not in nodes]
            if outside:
                return f"value of {text(ref)} is also read by {', '.join(outside[:3])}"
    return None


def returning_path(index: GraphIndex, nodes: Collection[str]) -> str | None:
    """In words, a path that leaves ``nodes`` and comes back; None when they are convex.

    The order of random calls counts as a path: a region must run before or after each of them.
    """
    last = max(index.position[name] for name in nodes)
    waiting = [(name, reader) for name in nodes for reader in index.after[name] if reader not in nodes]
    seen: set[str] = set()
    while waiting:
        start, name = waiting.pop()
        if name in seen or index.position[name] > last:
            continue
        seen.add(name)
        for reader in index.after[name]:
            if reader in nodes:
                return f"a path leaves at {start} and comes back through {name} into {reader}: a cycle"
            waiting.append((start, reader))
    return None


def text(ref: Ref) -> str:
    """A value as people name it: ``n3``, or ``n3[1]`` for a further result."""
    return f"{ref.name}[{ref.item}]" if ref.item else ref.name
