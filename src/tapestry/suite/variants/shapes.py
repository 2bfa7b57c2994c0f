"""The same call in other shapes and dtypes, valid by what its sizes mean. Not here: the classes, one module each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, zip_longest

from tapestry.suite.variants.call import OpCall, Variant
from tapestry.suite.variants.shape_base import small
from tapestry.suite.variants.shape_dtypes import dtype_variants
from tapestry.suite.variants.shape_links import links
from tapestry.suite.variants.shape_lists import list_variants
from tapestry.suite.variants.shape_ranks import broadcast_variants, rank_variants
from tapestry.suite.variants.shape_sizes import size_variants
from tapestry.suite.variants.shape_trial import one_thread

#: The most variants of shape that one call gets.
MOST_SHAPES = 80


def shape_variants(call: OpCall) -> Iterator[Variant]:
    """Variants of other sizes, ranks, broadcasts, list lengths and dtypes, the most telling first.

    They start from the call made small, so that none takes long; the largest have 2^22 elements. Eager has the last
    word: a variant that it refuses raises when it is run. Never raises itself for a call that eager takes.
    """
    with one_thread():
        base = small(call)
        linked = links(base)
        columns = [
            rank_variants(base),
            *(size_variants(base, linked)),
            broadcast_variants(base),
            dtype_variants(base),
            list_variants(base),
        ]
        found = _in_turn([list(column) for column in columns])
    seen: dict[str, Variant] = {}
    for variant in found:
        seen.setdefault(variant.name, variant)
    for rank, variant in enumerate([*seen.values()][:MOST_SHAPES]):
        yield replace(variant, rank=rank)


def _in_turn(columns: list[list[Variant]]) -> Iterator[Variant]:
    """The most telling of each module, then the second of each: any budget covers all of them."""
    ordered = [sorted(column, key=lambda variant: variant.rank) for column in columns]
    return (variant for variant in chain.from_iterable(zip_longest(*ordered)) if variant is not None)
