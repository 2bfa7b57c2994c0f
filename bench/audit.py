"""How many faults of platforms suites find: with variants, without, and the usual way.

Run it as ``python bench/audit.py [--faults FILE.py] [--suite SUITE] [--json FILE]``. The usual way is what TapML's
public code and most operator tests do: the operator's calls as PyTorch's samples have them, every floating tensor
filled with uniform random numbers in [-1, 1), integers with small ones, eight draws of each, and one tolerance for all
(relative and absolute 1e-2). A fault of several calls gets the plain chain of its operators, eight draws as well.
Faults are plain objects: docs/suites.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

from tapestry.numerics.arguments import eager_results, flatten_result
from tapestry.suite.audit.faults import Fault, read_faults
from tapestry.suite.audit.mutants import with_own_memory
from tapestry.suite.audit.result import AuditResult
from tapestry.suite.audit.run import audit
from tapestry.suite.audit.sources import Sources
from tapestry.suite.composition.chains import chains_for
from tapestry.suite.composition.steps import Chain, Copies, run_chain, run_fault
from tapestry.suite.variants.call import OpCall
from tapestry.suite.variants.meaning import Role, tensor_meanings

DRAWS = 8
TOLERANCE = 1e-2


def uniform(call: OpCall, generator: torch.Generator) -> OpCall:
    """The call on random numbers; indices, masks and what cannot be chosen freely stay."""
    drawn: list[torch.Tensor] = []
    for tensor, meaning in zip(call.tensors, tensor_meanings(call), strict=True):
        if meaning.role in (Role.DATA, Role.WEIGHT, Role.BIAS, Role.MEAN):
            drawn.append(_drawn(tensor, generator))
        else:
            drawn.append(tensor)
    return call.with_tensors(tuple(drawn))


def _drawn(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.is_floating_point():
        return (torch.rand(tensor.shape, generator=generator) * 2 - 1).to(tensor.dtype)
    if tensor.dtype == torch.bool or tensor.is_complex():
        return tensor
    return torch.randint(0, 10, tensor.shape, generator=generator).to(tensor.dtype)


def differs(got: object, want: object) -> bool:
    """Whether results are beyond the one tolerance."""
    left, right = flatten_result(got), flatten_result(want)
    for one, other in zip(left, right, strict=False):
        if one is None or other is None:
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            return True
        if not torch.allclose(one.double(), other.double(), TOLERANCE, TOLERANCE, equal_nan=True):
            return True
    return len(left) != len(right)


def found_usually(fault: Fault, sources: Sources) -> bool:
    """Whether the usual way finds a fault. What a fault raises on is not counted."""
    generator = torch.Generator().manual_seed(0)
    try:
        if fault.ops:
            return any(_chain_shows(fault, chain) for chain in _plain_chains(fault, sources, generator))
        calls = [entry.call for op in fault.targets for entry in sources.bases(op)]
        return any(_call_shows(fault, uniform(call, generator)) for call in calls for _ in range(DRAWS))
    except (TypeError, RuntimeError, AttributeError, IndexError):
        return False


def _call_shows(fault: Fault, call: OpCall) -> bool:
    mine = with_own_memory(call)
    try:
        want = eager_results(call.target, call.args, call.kwargs)
        got = fault.apply(mine.args, mine.kwargs)
    except (TypeError, RuntimeError, AttributeError, NotImplementedError, IndexError):
        return False
    return differs(got, want)


def _plain_chains(fault: Fault, sources: Sources, generator: torch.Generator) -> Iterator[Chain]:
    calls = {op: [entry.call for entry in sources.bases(op)] for op in fault.targets}
    for chain in islice(chains_for(fault.ops, calls), 1):
        for _ in range(DRAWS):
            copies = Copies(lambda flat: _drawn(flat, generator))
            yield replace(
                chain,
                calls=tuple(tuple(copies.step(step) for step in steps) for steps in chain.calls),
                states=tuple(copies.of(state) for state in chain.states),
            )


def _chain_shows(fault: Fault, chain: Chain) -> bool:
    got, want = run_fault(chain, fault), run_chain(chain)
    return differs(list(got.outputs), list(want.outputs)) or differs(list(got.states), list(want.states))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=Path, default=Path("tests/support/handed_faults.py"))
    parser.add_argument("--suite", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    file = read_faults(options.faults)
    with_variants = audit(options.suite, options.faults)
    without = audit(options.suite, options.faults, variants=False)
    sources = Sources(None, variants=False)
    usual = {fault.name: found_usually(fault, sources) for fault in file.faults}
    rows = _rows(with_variants, without, usual)
    print(f"{'class':20} {'faults':>7} {'variants':>9} {'carved or sampled':>18} {'the usual way':>14}")
    for name, counts in rows.items():
        print(f"{name:20} {counts[0]:7} {counts[1]:9} {counts[2]:18} {counts[3]:14}")
    if options.json is not None:
        options.json.write_text(json.dumps({"rows": rows, "usual": usual}, indent=1))


def _rows(full: AuditResult, plain: AuditResult, usual: dict[str, bool]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for entry, other in zip(full.results, plain.results, strict=True):
        for name in (entry.fault_class, "all"):
            row = rows.setdefault(name, [0, 0, 0, 0])
            for place, number in enumerate((1, entry.killed, other.killed, usual[entry.fault])):
                row[place] += int(number)
    return {**{name: row for name, row in sorted(rows.items()) if name != "all"}, "all": rows["all"]}


if __name__ == "__main__":
    main()
