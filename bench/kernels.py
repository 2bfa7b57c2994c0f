"""The hand-written kernels in each schedule next to the compiler's, call by call on one device.

Run it as ``python bench/kernels.py [--device opencl:0] [--rounds N] [--only NAME …]`` on an otherwise idle machine.
Milliseconds of one launch, or of all launches where the compiler needs several, the least of ``--rounds`` times five;
sides take turns. Weights are constants. Every result is compared with PyTorch's.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.region_bench import Bench, single_call
from tapestry.backends.kernels.backend import Kernels
from tapestry.backends.kernels.schedule import FAMILIES, KernelOptions
from tapestry.backends.registry import ready_backends
from tapestry.errors import TapestryError
from tapestry.program.graph import Graph
from tapestry.runtime.device import Command
from tapestry.runtime.module import Compiled
from tapestry.runtime.open import open_device

aten = torch.ops.aten
#: Runs of a timing.
REPEATS = 5


def r(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def calls() -> dict[str, tuple[Any, tuple[Any, ...], tuple[int, ...]]]:
    """Name → operator, arguments, and which of them are constant: shapes of MiniLM and of SmolLM2-135M."""
    attend = aten.scaled_dot_product_attention.default
    return {
        "linear 32×384×384": (aten.linear.default, (r(32, 384), r(384, 384), r(384)), (1, 2)),
        "linear 32×384×1536": (aten.linear.default, (r(32, 384), r(1536, 384), r(1536)), (1, 2)),
        "linear 32×1536×384": (aten.linear.default, (r(32, 1536), r(384, 1536), r(384)), (1, 2)),
        "mm 128×256×512": (aten.mm.default, (r(128, 256), r(256, 512)), ()),
        "bmm 12×32×32×32": (aten.bmm.default, (r(12, 32, 32), r(12, 32, 32)), ()),
        "linear 1×576×1536": (aten.linear.default, (r(1, 576), r(1536, 576)), (1,)),
        "linear 1×576×49152": (aten.linear.default, (r(1, 576), r(49152, 576)), (1,)),
        "mm 1×576×1536": (aten.mm.default, (r(1, 576), r(576, 1536)), ()),
        "softmax 12×32×32": (aten.softmax.int, (r(12, 32, 32), -1), ()),
        "softmax 1024×1024": (aten.softmax.int, (r(1024, 1024), -1), ()),
        "layer_norm 32×384": (aten.layer_norm.default, (r(32, 384), [384], r(384), r(384)), (2, 3)),
        "rms_norm 32×576": (aten.rms_norm.default, (r(32, 576), [576], r(576), 1e-5), (2,)),
        "rms_norm 1×576": (aten.rms_norm.default, (r(1, 576), [576], r(576), 1e-5), (2,)),
        "attention 12×32×32": (attend, (r(1, 12, 32, 32), r(1, 12, 32, 32), r(1, 12, 32, 32)), ()),
        "attention 9×1×128×64": (attend, (r(1, 9, 1, 64), r(1, 9, 128, 64), r(1, 9, 128, 64)), ()),
    }


def sides(bench: Bench, graph: Graph) -> dict[str, Compiled]:
    """What compiles the graph, by name."""
    found: dict[str, Compiled] = {}
    for kind in ("invocation", "large", "workgroup"):
        chosen = {**dict.fromkeys(FAMILIES, "invocation" if kind == "large" else kind), "matmul": kind}
        made = Kernels().compile(graph, bench.device.info, msgspec.convert(chosen, KernelOptions))
        if made not in found.values():
            found[kind] = made
    (compiler,) = ready_backends("tvm")
    try:
        found["tvm"] = compiler.compile(graph, bench.device.info, compiler.options()[0])
    except TapestryError as error:
        print(f"tvm: {error}", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[])
    asked = parser.parse_args()
    bench = Bench(open_device(asked.device), lambda *_: None)  # type: ignore[arg-type, return-value]
    print("| call | " + " | ".join(columns := ["invocation", "large", "workgroup", "tvm"]) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, (op, args, constants) in calls().items():
        if asked.only and not any(part in name for part in asked.only):
            continue
        graph, values, want = single_call(op, args, {}, constants)
        with ExitStack() as placed:
            timed: dict[str, list[Command]] = {}
            for side, compiled in sides(bench, graph).items():
                (got,) = bench.run(graph, compiled, values)
                torch.testing.assert_close(got, want[0], rtol=1e-4, atol=1e-4)
                timed[side], _ = placed.enter_context(bench.placed(graph, compiled, values))
            took = [
                {side: min(bench.device.time(commands, REPEATS)) for side, commands in timed.items()}
                for _ in range(asked.rounds)
            ]
        least = {side: f"{min(each[side] for each in took) * 1e3:.3f}" for side in timed}
        print(f"| {name} | " + " | ".join(least.get(side, "–") for side in columns) + " |", flush=True)
    bench.device.close()


if __name__ == "__main__":
    main()
