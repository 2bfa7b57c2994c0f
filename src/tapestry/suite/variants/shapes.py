"""The same call in other shapes and dtypes, valid by what its sizes mean. Not here: the classes, one module each."""

from __future__ import annotations

from collections.abc import Iterator

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
        found = [
            *rank_variants(base),
            *size_variants(base, linked),
            *broadcast_variants(base),
            *list_variants(base),
            *dtype_variants(base),
        ]
    unique = {variant.name: variant for variant in reversed(found)}
    yield from sorted(unique.values(), key=lambda variant: variant.rank)[:MOST_SHAPES]
