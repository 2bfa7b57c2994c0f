"""Cases replayed a second on the host backend, with one worker.

Run it as ``python bench/replay.py [--json FILE]`` on an otherwise idle machine. Suites are carved from small models of
the zoo (bert, convnet, integers) with their variants; cases of more than 4,096 elements in any tensor are left out. The
device is opened and every region compiled in a first run; the second one counts: making the derived tensors, running,
judging. The split into its parts is measured by itself afterwards. ``pytest --tapestry`` on the same cases is the peer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import ready_backends
from tapestry.models.load import load_model
from tapestry.program.capture import capture
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.carve import carve
from tapestry.suite.case import Suite
from tapestry.suite.derived import with_variants
from tapestry.suite.on_target import Target, replay_on
from tapestry.suite.store import save_suite
from tapestry.suite.variants.derive import Budget

MODELS = ("zoo:bert", "zoo:integers")
ELEMENTS = 4096


def small_suite(name: str) -> Suite:
    """A model's suite with variants, small cases only."""
    loaded = load_model(name)
    call = loaded.inputs[0].calls[0]
    suite = with_variants(
        carve(capture(loaded.module, call.args, call.kwargs, name=name), loaded.inputs), Budget(cases=24)
    )
    kept = [case for case in suite.cases if _small(suite, case)]
    wanted = {case.id for case in kept} | {case.base for case in kept}
    return replace(suite, cases=tuple(case for case in suite.cases if case.id in wanted))


def _small(suite: Suite, case: Any) -> bool:
    tensors = [*suite.inputs(case), *(entry for entry in suite.source(case) if entry is not None)]
    return all(tensor.numel() <= ELEMENTS for tensor in tensors)


def bench(suite: Suite) -> dict[str, float]:
    """Cases and seconds of the second run, and of its parts."""
    (backend,) = ready_backends("eager")
    resident = Resident(open_device("cpu"))
    try:
        with Compiler() as compiler:
            target = Target(resident, backend, backend.options()[0], compiler)
            replay_on(target, suite)
            begin = time.perf_counter()
            found = replay_on(target, suite)
            seconds = time.perf_counter() - begin
    finally:
        resident.device.close()
    begin = time.perf_counter()
    for case in suite.cases:
        suite.inputs(case)
    making = time.perf_counter() - begin
    return {
        "cases": len(found.results),
        "seconds": seconds,
        "making tensors": making,
        "running": sum(entry.seconds for entry in found.results),
    }


def by_pytest(suite: Suite) -> float:
    """Seconds of pytest on the same cases, its start included."""
    with tempfile.TemporaryDirectory() as folder:
        save_suite(suite, Path(folder) / "suite")
        begin = time.perf_counter()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tapestry", f"{folder}/suite"]
        subprocess.run(command, cwd=folder, check=False, capture_output=True)
        return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    for name in MODELS:
        suite = small_suite(name)
        found = bench(suite)
        found["pytest seconds"] = by_pytest(suite)
        results[name] = found
        print(f"{name}: {found['cases']:.0f} cases, {found['cases'] / found['seconds']:.0f} a second", found)
    total = sum(entry["cases"] for entry in results.values()) / sum(entry["seconds"] for entry in results.values())
    print(f"all: {total:.0f} cases a second with one worker")
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
