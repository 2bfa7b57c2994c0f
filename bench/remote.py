"""What the network's side of a device costs: the same device in this process, in a worker and behind an agent.

Run it as ``python bench/remote.py [--device opencl:0] [--backend tvm] [--rounds N] [--json FILE]`` on an otherwise idle
machine. The agent is a process of its own on loopback. ``round trip`` is a ping; ``launch`` one of a thousand launches
of a kernel that increments one integer, submitted one by one and waited for together; transfers are of 64 MiB;
``minilm`` is a whole run of the model with all that the backend takes on the device: inputs up, launches, results down.
Everything is called in turn, in a random order. Ratios are to the device in this process, of medians and of the
quickest: on a machine that others use, three processes wait longer for a processor than one does.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import ready_backend
from tapestry.models.load import load_model
from tapestry.placement.build import Builder
from tapestry.placement.placement import place_on
from tapestry.program.capture import capture
from tapestry.runtime.device import Device, Launch
from tapestry.runtime.module import KernelDecl, KernelModule
from tapestry.runtime.open import open_device, open_in_process
from tapestry.runtime.resident import Resident

LAUNCHES = 1000
TRANSFER = 64 << 20
SOURCE = "__kernel void bump(__global int* x) { x[0] += 1; }"
Timed = dict[str, Callable[[], object]]


class Measured(NamedTuple):
    """Seconds of one call."""

    median: float
    least: float


@contextmanager
def agent(device: str) -> Iterator[str]:
    """An agent on loopback; its device's name."""
    command = [sys.executable, "-c", "from tapestry.cli import main; main()", "agent", "--device", device]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--allow-native"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(20)


def small(device: Device) -> Timed:
    """Launches and transfers."""
    loaded = device.load(KernelModule("opencl", SOURCE, (KernelDecl("bump", "x"),)))
    counter, large = device.alloc(16), device.alloc(TRANSFER)
    launch, data = Launch(loaded, "bump", (counter,), (1, 1, 1), (1, 1, 1)), bytes(TRANSFER)

    def launched() -> None:
        for _ in range(LAUNCHES):
            device.submit([launch])
        device.sync()

    def uploaded() -> None:
        device.write(large, data)
        device.sync()

    return {
        "round trip": device.sync,
        "1000 launches": launched,
        "upload": uploaded,
        "download": lambda: device.read(large, TRANSFER),
    }


def minilm(device: Device, backend_name: str, compiler: Compiler, stack: ExitStack) -> Callable[[], object]:
    """The model with all that the backend takes on the device."""
    loaded = load_model("demo:minilm")
    call = loaded.inputs[0].calls[0]
    program = capture(loaded.module, call.args, dict(call.kwargs))
    backend = ready_backend(backend_name)
    taken = [
        node.id for node in program.nodes
        if node.id not in program.folded and backend.refuses(node.call, device.info) is None
    ]  # fmt: skip
    regions = [taken] if backend.fuses else [[node] for node in taken]
    placement = place_on(program, regions, backend, backend.options()[0], device.info.name)
    executable = Builder(program, {device.info.name: Resident(device)}, compiler).build(placement)
    stack.callback(executable.close)
    return lambda: executable(*call.args, **dict(call.kwargs))


def measure(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, Measured]:
    """Each called in turn; the first two rounds do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    generator = random.Random(0)
    for number in range(rounds + 2):
        generator.shuffle(order)
        for name in order:
            begin = time.perf_counter()
            calls[name]()
            if number >= 2:
                seconds[name].append(time.perf_counter() - begin)
    return {name: Measured(statistics.median(values), min(values)) for name, values in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--backend", default="tvm")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    with ExitStack() as stack:
        compiler = stack.enter_context(Compiler())
        devices: dict[str, Device] = {
            "in process": open_in_process(options.device),
            "worker": open_device(options.device),
            "agent": open_device(stack.enter_context(agent(options.device))),
        }
        for device in devices.values():
            stack.callback(device.close)
        calls: dict[str, Callable[[], object]] = {}
        for where, device in devices.items():
            calls[f"minilm {where}"] = minilm(device, options.backend, compiler, stack)
        if options.device.startswith("opencl"):
            for where, device in devices.items():
                calls.update({f"{what} {where}": call for what, call in small(device).items()})
        models = measure({name: call for name, call in calls.items() if name.startswith("minilm")}, options.rounds)
        found = {**models, **measure({name: calls[name] for name in calls if name not in models}, options.rounds)}
    show(found, list(devices))
    if options.json is not None:
        options.json.write_text(json.dumps({name: entry._asdict() for name, entry in found.items()}, indent=1))


def show(found: dict[str, Measured], places: list[str]) -> None:
    """A line for each thing measured: what it takes where, and over the first place."""
    for what in dict.fromkeys(
        name.removesuffix(f" {where}") for name in found for where in places if name.endswith(where)
    ):
        measured = [found[f"{what} {where}"] for where in places]
        seconds = [entry.median for entry in measured]
        line = ", ".join(
            f"{where} {entry.median * 1e3:.3f} ms ({entry.least * 1e3:.3f})"
            for where, entry in zip(places, measured, strict=True)
        )
        first, last = measured[0], measured[-1]
        print(f"{what:14} {line}")
        print(
            f"{'':14} {places[-1]} over {places[0]}: {last.median / first.median:.2f} ({last.least / first.least:.2f})"
        )
        if what == "1000 launches":
            print(f"{'':14} {LAUNCHES / seconds[-1]:,.0f} launches/s behind the agent")
        if what in ("upload", "download"):
            print(f"{'':14} {TRANSFER / 2**20 / seconds[-1]:,.0f} MiB/s behind the agent")


if __name__ == "__main__":
    main()
