"""What every backend says of one node on a device: whether it takes it, compiles it, and is right on its cases.

Not here: printing.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

import msgspec

from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import backend_names, get_backend
from tapestry.errors import CompileError, EnvironmentProblem, UnsupportedError, UsageError
from tapestry.migration.explanation import BackendAnswer, Explanation
from tapestry.program import traits
from tapestry.program.graph import TensorSpec, operands
from tapestry.program.program import Node, Program
from tapestry.program.region import region_of
from tapestry.program.serial import dtype_name
from tapestry.runtime.resident import Resident
from tapestry.suite.carve import nodes_by_key
from tapestry.suite.case import Suite
from tapestry.suite.replay import Target, replay_on
from tapestry.suite.verdicts import CaseResult, by_operator


def find_node(program: Program, text: str) -> Node:
    """The node with this id, or the only one whose id contains the text. UsageError names the nearest otherwise."""
    if text in program.by_id:
        return program.by_id[text]
    holding = [node for node in program.nodes if text in node.id]
    if len(holding) == 1:
        return holding[0]
    if holding:
        names = ", ".join(node.id for node in holding[:8])
        raise UsageError(f"{text!r} is in the ids of {len(holding)} nodes: {names}{' …' if len(holding) > 8 else ''}")
    near = difflib.get_close_matches(text, list(program.by_id), 5, 0.3)
    raise UsageError(f"{program.name} has no node {text!r}; the nearest are {', '.join(near) or 'none'}")


def explain(
    program: Program,
    node_id: str,
    suite: Suite,
    resident: Resident,
    compiler: Compiler,
    backends: Sequence[str] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> Explanation:
    """Ask every backend (or the named ones) about a node on an open device. UsageError for an unknown node."""
    node = find_node(program, node_id)
    place, why = _place(program, node)
    alike = () if place != "free" else next(ids for ids in nodes_by_key(program).values() if node.id in ids)
    names = backends or backend_names()
    answers: list[BackendAnswer] = []
    for done, name in enumerate(names):
        if progress is not None:
            progress("asking", done, len(names))
        answers.append(_ask(name, program, node, suite, resident, compiler) if place == "free" else _settled(name, why))
    origin = program.origins.get(node.origin)
    return Explanation(
        node=node.id,
        op=node.op,
        origin=origin.op if origin is not None else node.op,
        source=str(node.source),
        code=node.source.code,
        module=node.source.module,
        inputs=tuple(f"{ref.name}: {_shown(program.spec(ref))}" for ref in dict.fromkeys(operands(node.call))),
        outputs=tuple("no tensor" if spec is None else _shown(spec) for spec in node.call.outputs),
        place=place,
        why=why,
        alike=tuple(alike),
        device=resident.device.info.name,
        backends=tuple(answers),
    )


def _place(program: Program, node: Node) -> tuple[str, str]:
    if node.id in program.folded:
        return "folded", "the same in every run: computed once, when the model is built"
    reason = traits.place_reason(node.call)
    return ("source", reason) if reason is not None else ("free", "")


def _settled(name: str, why: str) -> BackendAnswer:
    return BackendAnswer(name, "unsupported", why)


def _ask(
    name: str, program: Program, node: Node, suite: Suite, resident: Resident, compiler: Compiler
) -> BackendAnswer:
    try:
        backend = get_backend(name)
    except EnvironmentProblem as error:
        return BackendAnswer(name, "missing", str(error))
    state = backend.availability()
    if not state.ready:
        return BackendAnswer(name, "missing", state.reason)
    info = resident.device.info
    if info.kind not in backend.device_kinds:
        return BackendAnswer(name, "other device", f"runs on {', '.join(sorted(backend.device_kinds))}")
    reason = backend.refuses_in(program, node.id, info)
    if reason is not None:
        held = next((entry.rule for entry in backend.explain(program, node.id, info) if entry.reason is None), None)
        if held is not None:
            return BackendAnswer(name, "in a pattern", f"taken as part of {held.label}, not alone: {reason}")
        return BackendAnswer(name, "unsupported", reason)
    target = Target.of(resident, backend, compiler)
    graph = region_of(program, [node.id]).graph
    try:
        compiled = compiler.compile(backend, graph, info, target.options)
    except UnsupportedError as error:
        return BackendAnswer(name, "unsupported", str(error))
    except CompileError as error:
        return BackendAnswer(name, "compile error", str(error))
    key = region_of(program, [node.id]).key
    cases = tuple(case for case in suite.cases if case.key == key)
    part = Suite(suite.info, cases, suite.tensors)
    judged = _judged(name, replay_on(target, part).results, len(compiled.launches))
    remarks = backend.remarks(resident.device)
    return msgspec.structs.replace(judged, reason=f"{judged.reason}; {remarks}") if remarks else judged


def _judged(name: str, results: Sequence[CaseResult], launches: int) -> BackendAnswer:
    if not results:
        return BackendAnswer(name, "untested", "it compiles; the inputs never reached this operator", launches=launches)
    (summary,) = by_operator(results)
    bad = [entry for entry in results if entry.verdict not in {"pass", "undefined"}]
    answer = {"fail": "wrong"}.get(str(bad[0].verdict), str(bad[0].verdict)) if bad else "right"
    reason = bad[0].reason if bad else _how(results)
    return BackendAnswer(name, answer, reason, summary.cases, summary.verdicts, summary.worst, launches)


def _how(results: Sequence[CaseResult]) -> str:
    judged = sorted({entry.judged_by for entry in results if entry.judged_by})
    imprecise = sum(entry.imprecise for entry in results)
    note = f"; {imprecise} only within what the platform's specification allows" if imprecise else ""
    return f"judged by {', '.join(judged)}{note}"


def _shown(spec: TensorSpec) -> str:
    return f"{dtype_name(spec.dtype)} {list(spec.shape)}"
