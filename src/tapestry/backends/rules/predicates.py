"""Ready-made predicates for ``when``: each makes a function of the match that gives None or a reason.

``names`` are captures. Not here: what a predicate sees (view).
"""

from __future__ import annotations

from collections.abc import Iterator

from tapestry.backends.rules.convex import text
from tapestry.backends.rules.rule import OTHER_DEVICE
from tapestry.backends.rules.view import MatchView, Predicate
from tapestry.program.graph import Ref
from tapestry.program.serial import dtype_name


def all_of(*predicates: Predicate) -> Predicate:
    """Yes when all say yes; else the first reason."""

    def judge(match: MatchView) -> str | None:
        return next((reason for predicate in predicates if (reason := predicate(match)) is not None), None)

    return judge


def any_of(*predicates: Predicate) -> Predicate:
    """Yes when one says yes; else all reasons."""

    def judge(match: MatchView) -> str | None:
        reasons: list[str] = []
        for predicate in predicates:
            reason = predicate(match)
            if reason is None:
                return None
            reasons.append(reason)
        return ", and ".join(reasons) or "there is nothing to say yes"

    return judge


def dtypes(*allowed: str, of: tuple[str, ...] | None = None) -> Predicate:
    """The captures ``of`` (if not given, all values that the match reads or makes) have one of these dtypes."""

    def judge(match: MatchView) -> str | None:
        for name, ref in _tensors(match, of):
            found = dtype_name(match.index.spec(ref).dtype)
            if found not in allowed:
                return f"{name} is {found}, expected {' or '.join(allowed)}"
        return None

    return judge


def rank(name: str, *ranks: int) -> Predicate:
    """The capture has one of these numbers of dimensions."""

    def judge(match: MatchView) -> str | None:
        found = len(match.spec(name).shape)
        return None if found in ranks else f"{name} has rank {found}, expected {' or '.join(map(str, ranks))}"

    return judge


def divisible(name: str, dim: int, by: int) -> Predicate:
    """The capture's size in dimension ``dim`` (negative: from the end) is a multiple of ``by``."""

    def judge(match: MatchView) -> str | None:
        shape = match.spec(name).shape
        if not -len(shape) <= dim < len(shape):
            return f"{name} has rank {len(shape)}, so no dimension {dim}"
        return None if shape[dim] % by == 0 else f"{name} has size {shape[dim]} in dimension {dim}, no multiple of {by}"

    return judge


def same_shape(first: str, second: str) -> Predicate:
    """The two captures have the same shape: nothing is broadcast."""

    def judge(match: MatchView) -> str | None:
        a, b = match.spec(first).shape, match.spec(second).shape
        return None if a == b else f"{first} has shape {list(a)}, {second} {list(b)}"

    return judge


def constant(*names: str) -> Predicate:
    """The captures are the same in every run."""

    def judge(match: MatchView) -> str | None:
        return next((f"{name} is not a constant" for name in names if not match.is_constant(name)), None)

    return judge


def contiguous(*names: str) -> Predicate:
    """The captures have the strides of a contiguous tensor, dimensions of size 1 aside."""

    def judge(match: MatchView) -> str | None:
        for name in names:
            spec, expected = match.spec(name), 1
            for size, stride in zip(reversed(spec.shape), reversed(spec.stride), strict=True):
                if size > 1 and stride != expected:
                    return f"{name} has strides {list(spec.stride)} for shape {list(spec.shape)}, not contiguous"
                expected *= size
        return None

    return judge


def at_least(count: int) -> Predicate:
    """The match has this many calls or more."""

    def judge(match: MatchView) -> str | None:
        return None if len(match.nodes) >= count else f"{len(match.nodes)} calls, fewer than {count}"

    return judge


def device_kind(*kinds: str) -> Predicate:
    """The device is of one of these kinds."""

    def judge(match: MatchView) -> str | None:
        return None if match.info.kind in kinds else f"{OTHER_DEVICE}{match.info.kind}, expected {' or '.join(kinds)}"

    return judge


def _tensors(match: MatchView, names: tuple[str, ...] | None) -> Iterator[tuple[str, Ref]]:
    if names is not None:
        yield from ((name, match.ref(name)) for name in names)
        return
    yield from ((text(ref), ref) for ref in match.inputs)
    for call in match.calls:
        made = (Ref(call.name, item) for item, spec in enumerate(call.outputs) if spec is not None)
        yield from ((text(ref), ref) for ref in made)
