"""Judging what a fault or a platform made of a chain: every output of every call and every written state, by the
running error bound of the steps. Not here: running chains (steps), following single calls (running).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from tapestry.errors import UnsupportedError
from tapestry.numerics.arguments import flatten_result
from tapestry.numerics.formats import is_inexact
from tapestry.numerics.judgement import Judgement, Metrics
from tapestry.numerics.judging import judge
from tapestry.numerics.metrics import ErrorSums
from tapestry.numerics.verdict import Verdict
from tapestry.program.serial import overload_named
from tapestry.suite.composition.comparing import compare, same_bits, structure_problem
from tapestry.suite.composition.running import Followed, Narrow, follow
from tapestry.suite.composition.steps import Chain, Copies, Ran, Ref, Step, mapped, run_chain, run_steps
from tapestry.suite.composition.values import Arguments, Value, stored_value, widened

RUNNING = "running bound"
_COLUMNS = ("careful", "allowed")


def judge_chain(chain: Chain, got: Ran) -> Judgement:
    """Judge a run of a chain: its outputs and states against the same steps in float64, within their running bounds."""
    right = run_chain(chain)
    pairs = _pairs(chain, got, right)
    if isinstance(pairs, str):
        return Judgement(Verdict.FAIL, False, pairs, Metrics(), "structure")
    if all(same_bits(pair.got, pair.source) for pair in pairs):
        return Judgement(Verdict.PASS, False, "the same as the source's", Metrics(), RUNNING)
    found: Judgement | None = None
    for column in _COLUMNS:
        try:
            found = _judge(chain, pairs, column)
        except UnsupportedError as error:
            return Judgement(Verdict.UNDEFINED, False, str(error), Metrics(), RUNNING)
        if found.verdict is not Verdict.FAIL:
            break
    assert found is not None
    return found


@dataclass(frozen=True)
class _Pair:
    """One tensor to judge: what was got, the source's, and where it stands (call and Ref, or the number of a state)."""

    got: Tensor
    source: Tensor
    call: int
    ref: Ref | None
    state: int
    name: str


def _pairs(chain: Chain, got: Ran, right: Ran) -> list[_Pair] | str:
    """Every tensor beside the source's; or what is wrong with number, kind, shape or dtype."""
    found: list[_Pair] = []
    for call, refs in enumerate(chain.outputs):
        if len(got.outputs[call]) != len(refs):
            return f"expected {len(refs)} outputs of call {call}, got {len(got.outputs[call])}"
        for place, ref in enumerate(refs):
            source = cast(Tensor, right.outputs[call][place])
            name = f"call {call}, step {ref.index} ({chain.calls[call][ref.index].op})"
            actual = got.outputs[call][place]
            problem = structure_problem(actual, tuple(source.shape), source.dtype)
            if problem:
                return f"{name}: {problem}"
            found.append(_Pair(cast(Tensor, actual), source, call, ref, -1, name))
    for place, (actual, source) in enumerate(zip(got.states, right.states, strict=True)):
        found.append(_Pair(actual, source, -1, None, place, f"state {place} after the last call"))
    return found


def _judge(chain: Chain, pairs: Sequence[_Pair], column: str) -> Judgement:
    run = _FollowedChain(chain, column)
    sums, compared, imprecise = ErrorSums(), 0, column == "allowed"
    for pair in pairs:
        value = run.value(pair)
        alone = run.alone(pair)
        outcome = compare(pair.got, value, pair.source)
        problem = outcome.problem
        if alone is not None:
            verdict = _judge_alone(alone, pair)
            problem = verdict.reason if verdict.verdict is Verdict.FAIL else ""
            imprecise = imprecise or verdict.imprecise
        _add(sums, pair.got, value.exact, outcome.compared)
        if problem:
            return Judgement(Verdict.FAIL, False, f"{pair.name}: {problem}", sums.finished(), RUNNING)
        compared += int(outcome.compared.sum()) + (pair.got.numel() == 0)
    if not compared:
        reason = "nothing left to compare: every element depends on a choice close to its boundary, or is free"
        return Judgement(Verdict.UNDEFINED, False, reason, sums.finished(), RUNNING)
    reason = "within what a device specification allows" if imprecise else "within the running bound of its steps"
    return Judgement(Verdict.PASS, imprecise, reason, sums.finished(), RUNNING)


def _judge_alone(alone: Narrow, pair: _Pair) -> Judgement:
    item = 0 if pair.ref is None or pair.ref.item is None else pair.ref.item
    count = max(item + 1, len(alone.want or ()))
    got: list[Tensor | None] = [None] * count
    source: list[Tensor | None] = [None] * count
    got[item], source[item] = pair.got, pair.source
    want = None if alone.want is None else [entry if n == item else None for n, entry in enumerate(alone.want)]
    return judge(alone.target, alone.args, alone.kwargs, got, source, want)


def _add(sums: ErrorSums, got: Tensor, exact: Tensor, compared: Tensor) -> None:
    wide = torch.complex128 if got.dtype.is_complex else torch.float64
    left, right = got.to(wide), exact.to(wide)
    keep = compared & torch.isfinite(left) & torch.isfinite(right)
    sums.add(left[keep], right[keep], got.dtype)


class _FollowedChain:
    """A chain followed in float64; values are as they stand after the last call."""

    def __init__(self, chain: Chain, column: str) -> None:
        self._chain = chain
        self._stored: dict[int, Value] = {}
        self._storages: dict[int, tuple[Value, Tensor]] = {}
        self._calls: list[list[Followed]] = []
        self._tuples: list[list[bool]] = []
        narrow = Copies()
        with torch.no_grad():
            for steps in chain.calls:
                results = run_steps([narrow.step(step) for step in steps])
                self._calls.append([])
                self._tuples.append([isinstance(result, tuple | list) for result in results])
                for step, result in zip(steps, results, strict=True):
                    self._calls[-1].append(self._follow(step, result, column))

    def _follow(self, step: Step, result: object, column: str) -> Followed:
        def leaf(value: object) -> object:
            if isinstance(value, Ref):
                return self._named(len(self._calls) - 1, value)
            return self._external(value) if isinstance(value, Tensor) else value

        args = tuple(mapped(value, leaf) for value in step.args)
        kwargs = {name: mapped(value, leaf) for name, value in step.kwargs.items()}
        declared = [None if entry is None else entry.dtype for entry in flatten_result(result)]
        return follow(overload_named(step.op), Arguments(args, kwargs), declared, column)

    def _named(self, call: int, ref: Ref) -> object:
        values = self._calls[call][ref.index].values
        if ref.item is not None:
            return values[ref.item]
        return list(values) if self._tuples[call][ref.index] else values[0]

    def _external(self, tensor: Tensor) -> Value:
        if id(tensor) not in self._stored:
            self._stored[id(tensor)] = self._viewed(tensor)
        return self._stored[id(tensor)]

    def _viewed(self, tensor: Tensor) -> Value:
        """The value of a tensor from outside; those that share memory share their exact values, bounds and doubts."""
        storage = tensor.untyped_storage().data_ptr()
        if storage not in self._storages or not storage:
            whole = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
            self._storages[storage] = (stored_value(widened(whole), tensor.dtype), tensor)
        base, _ = self._storages[storage]
        if base.dtype != tensor.dtype:
            raise UnsupportedError("memory is seen in two dtypes")
        shape, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        exact, bound, doubtful = (
            part.as_strided(shape, stride, offset) for part in (base.exact, base.bound, base.doubtful)
        )
        return Value(exact, bound, doubtful, tensor.dtype)

    def value(self, pair: _Pair) -> Value:
        """The value that a pair is to be compared with."""
        if pair.ref is None:
            return self._external(self._chain.states[pair.state])
        value = self._named(pair.call, pair.ref)
        assert isinstance(value, Value)
        return value

    def alone(self, pair: _Pair) -> Narrow | None:
        """The call that made a pair, where it can be judged as a single one."""
        if pair.ref is None or not is_inexact(pair.got.dtype):
            return None
        return self._calls[pair.call][pair.ref.index].alone
