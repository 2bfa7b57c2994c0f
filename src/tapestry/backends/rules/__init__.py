"""The language in which a backend says which regions it takes. ``docs/rules.md`` is the guide.

Not here: backends, and the search for the best placement.
"""

from __future__ import annotations

from tapestry.backends.rules.expression import (
    Expression,
    Op,
    any_,
    any_call,
    attr,
    axis,
    const,
    either,
    op,
    optional,
    param,
)
from tapestry.backends.rules.grow import Grow
from tapestry.backends.rules.index import GraphIndex
from tapestry.backends.rules.pattern import Pattern
from tapestry.backends.rules.predicates import (
    all_of,
    any_of,
    at_least,
    constant,
    contiguous,
    device_kind,
    divisible,
    dtypes,
    rank,
    same_shape,
)
from tapestry.backends.rules.rule import Allowed, Match, Matchable, Rule, RuleError, When
from tapestry.backends.rules.select import LeftOut, Selection, largest_first, select
from tapestry.backends.rules.single import AnyOp, CallRule, Ops
from tapestry.backends.rules.view import MatchView, Predicate
from tapestry.backends.rules.whole import Whole

__all__ = [
    "Allowed", "AnyOp", "CallRule", "Expression", "GraphIndex", "Grow", "LeftOut", "Match", "MatchView", "Matchable",
    "Op", "Ops", "Pattern", "Predicate", "Rule", "RuleError", "Selection", "When", "Whole",
    "all_of", "any_", "any_call", "any_of", "at_least", "attr", "axis", "const", "constant", "contiguous",
    "device_kind", "divisible", "dtypes", "either", "largest_first", "op", "optional", "param", "rank", "same_shape",
    "select",
]  # fmt: skip
