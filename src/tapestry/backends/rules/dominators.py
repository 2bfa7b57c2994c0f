"""Immediate post-dominators: the first call that everything made from a value flows through.

Cooper, Harvey, Kennedy, "A Simple, Fast Dominance Algorithm" (2001), in one pass, since the graph has no cycles.
"""

from __future__ import annotations

from tapestry.backends.rules.index import GraphIndex

#: Where all values end: the graph's results, and values that nothing reads.
_EXIT = ""


def post_dominators(index: GraphIndex) -> dict[str, str]:
    """Call name → its immediate post-dominator; calls that have none (some path leaves the graph) are not listed."""
    above: dict[str, str] = {}
    depth = {_EXIT: 0}

    def meeting(a: str, b: str) -> str:
        while a != b:
            if depth[a] >= depth[b]:
                a = above[a]
            else:
                b = above[b]
        return a

    for call in reversed(index.calls):
        readers = index.data_after[call.name]
        found = readers[0] if readers else _EXIT
        for reader in readers[1:]:
            found = meeting(found, reader)
        if call.name in index.leaving_calls:
            found = _EXIT
        above[call.name] = found
        depth[call.name] = depth[found] + 1
    return {name: found for name, found in above.items() if found != _EXIT}
