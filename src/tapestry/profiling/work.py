"""How much work a region is: operations of its nodes, and bytes of what goes in and comes out, each once.

What its nodes hand to each other does not count, since a kernel may keep it. Not here: the count of a node
(program.work).
"""

from __future__ import annotations

from collections.abc import Collection

from tapestry.program.graph import Ref
from tapestry.program.region import Region
from tapestry.program.work import Work, picked, work_of


def region_work(region: Region, in_place: Collection[Ref] = ()) -> Work:
    """The work of one run of the region.

    An input that only operators read which pick elements from it (an embedding's table) counts as far as it is picked.
    State ``in_place`` is changed where it lies, by what else comes in, and does not move.
    """
    program = region.program
    flops = sum(work_of(program, node_id).flops for node_id in region.nodes)
    own = set(region.nodes)
    given = 0
    for ref in region.inputs:
        if ref in in_place:
            continue
        readers = [node_id for node_id in program.users.get(ref, ()) if node_id in own]
        picks = [picked(program, node_id, ref) for node_id in readers]
        whole = program.spec(ref).nbytes
        given += whole if not picks or None in picks else min(whole, sum(pick or 0 for pick in picks))
    changed = {state.result for state in program.state if Ref(state.name) in in_place}
    made = sum(program.spec(ref).nbytes for ref in region.outputs if ref not in changed)
    return Work(flops, given + made)
