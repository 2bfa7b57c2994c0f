"""What carving costs: carved run over eager run, suite over a full dump, cases per second, peak memory over the model.

Run it as ``python bench/carve.py [--rounds N] [--json FILE]`` on an otherwise idle machine. Ratios are taken within
one run, eager and carved rounds interleaved, and the median of the rounds is reported.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

import torch

from tapestry.models.load import load_model
from tapestry.program.capture import capture
from tapestry.suite.carve import carve
from tapestry.suite.replay import replay
from tapestry.suite.store import save_suite

MIB = 1 << 20


def measure(model: str, rounds: int) -> dict[str, float]:
    """Figures for one model; seconds, bytes and ratios."""
    loaded = load_model(model)
    call = loaded.inputs[0].calls[0]
    program = capture(loaded.module, call.args, call.kwargs, name=model)
    parameters = sum(tensor.numel() * tensor.element_size() for tensor in program.tensors.values())
    before = _peak()
    suites = [carve(program, loaded.inputs, eager=loaded.module) for _ in range(rounds)]
    after = _peak()
    infos = [suite.info for suite in suites]
    suite = suites[-1]
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        stored = save_suite(suite, Path(folder) / "suite")
        store_seconds = time.perf_counter() - begin
    constants = {digest for case in suite.cases for digest, constant in _constants(case) if constant}
    without = stored - sum(suite.tensors[digest].numel() * suite.tensors[digest].element_size() for digest in constants)
    return {
        "inputs": len(loaded.inputs),
        "cases": len(suite.cases),
        "eager_seconds": statistics.median(info.eager_seconds for info in infos),
        "carve_seconds": statistics.median(info.carve_seconds for info in infos),
        "carve_over_eager": statistics.median(info.carve_seconds / info.eager_seconds for info in infos),
        "oracle_seconds": statistics.median(info.finish_seconds for info in infos),
        "store_seconds": store_seconds,
        "suite_bytes": stored,
        "dump_bytes": suite.info.dump_bytes,
        "dump_over_suite": suite.info.dump_bytes / stored,
        "suite_bytes_without_parameters": without,
        "dump_bytes_without_parameters": suite.info.dump_bytes_activations,
        "dump_over_suite_without_parameters": suite.info.dump_bytes_activations / without,
        "parameter_bytes": parameters,
        "peak_bytes_added": after - before,
        "peak_over_model": (after - before) / parameters,
    }


def cases_per_second(model: str, device: str) -> float:
    """Cases per second of a warm replay: the second of two, compiled regions cached, device opening included."""
    loaded = load_model(model)
    call = loaded.inputs[0].calls[0]
    program = capture(loaded.module, call.args, call.kwargs, name=model)
    suite = carve(program, loaded.inputs)
    replay(suite, device)
    begin = time.perf_counter()
    result = replay(suite, device)
    return len(result.results) / (time.perf_counter() - begin)


def _constants(case: object) -> list[tuple[str, bool]]:
    graph = case.load_graph()  # type: ignore[attr-defined]
    return [(digest, entry.constant) for digest, entry in zip(case.inputs, graph.inputs, strict=True)]  # type: ignore[attr-defined]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo:minilm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--devices", nargs="*", default=["cpu", "opencl:0"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = measure(options.model, options.rounds)
    for device in options.devices:
        figures[f"cases_per_second {device}"] = cases_per_second(options.model, device)
    figures["threads"] = torch.get_num_threads()
    for name, value in figures.items():
        in_bytes = name.endswith(("bytes", "parameters", "added")) and value > MIB
        shown = f"{value / MIB:.1f} MiB" if in_bytes else f"{value:.4g}"
        print(f"{name:40} {shown}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
