"""A suite for operators by name, without a model: calls from their schemas, captured and carved as a model would be.

Not here: how valid calls are found (schema), and variants of them (derived).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import msgspec
import torch

from tapestry.errors import CaptureError, UnsupportedError, UsageError
from tapestry.program.capture import capture
from tapestry.suite.carve import carve
from tapestry.suite.case import Case, LeftOut, Suite, SuiteInfo
from tapestry.suite.schema.calls import SchemaCall, calls_for
from tapestry.suite.schema.overloads import find, overload_names
from tapestry.suite.variants.call import OpCall

#: Cases kept of one operator key: calls of equal shapes differ in values only, which is what variants are for.
PER_KEY = 2

Progress = Callable[[str, int, int], None]


def carve_schema(ops: Sequence[str], limit: int = 24, progress: Progress | None = None) -> Suite:
    """A suite of at most ``limit`` calls of each operator.

    ``ops`` are overloads (``aten.conv2d.default``) or operators (``aten.add``: all overloads that calls can be made
    of). Calls that cannot be captured are listed as left out. UsageError for an unknown name, UnsupportedError when
    nothing at all could be made.
    """
    tell = progress or (lambda what, done, total: None)
    named = [overload for op in ops for overload in _overloads(op)]
    parts: list[Suite] = []
    left_out: list[LeftOut] = []
    for done, op in enumerate(named):
        tell("operators", done, len(named))
        try:
            calls = calls_for(op, limit)
        except UnsupportedError as error:
            left_out.append(LeftOut("", op, 0, str(error)))
            continue
        for call, outcome in _each(calls):
            if isinstance(outcome, Suite):
                parts.append(outcome)
            else:
                left_out.append(LeftOut("", op, 1, f"{call.source}: {outcome}"))
    tell("operators", len(named), len(named))
    if not parts:
        raise UnsupportedError(f"no case of {', '.join(ops)} could be made: {left_out[0].reason}")
    return _united(ops, parts, left_out)


def _overloads(op: str) -> list[str]:
    if op.count(".") == 2:
        return [op]
    found = overload_names(op)
    if not found:
        raise UsageError(f"torch has no operator {op!r}; expected a name such as aten.add or aten.add.Tensor")
    return [name for name in found if find(name) is not None]


def _each(calls: Sequence[SchemaCall]) -> Iterator[tuple[SchemaCall, Suite | str]]:
    """The suites of calls, or why there is none: all in one program, since capturing one call takes as long as many.

    Where that fails, each half by itself.
    """
    if not calls:
        return
    try:
        yield calls[0], _carved(calls)
    except (CaptureError, UsageError, UnsupportedError) as error:
        if len(calls) == 1:
            yield calls[0], str(error)
            return
        middle = len(calls) // 2
        yield from _each(calls[:middle])
        yield from _each(calls[middle:])


def _carved(calls: Sequence[SchemaCall]) -> Suite:
    bases = [OpCall(call.target, call.args, call.kwargs) for call in calls]
    if any(not base.tensors for base in bases):
        raise UnsupportedError("it reads no tensor, so it is folded before anything runs")
    tensors = tuple(tensor.clone() for base in bases for tensor in base.tensors)

    def run(*given: torch.Tensor) -> list[object]:
        results: list[object] = []
        rest = iter(given)
        for base in bases:
            made = base.with_tensors(tuple(islice(rest, len(base.tensors))))
            results.append(made.target(*made.args, **made.kwargs))
        return results

    program = capture(run, tensors, name=str(calls[0].target))
    return carve(program, [tensors])


def _united(ops: Sequence[str], parts: Sequence[Suite], left_out: list[LeftOut]) -> Suite:
    """The cases of many small programs as one suite."""
    counts: dict[str, int] = {}
    cases: list[Case] = []
    tensors: dict[str, torch.Tensor] = {}
    for part in parts:
        for case in part.cases:
            place = counts.get(case.key, 0)
            if place >= PER_KEY:
                left_out.append(LeftOut(case.key, case.op, 1, f"over the limit of {PER_KEY} samples"))
                continue
            counts[case.key] = place + 1
            stem = case.id.rpartition("-")[0]
            cases.append(msgspec.structs.replace(case, id=f"{stem}-{place}"))
            tensors.update(part.tensors)
    infos = [part.info for part in parts]
    info = SuiteInfo(
        f"schema of {', '.join(ops)}", "", "", infos[0].torch_version, sum(entry.dump_bytes for entry in infos),
        sum(entry.dump_bytes_activations for entry in infos), sum(entry.eager_seconds for entry in infos),
        sum(entry.carve_seconds for entry in infos), sum(entry.finish_seconds for entry in infos), len(infos),
        len(infos),
    )  # fmt: skip
    return replace(parts[0], info=info, cases=tuple(cases), tensors=tensors, left_out=tuple(left_out))
