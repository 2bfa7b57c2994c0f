"""Which pairs and small regions of a program become composition cases: those that backends fuse come first.

Not here: the values and results of the cases (carve).
"""

from __future__ import annotations

from collections.abc import Iterator

from tapestry.errors import UsageError
from tapestry.numerics.arguments import names
from tapestry.program.graph import Ref, operands
from tapestry.program.program import Program
from tapestry.program.region import region_of
from tapestry.program.traits import base_name, is_view

#: Regions that a program gives at most.
BUDGET = 64

_PRODUCTS = names("""
    linear matmul mm bmm addmm baddbmm convolution conv1d conv2d conv3d conv_transpose2d
    scaled_dot_product_attention einsum""")
_NORMS = names("""
    layer_norm native_layer_norm rms_norm _fused_rms_norm group_norm native_group_norm batch_norm
    _native_batch_norm_legit_no_training""")
_SOFTMAX = names("softmax _softmax _safe_softmax log_softmax _log_softmax")
_WRITES = names("index_put slice_scatter select_scatter copy index_copy scatter")
_CASTS = names("_to_copy to")


def composition_regions(program: Program, budget: int = BUDGET) -> list[tuple[str, ...]]:
    """Node ids of at most ``budget`` convex regions of two to four nodes, one for each region key.

    In order of how telling they are: writes of state with a reader of what was written; values that are read twice
    (with both readers, or leaving the region as well); products with what follows them; norms and softmax with their
    neighbours; sums with a residual; casts; other pairs; three in a row.
    """
    allowed = set(program.placeable)
    ranked: dict[tuple[str, ...], int] = {}
    for rank, nodes in _candidates(program, allowed):
        ordered = tuple(sorted(nodes, key=program.position.__getitem__))
        ranked[ordered] = min(rank, ranked.get(ordered, rank))
    found: dict[str, tuple[str, ...]] = {}
    for nodes in sorted(ranked, key=lambda entry: (ranked[entry], program.position[entry[0]], entry)):
        if len(found) >= budget:
            break
        try:
            found.setdefault(region_of(program, nodes).key, nodes)
        except UsageError:
            continue  # not convex: no region of any placement has these nodes alone
    return list(found.values())


def _candidates(program: Program, allowed: set[str]) -> Iterator[tuple[int, set[str]]]:
    for node_id in program.placeable:
        readers = [user for user in _users(program, node_id) if user in allowed]
        for user in readers:
            yield _rank(program, node_id, user, readers), {node_id, user}
            for further in _users(program, user):
                if further in allowed and _computes(program, node_id, user, further):
                    yield 7, {node_id, user, further}
        if len(readers) > 1:
            yield 1, {node_id, *readers[:2]}
        yield from _residual(program, node_id, readers, allowed)


def _residual(program: Program, node_id: str, readers: list[str], allowed: set[str]) -> Iterator[tuple[int, set[str]]]:
    """A value that goes through another node and is added to what that gives."""
    for user in readers:
        for further in _users(program, user):
            if further in readers and further in allowed:
                yield 1, {node_id, user, further}


def _users(program: Program, node_id: str) -> list[str]:
    found: dict[str, None] = {}
    for item in range(len(program.by_id[node_id].call.outputs)):
        found.update(dict.fromkeys(program.users.get(Ref(node_id, item), ())))
    return list(found)


def _computes(program: Program, *nodes: str) -> bool:
    return sum(node in program.compute for node in nodes) > 1


def _rank(program: Program, node_id: str, user: str, readers: list[str]) -> int:
    """How telling a pair is, 0 the most."""
    first, second = (base_name(program.by_id[node].call.target) for node in (node_id, user))
    written = {state.result.name for state in program.state}
    if first in _WRITES and node_id in written:
        return 0
    if user in written:
        return 1
    if len(readers) > 1 or any(ref.name == node_id for ref in program.results):
        return 2
    if first in _PRODUCTS and not is_view(program.by_id[user].call.target):
        return 2
    if first in _NORMS or second in _NORMS or first in _SOFTMAX or second in _SOFTMAX:
        return 3
    if second == "add" or _reads_twice(program, node_id, user):
        return 4
    if first in _CASTS or second in _CASTS:
        return 4
    return 5 if _computes(program, node_id, user) else 6


def _reads_twice(program: Program, node_id: str, user: str) -> bool:
    return sum(ref.name == node_id for ref in operands(program.by_id[user].call)) > 1
