"""The sentences of a migration report: the verdict at the top, and what the numbers of the check mean.

Not here: markup. Everything returned is plain text, to be escaped by the template.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tapestry.migration.result import Check, MigrationResult
from tapestry.report import numbers

Tone = Literal["good", "partial", "bad"]


@dataclass(frozen=True)
class Headline:
    """The verdict in one line, what it rests on in another, and how it should look."""

    tone: Tone
    text: str
    detail: str


@dataclass(frozen=True)
class CheckLine:
    """One number of the whole-model check and what it means. ``mark`` names its symbol in the gauge, if any."""

    label: str
    value: str
    meaning: str
    mark: str = ""


def headline(result: MigrationResult) -> Headline:
    """The verdict on a migration: wrong, right but not all of it moved, or right and all on the target."""
    if not result.check.good:
        return Headline("bad", _wrong(result.target, result.check), _detail(result))
    on_target, total = computed(result)
    right = f"the whole model is right: {numbers.error(result.check.max_rel_error)} of allowed " + numbers.error(
        result.check.bound
    )
    if on_target == total:
        tone: Tone = "partial" if result.findings else "good"
        return Headline(tone, f"{_all(total)} on {result.target}; {right}", _detail(result))
    text = f"{numbers.count(on_target)} of {numbers.plural(total, 'compute node')} run on {result.target}; {right}"
    return Headline("partial", text, _detail(result))


def computed(result: MigrationResult) -> tuple[int, int]:
    """Compute nodes on the target, and all of them."""
    coverage = result.coverage
    return coverage.compute_on_target, coverage.compute_total or result.program.compute_nodes


def _all(total: int) -> str:
    if total == 1:
        return "The only compute node runs"
    return f"All {numbers.count(total)} compute nodes run"


def _wrong(target: str, check: Check) -> str:
    if not _completed(check):
        return f"The whole model could not be checked on {target}: its last run broke off"
    wrong = f"The whole model is wrong on {target}: "
    if not math.isfinite(check.max_rel_error):
        return wrong + "shapes, exact results, or the places of NaN and infinities differ from the oracle's"
    return wrong + f"error {numbers.error(check.max_rel_error)}, allowed {numbers.error(check.bound)}"


def _completed(check: Check) -> bool:
    """A run that broke off has no bound; every other bound is at least 1e-5."""
    return check.bound > 0.0


def _detail(result: MigrationResult) -> str:
    parts: list[str] = []
    if result.findings:
        reach = sum(len(finding.nodes) for finding in result.findings)
        concern = "concerns" if len(result.findings) == 1 else "concern"
        parts.append(f"{numbers.plural(len(result.findings), 'finding')} {concern} {numbers.plural(reach, 'node')}")
    else:
        parts.append("no findings")
    if result.blocked:
        stay = "stays" if len(result.blocked) == 1 else "stay"
        parts.append(f"{numbers.plural(len(result.blocked), 'node')} {stay} on the source")
    cases = (
        f"{numbers.plural(result.suite.cases, 'case')} of {numbers.plural(len(result.operators), 'operator')} replayed"
    )
    steps = numbers.plural(len(result.steps), "step")
    parts.append(f"{cases}, then moved in {steps} with {numbers.plural(result.program_runs, 'program run')}")
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]


def check_lines(check: Check) -> tuple[CheckLine, ...]:
    """The numbers of the whole-model check, each with one sentence. The bound's rule: numerics.whole.program_bound."""
    lines = [
        CheckLine(
            "Error on the target",
            numbers.error(check.max_rel_error),
            "The largest difference from the oracle (the same model in float64), relative to the largest value of "
            "that output, over all inputs.",
            "got",
        ),
        CheckLine(
            "Source error",
            numbers.error(check.source_error if _completed(check) else None),
            "How far the source itself is from the oracle: float32 rounding alone costs this much.",
            "source",
        ),
        CheckLine(
            "Bound",
            numbers.error(check.bound if _completed(check) else None),
            "What is allowed: 4 times the source's own error, and 1e-5 at least.",
            "bound",
        ),
        CheckLine(
            "Target against source",
            numbers.error(check.against_source),
            "The same measure between the results of the two; 0 means equal bit for bit.",
        ),
    ]
    if check.tokens:
        lines.append(_tokens(check.tokens))
    return tuple(lines)


def _tokens(tokens: dict[str, int]) -> CheckLine:
    equal, compared, prompts = (tokens.get(key, 0) for key in ("equal", "compared", "prompts"))
    return CheckLine(
        "Greedy tokens",
        f"{numbers.count(equal)} / {numbers.count(compared)}",
        f"Tokens equal to the source's, over {numbers.plural(prompts, 'prompt')}.",
    )
