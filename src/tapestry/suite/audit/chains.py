"""One fault of several calls in one part, tried on chains of them. Not here: making chains and judging them
(composition).
"""

from __future__ import annotations

from tapestry.numerics.judgement import Judgement
from tapestry.numerics.verdict import Verdict
from tapestry.suite.audit.faults import Fault
from tapestry.suite.audit.mutants import Attempts, search
from tapestry.suite.audit.result import FaultResult
from tapestry.suite.audit.sources import Sources
from tapestry.suite.composition.chain_judging import judge_chain
from tapestry.suite.composition.chains import chains_for
from tapestry.suite.composition.steps import Chain, run_chain, run_fault


def try_chains(fault: Fault, sources: Sources, seconds: float) -> FaultResult:
    """Try a fault on chains of its operators until a verdict gives it away, or for ``seconds``.

    As for one operator (`mutants.try_fault`), a chain on which PyTorch itself would not pass is left out.
    """
    calls = {op: [entry.call for entry in sources.bases(op)] for op in fault.targets}
    return search(fault, chains_for(fault.ops, calls), lambda chain, seen: _try(fault, chain, seen), seconds)


def _try(fault: Fault, chain: Chain, seen: Attempts) -> Judgement | None:
    got = seen.applied(chain.name, lambda: run_fault(chain, fault))
    if got is None:
        return None
    judgement = judge_chain(chain, got)
    if judgement.verdict == Verdict.FAIL and judge_chain(chain, run_chain(chain)).verdict != Verdict.FAIL:
        seen.differed += 1
        return judgement
    if judgement.reason != "the same as the source's":
        seen.differed += 1
        seen.closest = f"{judgement.verdict}, {judgement.reason}"
    return None
