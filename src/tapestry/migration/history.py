"""Every node's history: with which backend it was tried, alone and in the program, and what came of it.

Not here: trying (suite.replay, engine).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import isnan

from tapestry.migration.result import Attempt, Finding
from tapestry.program.program import Program
from tapestry.suite.carve import nodes_by_key
from tapestry.suite.verdicts import CaseResult, ReplayResult


def attempts_by_node(
    program: Program, replayed: ReplayResult, findings: Iterable[Finding]
) -> Mapping[str, tuple[Attempt, ...]]:
    """What was tried for each node, in that order: the cases of its key on each backend, then what the program showed.

    Latent cases say nothing of this program's values, and do not count.
    """
    by_key: dict[str, dict[str, list[CaseResult]]] = defaultdict(lambda: defaultdict(list))
    for entry in (*replayed.overruled, *replayed.results):
        if not entry.latent:
            by_key[entry.key][entry.backend].append(entry)
    found: dict[str, list[Attempt]] = defaultdict(list)
    for key, node_ids in nodes_by_key(program).items():
        alone = [_of_cases(backend, entries) for backend, entries in by_key.get(key, {}).items()]
        for node_id in node_ids:
            found[node_id] += alone
    for finding in findings:
        if finding.cause == "replay" or finding.case:
            continue  # told by its cases
        for node_id in finding.nodes:
            found[node_id].append(
                Attempt(finding.backend or replayed.backend, finding.cause, finding.verdict, reason=finding.reason)
            )
    return {node_id: tuple(entries) for node_id, entries in found.items()}


def _of_cases(backend: str, entries: list[CaseResult]) -> Attempt:
    """The first case that keeps the operator away, or the best of what all of them say."""
    blocking = [entry for entry in entries if entry.blocks]
    first = (blocking or entries)[0]
    errors = [entry.metrics.max_rel for entry in entries]
    worst = max(errors, key=lambda value: (isnan(value), value))
    return Attempt(
        backend, "cases", str(first.verdict), len(entries), worst, first.reason if blocking else "", first.case
    )
