"""Judging what a platform gave for a graph of several calls: each output by the running error bound of the calls that
lead to it. A graph of one call is judged by numerics.judge, and so is every output whose operands are certain.

It runs nothing on a platform. Not here: following the calls (running), comparing (comparing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from tapestry.numerics.judgement import Judgement, Metrics
from tapestry.numerics.judging import judge
from tapestry.numerics.metrics import ErrorSums
from tapestry.numerics.verdict import Verdict
from tapestry.program.graph import Call, Graph, Ref, TensorSpec
from tapestry.program.interpret import resolve, run_graph
from tapestry.program.serial import overload_name
from tapestry.suite.composition.comparing import compare, same_bits, structure_problem
from tapestry.suite.composition.reordering import Sums
from tapestry.suite.composition.running import Followed, follow
from tapestry.suite.composition.values import Arguments, Value, given_value

#: The class that judges what several calls have made.
RUNNING = "running bound"

_COLUMNS = ("careful", "allowed")


def judge_graph(
    graph: Graph,
    inputs: Sequence[Tensor],
    got: Sequence[Tensor],
    source: Sequence[Tensor | None] | None = None,
    oracle: Sequence[Tensor | None] | None = None,
) -> Judgement:
    """Judge a platform's outputs of a closed graph.

    ``inputs`` and ``got`` are in the order of the graph's inputs and outputs; ``source`` is what eager gives (None: it
    is run here). ``oracle``, where it is known, only saves computing the metrics of results that equal the source's.

    Expected is the graph in float64, call by call. Each output may differ from it by the bound of its own call at the
    exact operands, and by what the bounds of the calls before it make of it to first order. Positions that a choice
    close to its boundary decides (a comparison, a rounding, an argmax) are undefined. A result that is no further from
    the exact one than the source's is right.
    """
    declared = [graph.spec(ref) for ref in graph.outputs]
    if source is None or any(entry is None for entry in source):
        source = run_graph(graph, [tensor.clone() for tensor in inputs])
    sources = [cast(Tensor, entry) for entry in source]
    problem = _structure(graph, got, declared)
    if problem:
        return Judgement(Verdict.FAIL, False, problem, Metrics(), "structure")
    if len(graph.calls) == 1:
        return _judge_one(graph, inputs, got, sources)
    if oracle is not None and all(same_bits(left, right) for left, right in zip(got, sources, strict=True)):
        return Judgement(Verdict.PASS, False, "the same as the source's", _metrics(got, oracle), RUNNING)
    return _Case(graph, inputs, got, sources).judged()


def exact_outputs(graph: Graph, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The graph's outputs in the oracle's dtypes: every call in float64, on the results of the calls before it.

    Where a call has no oracle, its results are eager's.
    """
    followed = _follow_graph(graph, inputs, "careful")
    given = {entry.name: tensor for entry, tensor in zip(graph.inputs, inputs, strict=True)}
    found: list[Tensor] = []
    for ref in graph.outputs:
        value = followed[ref.name].values[ref.item] if ref.name in followed else given_value(given[ref.name])
        assert value is not None
        found.append(value.exact)
    return tuple(found)


def producer(graph: Graph, ref: Ref) -> str:
    """What an output is to a reader of a report: the operator that made it and the call's name; an input's name."""
    for call in graph.calls:
        if call.name == ref.name:
            item = f" result {ref.item}" if ref.item else ""
            return f"{overload_name(call.target)} {call.name}{item}"
    return f"input {ref.name}"


def _structure(graph: Graph, got: Sequence[Tensor], declared: Sequence[TensorSpec]) -> str:
    if len(got) != len(declared):
        return f"expected {len(declared)} outputs, got {len(got)}"
    for place, (tensor, spec) in enumerate(zip(got, declared, strict=True)):
        problem = structure_problem(tensor, spec.shape, spec.dtype)
        if problem:
            return f"{_named(graph, place)}: {problem}"
    return ""


def _named(graph: Graph, place: int) -> str:
    return f"output {place} ({producer(graph, graph.outputs[place])})"


def _judge_one(
    graph: Graph,
    inputs: Sequence[Tensor],
    got: Sequence[Tensor],
    source: Sequence[Tensor],
) -> Judgement:
    """A graph of one call, as numerics judges the call; outputs that are inputs have to be the same."""
    followed = _follow_graph(graph, inputs, "careful")[graph.calls[0].name]
    for place, ref in enumerate(graph.outputs):
        if ref.name != graph.calls[0].name and not same_bits(got[place], source[place]):
            reason = f"{_named(graph, place)}: expected the input as it is, got other values"
            return Judgement(Verdict.FAIL, False, reason, Metrics(), "exact")
    return _judge_alone(graph, graph.calls[0], followed, got, source)


def _judge_alone(
    graph: Graph, call: Call, followed: Followed, got: Sequence[Tensor], source: Sequence[Tensor]
) -> Judgement:
    alone = followed.alone
    assert alone is not None
    results: list[Tensor | None] = [None] * len(call.outputs)
    eager: list[Tensor | None] = [None] * len(call.outputs)
    for ref, tensor, expected in zip(graph.outputs, got, source, strict=True):
        if ref.name == call.name:
            results[ref.item], eager[ref.item] = tensor, expected
    want = None
    if alone.want is not None:
        read = {ref.item for ref in graph.outputs if ref.name == call.name}
        want = [
            alone.want[item] if item in read and item < len(alone.want) else None for item in range(len(call.outputs))
        ]
    return judge(alone.target, alone.args, alone.kwargs, results, eager, want)


def _follow_graph(graph: Graph, inputs: Sequence[Tensor], column: str) -> dict[str, Followed]:
    """Every call of the graph followed in float64, by its name."""
    values: dict[Ref, object] = {
        Ref(entry.name): given_value(tensor) for entry, tensor in zip(graph.inputs, inputs, strict=True)
    }
    found: dict[str, Followed] = {}
    sums = Sums()
    with torch.no_grad():
        for call in graph.calls:
            arguments = _arguments(call, values)
            followed = follow(call.target, arguments, _dtypes(call), column)
            if column == "allowed":
                operands = [entry if isinstance(entry, Value) else None for entry in arguments.args[:2]]
                followed = replace(followed, values=sums.reordered(call, operands, followed.values))
            found[call.name] = followed
            for item, value in enumerate(followed.values):
                values[Ref(call.name, item)] = value
    return found


def _arguments(call: Call, values: Mapping[Ref, object]) -> Arguments:
    args = tuple(resolve(value, values) for value in call.args)
    return Arguments(args, {name: resolve(value, values) for name, value in call.kwargs})


def _dtypes(call: Call) -> list[torch.dtype | None]:
    return [None if spec is None else spec.dtype for spec in call.outputs]


def _metrics(got: Sequence[Tensor], oracle: Sequence[Tensor | None]) -> Metrics:
    sums = ErrorSums()
    for tensor, exact in zip(got, oracle, strict=True):
        if exact is not None:
            _add(sums, tensor, exact, torch.ones(tensor.shape, dtype=torch.bool))
    return sums.finished()


def _add(sums: ErrorSums, got: Tensor, exact: Tensor, compared: Tensor) -> None:
    wide = torch.complex128 if got.dtype.is_complex else torch.float64
    left, right = got.to(wide), exact.to(wide)
    keep = compared & torch.isfinite(left) & torch.isfinite(right)
    sums.add(left[keep], right[keep], got.dtype)


@dataclass
class _Case:
    """One graph while it is judged."""

    graph: Graph
    inputs: Sequence[Tensor]
    got: Sequence[Tensor]
    source: Sequence[Tensor]

    def judged(self) -> Judgement:
        for column in _COLUMNS:
            verdict, last = self._by(column), column == _COLUMNS[-1]
            if verdict.verdict is not Verdict.FAIL or last:
                return verdict
        raise AssertionError("the last column always gives a verdict")

    def _by(self, column: str) -> Judgement:
        followed = _follow_graph(self.graph, self.inputs, column)
        found = self._alone(followed)
        sums, compared = ErrorSums(), 0
        imprecise = column == "allowed" or any(entry.imprecise for entry in found.values())
        for place, ref in enumerate(self.graph.outputs):
            if ref.name in found:
                alone = found[ref.name]
                problem = alone.reason if alone.verdict is Verdict.FAIL else ""
                keep = torch.full(self.got[place].shape, alone.verdict is not Verdict.UNDEFINED)
                value = followed[ref.name].values[ref.item]
            else:
                value = self._value(followed, ref)
                outcome = compare(self.got[place], value, self.source[place])
                problem, keep = outcome.problem, outcome.compared
            if value is not None:
                _add(sums, self.got[place], value.exact, keep)
            if problem:
                reason = f"{_named(self.graph, place)}: {problem}"
                return Judgement(Verdict.FAIL, False, reason, sums.finished(), RUNNING)
            compared += int(keep.sum()) + (self.got[place].numel() == 0)
        if not compared:
            reason = "nothing left to compare: every element depends on a choice close to its boundary, or is free"
            return Judgement(Verdict.UNDEFINED, False, reason, sums.finished(), RUNNING)
        reason = "within what a device specification allows" if imprecise else "within the running bound of its calls"
        return Judgement(Verdict.PASS, imprecise, reason, sums.finished(), RUNNING)

    def _alone(self, followed: Mapping[str, Followed]) -> dict[str, Judgement]:
        """The judgements of calls with certain operands, whose outputs numerics judges as those of single calls."""
        named = {ref.name for ref in self.graph.outputs}
        return {
            call.name: _judge_alone(self.graph, call, followed[call.name], self.got, self.source)
            for call in self.graph.calls
            if call.name in named and followed[call.name].alone is not None
        }

    def _value(self, followed: Mapping[str, Followed], ref: Ref) -> Value:
        if ref.name in followed:
            value = followed[ref.name].values[ref.item]
            assert value is not None
            return value
        names = [entry.name for entry in self.graph.inputs]
        return given_value(self.inputs[names.index(ref.name)])
