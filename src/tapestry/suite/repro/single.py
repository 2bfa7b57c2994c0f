"""A subject as a suite of one case, which replays as it failed. Not here: storing it (suite.store)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from tapestry.numerics.arguments import eager_results
from tapestry.program.program import tensor_digest
from tapestry.program.serial import dumps
from tapestry.suite.case import Case, Suite, SuiteInfo
from tapestry.suite.expected import oracle_results
from tapestry.suite.repro.attempt import Expected
from tapestry.suite.repro.clean import cleaned
from tapestry.suite.repro.subject import Subject


def suite_of(subject: Subject, want: Expected, case: Case) -> Suite:
    """A suite with the subject as its only case, under the id of the case that it was reduced from."""
    tensors: dict[str, Tensor] = {}

    def kept(values: Sequence[Tensor | None]) -> tuple[str | None, ...]:
        return tuple(None if value is None else _keep(value, tensors) for value in values)

    graph = dumps(subject.graph).decode()
    key = hashlib.sha256(graph.encode()).hexdigest()
    source, exact = _results(subject, want)
    inputs = tuple(_keep(tensor, tensors) for tensor in subject.inputs)
    one = Case(
        id=case.id, key=key, op=case.op, origin_op=case.origin_op, source_line=cleaned(case.source_line), graph=graph,
        node="n0", nodes=("n0",), input_set=0, call=0, inputs=inputs, source=kept(source),
        oracle=() if exact is None else kept(exact), no_oracle=want.no_oracle,
    )  # fmt: skip
    info = SuiteInfo(
        program=f"repro of {case.op}", graph_hash=key, content_hash=subject.digest,
        torch_version=str(torch.__version__), dump_bytes=0, dump_bytes_activations=0, eager_seconds=0.0,
        carve_seconds=0.0, finish_seconds=0.0, input_sets=1, calls=1,
    )  # fmt: skip
    return Suite(info, (one,), tensors)


def _results(subject: Subject, want: Expected) -> tuple[Sequence[Tensor | None], Sequence[Tensor | None] | None]:
    """All results of a single call, in its order; the outputs of a graph of several."""
    if not subject.single:
        return want.source, want.exact
    call = subject.call
    source = eager_results(call.target, call.args, call.kwargs)
    return source, oracle_results(call) if want.exact is not None else None


def _keep(tensor: Tensor, tensors: dict[str, Tensor]) -> str:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().clone()
    digest = tensor_digest(plain)
    tensors.setdefault(digest, plain)
    return digest
