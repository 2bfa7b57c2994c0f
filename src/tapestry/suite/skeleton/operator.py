"""Which operator a user means by a name, given what torch has and what a suite has cases of.

Not here: the cases themselves (form).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import torch

from tapestry.errors import UsageError
from tapestry.suite.case import Case, Suite
from tapestry.suite.schema.overloads import find, in_scope, overload_names

#: How many other names an error offers.
_OFFERED = 3


def operator_in(name: str, suite: Suite, where: str) -> str:
    """The overload that ``name`` (``gelu``, ``aten.gelu``, ``aten.add.Tensor``) means, of those the suite has cases of.

    ``where`` names the suite in errors. UsageError for a name that torch does not have, one that has no case there,
    and one that stands for several overloads.
    """
    meant = _meant(name)
    single = [case for case in suite.cases if "+" not in case.op]
    found = [op for op in dict.fromkeys(case.op for case in single) if op in meant]
    if not found:
        raise UsageError(_no_case(name, meant, single, where))
    return _only(name, found, where)


def operator_of_torch(name: str) -> str:
    """The overload that ``name`` means, of those a model can contain. UsageError for none and for several."""
    meant = _meant(name)
    functional = {str(target) for target in in_scope()}
    if name.count(".") == 2 or len(meant) == 1:
        return meant[0]
    found = [op for op in meant if op in functional]
    if not found:
        raise UsageError(f"no overload of {name} can stand in a captured model: torch has {', '.join(meant)}")
    return _only(name, found, "torch")


def _meant(name: str) -> Sequence[str]:
    """The overloads that a name may mean. UsageError, with close ones, when torch has none."""
    full = name if name.partition(".")[0] in _namespaces(name) else f"aten.{name}"
    if find(full) is not None:
        return (full,)
    known = overload_names(full)
    if known and full.count(".") < 2:
        return known
    if known:
        raise UsageError(f"torch has no overload {full}; it has {', '.join(known)}")
    base = full.partition(".")[2].partition(".")[0]
    close = difflib.get_close_matches(base, sorted({str(target).split(".")[1] for target in in_scope()}), _OFFERED)
    offered = f"did you mean {', '.join(f'aten.{entry}' for entry in close)}?" if close else "none is called similarly"
    raise UsageError(f"torch {torch.__version__} has no operator {full}; {offered}")


def _namespaces(name: str) -> Iterable[str]:
    """``aten``, and what else stands before the first dot where torch has operators under it."""
    space, dot, rest = name.partition(".")
    return ("aten", space) if dot and overload_names(f"{space}.{rest}") else ("aten",)


def _only(name: str, found: Sequence[str], where: str) -> str:
    if len(found) > 1:
        raise UsageError(f"{name} stands for several overloads in {where}: expected one of {', '.join(found)}")
    return found[0]


def _no_case(name: str, meant: Sequence[str], cases: Sequence[Case], where: str) -> str:
    packets = {op.rpartition(".")[0] for op in meant}
    parts = dict.fromkeys(case.op for case in cases if case.origin_op.rpartition(".")[0] in packets)
    if parts:
        return f"{where} has no case of {name}, which is decomposed there: expected one of {', '.join(parts)}"
    ops = list(dict.fromkeys(case.op for case in cases))
    close = difflib.get_close_matches(meant[0], ops, _OFFERED, cutoff=0.5)
    return (
        f"{where} has no case of {name}; it has {len(ops)} operators{_such_as(close or ops[:_OFFERED])}. "
        f"Cases of {name} are made by: tapestry carve --schema {meant[0]} -o DIR"
    )


def _such_as(ops: Sequence[str]) -> str:
    return f", {', '.join(ops)} among them" if ops else ""
