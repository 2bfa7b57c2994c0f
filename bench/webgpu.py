"""What the WebGPU driver costs, next to pyopencl called directly in the same run.

Run it as ``python bench/webgpu.py [--device webgpu:0] [--rounds N] [--json FILE]`` on an otherwise idle machine.
Both sides increment one integer, so that what is timed is the way there. ``launch`` is one of a thousand launches
submitted together, waited for; ``submit`` a batch of one, waited for; ``read`` four bytes; then transfers of 64 MiB.
Medians of interleaved rounds. pyopencl's launches keep their arguments set, as the driver keeps its bind groups.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl

from tapestry.runtime.device import Device, Launch
from tapestry.runtime.module import KernelDecl, KernelModule
from tapestry.runtime.open import open_in_process

LAUNCHES = 1000
TRANSFER = 64 << 20
WGSL = """
@group(0) @binding(0) var<storage, read_write> x : array<i32>;
@compute @workgroup_size(1) fn bump() { x[0] += 1; }
"""
OPENCL = "__kernel void bump(__global int* x) { x[0] += 1; }"
Timed = dict[str, Callable[[], Any]]


def ours(device: Device) -> Timed:
    """Through the driver."""
    loaded = device.load(KernelModule("wgsl", WGSL, (KernelDecl("bump", "x"),)))
    counter, large = device.alloc(16), device.alloc(TRANSFER)
    launch, data = Launch(loaded, "bump", (counter,), (1, 1, 1), (1, 1, 1)), bytes(TRANSFER)
    many = [launch] * LAUNCHES

    def submitted(commands: list[Launch]) -> None:
        device.submit(commands)
        device.sync()

    def uploaded() -> None:
        device.write(large, data)
        device.sync()

    return {
        "launch": lambda: submitted(many),
        "submit": lambda: submitted([launch]),
        "read": lambda: device.read(counter, 4),
        "upload": uploaded,
        "download": lambda: device.read(large, TRANSFER),
    }


def direct() -> Timed:
    """Through pyopencl alone."""
    context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
    queue = cl.CommandQueue(context)
    kernel = cl.Kernel(cl.Program(context, OPENCL).build(), "bump")
    counter = cl.Buffer(context, cl.mem_flags.READ_WRITE, 16)
    large = cl.Buffer(context, cl.mem_flags.READ_WRITE, TRANSFER)
    kernel.set_arg(0, counter)
    small, data = np.zeros(1, np.int32), np.zeros(TRANSFER, np.uint8)

    def launched(count: int) -> None:
        for _ in range(count):
            cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
        queue.finish()

    return {
        "launch": lambda: launched(LAUNCHES),
        "submit": lambda: launched(1),
        "read": lambda: cl.enqueue_copy(queue, small, counter),
        "upload": lambda: cl.enqueue_copy(queue, large, data),
        "download": lambda: cl.enqueue_copy(queue, data, large),
    }


def measured(sides: dict[str, Timed], rounds: int) -> dict[str, dict[str, float]]:
    """Seconds by side and what was done: medians of interleaved rounds, after one that is not counted."""
    seconds: dict[str, dict[str, list[float]]] = {side: {what: [] for what in timed} for side, timed in sides.items()}
    for number in range(rounds + 1):
        for side, timed in sides.items():
            for what, action in timed.items():
                start = time.perf_counter()
                action()
                if number:
                    seconds[side][what].append(time.perf_counter() - start)
    return {side: {what: statistics.median(found) for what, found in of.items()} for side, of in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="webgpu:0")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = open_in_process(options.device)
    found = measured({"webgpu": ours(device), "pyopencl": direct()}, options.rounds)
    rows: dict[str, dict[str, float]] = {}
    for what, unit in (("launch", "us"), ("submit", "us"), ("read", "us"), ("upload", "GB/s"), ("download", "GB/s")):
        one, other = found["webgpu"][what], found["pyopencl"][what]
        if unit == "us":
            scale = 1e6 / (LAUNCHES if what == "launch" else 1)
            rows[f"{what}, {unit}"] = {"webgpu": one * scale, "pyopencl": other * scale, "ratio": one / other}
        else:
            rows[f"{what}, {unit}"] = {
                "webgpu": TRANSFER / one * 1e-9,
                "pyopencl": TRANSFER / other * 1e-9,
                "ratio": other / one,
            }
    print(f"{device.info.description}\n{'':16}{'webgpu':>10}{'pyopencl':>10}{'ratio':>8}")
    for title, row in rows.items():
        print(f"{title:16}{row['webgpu']:10.2f}{row['pyopencl']:10.2f}{row['ratio']:8.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))
    device.close()


if __name__ == "__main__":
    main()
