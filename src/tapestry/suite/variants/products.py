"""Two changes at once: the most telling values on other attributes and dtypes, where many faults show alone.

An epsilon that is lost matters on a constant row, a narrow type on the way where values are large, a comparison in
floats beside a large integer. Not here: either change by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, zip_longest

from tapestry.suite.variants.attributes import attribute_variants
from tapestry.suite.variants.call import Kind, OpCall, Variant
from tapestry.suite.variants.shape_base import small
from tapestry.suite.variants.shape_dtypes import dtype_variants
from tapestry.suite.variants.shape_trial import one_thread
from tapestry.suite.variants.values import value_variants

#: Stands between the two names.
WITH = " & "
#: How many attributes are combined, and with how many of the most telling variants of values.
MOST_ATTRIBUTES = 24
MOST_VALUES = 3


def product_variants(call: OpCall) -> Iterator[Variant]:
    """Attributes and dtypes in turn, each with the most telling values; the first value of each comes first.

    A variant whose values do not exist builds the call with the attribute alone, which is no new one.
    """
    with one_thread():
        columns = (islice(attribute_variants(call), MOST_ATTRIBUTES), dtype_variants(small(call)))
        bases = [base for both in zip_longest(*columns) for base in both if base is not None]
    for place in range(MOST_VALUES):
        for position, base in enumerate(bases):
            rank = 2 * (place * len(bases) + position)
            yield _both(base, Kind.VALUES, place, rank)
            if not place:
                yield _both(base, Kind.NONFINITE, place, rank + 1)


def _both(base: Variant, kind: Kind, place: int, rank: int) -> Variant:
    name = f"{base.name}{WITH}{kind} {place}"
    return Variant(name, base.kind, rank, _builder(base, kind, place))


def _builder(base: Variant, kind: Kind, place: int) -> Callable[[], OpCall]:
    def build() -> OpCall:
        made = base.build()
        with one_thread():
            ranked = sorted(
                (variant for variant in value_variants(made) if variant.kind == kind),
                key=lambda variant: (variant.rank, variant.name),
            )
        return ranked[place].build() if place < len(ranked) else made

    return build
