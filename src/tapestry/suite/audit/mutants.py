"""One fault of one operator, tried on calls: is there a case whose verdict gives it away?

Not here: where the calls come from (run), and faults of several calls in one part (chains).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from tapestry.numerics.arguments import eager_results, flatten_result, map_leaves
from tapestry.numerics.judgement import Judgement
from tapestry.numerics.judging import judge
from tapestry.numerics.verdict import Verdict
from tapestry.suite.audit.faults import Fault
from tapestry.suite.audit.result import FaultResult
from tapestry.suite.composition.comparing import same_bits
from tapestry.suite.expected import Results, oracle_results
from tapestry.suite.variants.call import OpCall

#: What a fault raises when it was not written for a call's arguments: no platform's doing.
_NOT_WRITTEN_FOR = (TypeError, AttributeError, NameError, NotImplementedError)


@dataclass(frozen=True, eq=False)
class NamedCall:
    """A call and the case or the source it comes from."""

    name: str
    call: OpCall


ResultT = TypeVar("ResultT")


@dataclass
class Attempts:
    """What was seen of a fault so far."""

    cases: int = 0
    differed: int = 0
    skipped: int = 0
    closest: str = ""
    raised: str = ""
    raised_by: str = ""
    refused: list[str] = field(default_factory=list[str])

    def applied(self, name: str, run: Callable[[], ResultT]) -> ResultT | None:
        """What a fault gives, counted as a case; None where it raises, which is remembered."""
        try:
            result = run()
        except _NOT_WRITTEN_FOR:
            self.skipped += 1
            return None
        except Exception as error:
            self.cases += 1
            self.raised = self.raised or f"{type(error).__name__}: {error}"
            self.raised_by = self.raised_by or name
            return None
        self.cases += 1
        return result

    def why(self) -> str:
        """Why no case found the fault."""
        if not self.cases:
            return f"no case calls it{'; ' + self.refused[0] if self.refused else ''}"
        if self.differed:
            return f"it changed the result of {self.differed} of {self.cases} cases, within what passes: {self.closest}"
        extra = f"; it does not take the arguments of {self.skipped} more" if self.skipped else ""
        return f"no case reaches it: the result was the right one in all {self.cases} cases{extra}"


def try_fault(fault: Fault, calls: Iterable[NamedCall], seconds: float) -> FaultResult:
    """Try a fault on calls until a verdict gives it away, or for ``seconds``.

    A call on which eager's own result would not pass is left out. A platform that raises is found, too, when no
    other verdict finds it.
    """
    return search(fault, calls, lambda entry, seen: _try(fault, entry, seen), seconds)


class Named(Protocol):
    """A call or a chain of calls, with a name for reports."""

    @property
    def name(self) -> str: ...


EntryT = TypeVar("EntryT", bound=Named)


def search(
    fault: Fault,
    entries: Iterable[EntryT],
    attempt: Callable[[EntryT, Attempts], Judgement | None],
    seconds: float,
) -> FaultResult:
    """Attempt one entry after the other until one gives a failing verdict, or for ``seconds`` from the first one on.

    A platform that raises is found, too, when no other verdict finds it.
    """
    begin = time.perf_counter()
    seen = Attempts()
    end = 0.0
    for place, entry in enumerate(entries):
        if not place:  # making the first one may mean reading all of PyTorch's samples
            end = time.perf_counter() + seconds
        if time.perf_counter() > end:
            break
        judgement = attempt(entry, seen)
        if judgement is not None:
            return finished(fault, seen, begin, entry.name, judgement.verdict, judgement.reason)
    if seen.raised:
        return finished(fault, seen, begin, seen.raised_by, Verdict.ERROR, seen.raised)
    return finished(fault, seen, begin, "", None, seen.why())


def finished(fault: Fault, seen: Attempts, begin: float, by: str, verdict: Verdict | None, why: str) -> FaultResult:
    """The result of a fault: killed where there is a verdict."""
    return FaultResult(
        fault.name, fault.fault_class, fault.subject, verdict is not None, by,
        str(verdict or Verdict.PASS), seen.cases, seen.differed, why, time.perf_counter() - begin,
    )  # fmt: skip


def _try(fault: Fault, entry: NamedCall, seen: Attempts) -> Judgement | None:
    """The verdict on a call if it is a failing one."""
    call = entry.call
    source = eager_results(call.target, call.args, call.kwargs)
    mine = with_own_memory(call)
    with torch.no_grad():
        got = seen.applied(entry.name, lambda: flatten_result(fault.apply(mine.args, mine.kwargs)))
    if got is None:
        return None
    answers = [got]
    if call.target._schema.is_mutable and mine.tensors:
        answers.append((mine.tensors[0], *got[1:]))  # what it wrote counts, not only what it returned
    for answer in answers:
        if not alike(answer, source):
            found = _judged(call, answer, source, seen)
            if found is not None:
                return found
    return None


def _judged(call: OpCall, got: Results, source: Results, seen: Attempts) -> Judgement | None:
    want = oracle_results(call)
    if judge(call.target, call.args, call.kwargs, source, source, want).verdict == Verdict.FAIL:
        return None  # the case itself would be a false alarm
    seen.differed += 1
    judgement = judge(call.target, call.args, call.kwargs, got, source, want)
    if judgement.verdict == Verdict.FAIL:
        return judgement
    seen.closest = f"{judgement.verdict}, {judgement.reason} (largest relative error {judgement.metrics.max_rel:.2g})"
    return None


def alike(got: Results, want: Results) -> bool:
    """Whether results are equal bit for bit, NaN being NaN and -0.0 being 0.0."""
    if len(got) != len(want):
        return False
    return all(_same(left, right) for left, right in zip(got, want, strict=True))


def _same(got: torch.Tensor | None, want: torch.Tensor | None) -> bool:
    return got is want if got is None or want is None else same_bits(got, want)


def with_own_memory(call: OpCall) -> OpCall:
    """The call on copies of its tensors, whose storages are copied whole: strides, offsets and gaps stay.

    Tensors that share memory share that of the copies.
    """
    storages: dict[int, torch.UntypedStorage] = {}

    def copied(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor) or leaf.is_quantized or leaf.layout != torch.strided:
            return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
        plain = leaf.detach().resolve_conj().resolve_neg()
        storage = plain.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.clone()
        fresh = torch.empty(0, dtype=plain.dtype)
        return fresh.set_(storages[storage.data_ptr()], plain.storage_offset(), plain.shape, plain.stride())  # pyright: ignore[reportArgumentType]

    args = tuple(map_leaves(copied, value) for value in call.args)
    kwargs = {name: map_leaves(copied, value) for name, value in call.kwargs.items()}
    return OpCall(call.target, args, kwargs, call.constants)
