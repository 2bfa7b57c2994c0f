"""Whether variants of a call show a fault. Used by the tests of the variants."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tapestry.numerics import Verdict, flatten_result, judge, oracle
from tapestry.numerics.arguments import eager_results
from tapestry.suite.variants.call import Kind, OpCall
from tapestry.suite.variants.derive import Budget, derive


def fails(call: OpCall, apply: Callable[..., object]) -> bool:
    """Whether what ``apply(args, kwargs)`` gives is judged wrong."""
    source = eager_results(call.target, call.args, call.kwargs)
    want = oracle(call.target, call.args, call.kwargs)
    got = flatten_result(apply(call.args, call.kwargs))
    return judge(call.target, call.args, call.kwargs, got, source, want).verdict == Verdict.FAIL


def killer(
    call: OpCall, apply: Callable[..., object], kinds: Collection[Kind] = frozenset(Kind), budget: Budget | None = None
) -> str | None:
    """The name of the first variant of a call, within a budget, on which the fault shows."""
    return next((variant.name for variant, made in derive(call, budget, kinds) if fails(made, apply)), None)
