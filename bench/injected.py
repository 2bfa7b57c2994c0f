"""Program runs until every injected fault is named: a migration next to the usual ways.

Run it as ``python bench/injected.py [--model zoo:bert] [--faults N …] [--draws N] [--json FILE]``. The target is this
machine's processor with 1, 3 and 10 faults, drawn at random: operators that are wrong at all of their places, and
pairs that are wrong only in one region. *One by one* moves one more node at a time and keeps it back when the whole
model turns wrong. *Bisection* moves everything, looks for the first node with which it turns wrong, keeps it back,
and starts again: one fault a time. Both see neither cases nor pairs. Counted are passes of one input set, the same
for all.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import get_backend
from tapestry.migration.choice import Choice
from tapestry.migration.engine import Migration
from tapestry.migration.merging import alone, last_good
from tapestry.migration.migrate import runs_allowed
from tapestry.migration.result import Finding
from tapestry.migration.steps import Steps
from tapestry.models.load import load_model
from tapestry.program.capture import capture
from tapestry.program.graph import operands
from tapestry.program.inputs import as_input_sets
from tapestry.program.program import Program
from tapestry.program.serial import overload_named
from tapestry.runtime.open import open_in_process
from tapestry.runtime.resident import Resident
from tapestry.suite.audit.faults import Fault
from tapestry.suite.carve import carve
from tapestry.suite.composition.steps import Step, filled
from tapestry.suite.injection.platform import Platform
from tapestry.suite.on_target import Target

ERROR = 1e-2


class Found(NamedTuple):
    """Faults named, and the program runs that it took."""

    faults: int
    runs: int
    allowed: int = 0


def single(op: str) -> Fault:
    """Results of an operator that are off by a hundredth."""

    def apply(args: Sequence[object], kwargs: dict[str, object]) -> object:
        return overload_named(op)(*args, **kwargs) * (1 + ERROR)

    return Fault(op, "precision", op, (), (), apply)


def pair(first: str, second: str) -> Fault:
    """The second operator's results are off where the first is in the same region before it."""

    def apply(steps: Sequence[Step]) -> list[object]:
        results: list[object] = []
        for place, step in enumerate(steps):
            args = [filled(value, results) for value in step.args]
            result = overload_named(step.op)(*args, **step.kwargs)
            late = step.op == second and any(entry.op == first for entry in steps[:place])
            results.append(result * (1 + ERROR) if late else result)  # type: ignore[operator]
        return results

    return Fault(f"{first} + {second}", "graph_cut", "", (), (first, second), apply)


def drawn(program: Program, count: int, seed: int) -> list[Fault]:
    """Faults on different operators, one in three of them a pair of which one reads the other.

    Fewer than ``count`` where the program has no more operators.
    """
    free = [node for node in program.nodes if node.id in program.compute]
    generator = random.Random(seed)
    edges = sorted(
        {
            (program.by_id[ref.name].op, node.op)
            for node in free
            for ref in operands(node.call)
            if ref.name in program.compute and program.by_id[ref.name].op != node.op
        }
    )
    generator.shuffle(edges)
    faults: list[Fault] = []
    used: set[str] = set()
    for edge in edges:
        if len(faults) < count // 3 and not used & set(edge):
            faults.append(pair(*edge))
            used |= set(edge)
    ops = sorted({node.op for node in free} - used)
    generator.shuffle(ops)
    return [*faults, *map(single, ops[: count - len(faults)])]


def migration(target: Target, program: Program, sets: Sequence[object], suite: object) -> Found:
    """As the product does it."""
    outcome = Migration(program, suite, as_input_sets(sets), [target]).run()  # type: ignore[arg-type]
    names = named(outcome.findings, target, program)
    outcome.executable.close()
    return Found(names, outcome.program_runs, runs_allowed(len(outcome.findings), len(program.nodes)))


def named(findings: Sequence[Finding], target: Target, program: Program) -> int:
    """How many faults have a finding on nodes of their operators and no other."""
    ops = [{program.by_id[node_id].op for node_id in entry.nodes} for entry in findings]
    assert target.faulty is not None
    return sum(set(fault.ops or [fault.op]) in ops for fault in target.faulty.faults)


def one_by_one(target: Target, program: Program, sets: Sequence[object]) -> Found:
    """Every node in turn."""
    steps = steps_on(target, program, sets)
    good: list[str] = []
    bad: set[str] = set()
    for node_id in program.placeable:
        if steps.step("offload", alone([*good, node_id])).good:
            good.append(node_id)
        else:
            bad.add(program.by_id[node_id].op)
    return Found(len(bad), steps.program_runs)


def bisection(target: Target, program: Program, sets: Sequence[object]) -> Found:
    """The first bad node, again and again."""
    steps = steps_on(target, program, sets)
    left = list(program.placeable)
    bad: set[str] = set()

    def right(count: int) -> bool:
        return steps.step("search", alone(left[:count])).good

    while left and not right(len(left)):
        place = last_good(0, len(left), right)
        bad.add(program.by_id[left[place]].op)
        del left[place]
    return Found(len(bad), steps.program_runs)


def steps_on(target: Target, program: Program, sets: Sequence[object]) -> Steps:
    """Whole-program checks on the first input set."""
    return Steps(program, as_input_sets(sets)[:1], Choice(program, [target]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo:bert")
    parser.add_argument("--faults", type=int, nargs="*", default=[1, 3, 10])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    loaded = load_model(options.model)
    sets = loaded.inputs[:1]
    program = capture(loaded.module, sets[0].calls[0].args, sets[0].calls[0].kwargs, name=loaded.name)
    suite = carve(program, as_input_sets(sets))
    rows: dict[int, dict[str, dict[str, float]]] = {}
    print(f"{options.model}: {len(program.nodes)} nodes, medians of {options.draws} draws")
    print(f"{'faults':>7}  {'way':12} {'named':>6} {'program runs':>13} {'allowed':>8}")
    with Compiler() as compiler:
        for count in options.faults:
            found: dict[str, list[Found]] = {}
            for draw in range(options.draws):
                faulty = Platform(program, drawn(program, count, draw), f"{count} {draw}")
                device = open_in_process("cpu")
                target = Target.of(Resident(device), get_backend("eager"), compiler, faulty=faulty)
                ways: dict[str, Callable[[], Found]] = {
                    "migration": lambda target=target: migration(target, program, sets, suite),
                    "one by one": lambda target=target: one_by_one(target, program, sets),
                    "bisection": lambda target=target: bisection(target, program, sets),
                }
                for way, run in ways.items():
                    found.setdefault(way, []).append(run())
                device.close()
            rows[count] = {
                way: {what: statistics.median(getattr(entry, what) for entry in each) for what in Found._fields}
                for way, each in found.items()
            }
            for way, row in rows[count].items():
                allowed = f"{row['allowed']:8.0f}" if row["allowed"] else ""
                print(f"{count:7}  {way:12} {row['faults']:6.0f} {row['runs']:13.0f} {allowed}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
